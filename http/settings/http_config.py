"""HttpConfig: the configuration of the HTTP server. The CLI flags are these fields."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from palladio.http.reasoning.registry import check_name
from palladio.http.settings.rules import require
from palladio.http.tool_calls.registry import check_format
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import GRAMMAR_NAMES
from palladio.runtime.interface.request.sampling_params import ALIASES, SamplingParams

_HIDDEN = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})  # flags whose values are never shown
SECRETS = _HIDDEN | {"database_url"}  # and flags whose values are shown in part
_BUCKET = re.compile(r"(?:s3|gs|az)://[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*/?")
_NO_BUCKET = (  # without what was given, in which somebody may have put a secret
    "--blob-store must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, of letters, digits "
    "and . _ - only; credentials belong into the environment"
)
LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """HTTP server.

    Attributes:
        host: Address to listen on. Use 0.0.0.0 to accept connections from other machines.
        port: Port to listen on. 0: any free port, printed at start.
        api_key: API key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`. Repeat the value or
            separate keys with commas for several keys. NAME:KEY names the key's owner; with several owners, each finds
            only the files, batches and responses made with its own keys. Other users of the machine can read the
            command line: prefer --api-key-file.
        api_key_file: File of further keys, one per line (# starts a comment), with or without NAME:. Read again when it
            changes.
        admin_api_key: Key for the routes that control the server (/flush_cache, /abort_request, /start_profile,
            /stop_profile, /configure_logging, and those that pause generation, exchange the weights or release memory).
            It also opens all other routes and finds what every owner made.
        weight_update_folders: Directories from which /update_weights_from_disk may load weights, themselves and all
            below them. Also turns on /update_weights_from_tensor. Default: weights cannot be updated over HTTP.
        served_model_name: Model names that requests may use; the first one is shown to clients. Default: the model
            path. "default" is one in any case, and "*" accepts any name.
        chat_template: Path of a .jinja or .json file, or the name of a built-in template. Default: the tokenizer's
            template.
        trust_request_chat_template: Take the field chat_template of chat requests; it is rendered in the same sandbox
            and limits as the server's own. Default: a 400.
        reasoning_parser: Format of the model's reasoning, which is returned as reasoning_content. auto: the tokenizer's
            response_template, or chosen by model and chat template. none: reasoning stays in the answer.
            docs/api/reasoning-and-tools.md lists the names.
        enable_strict_thinking: Never sample a mark of a tool call (<tool_call>) inside of reasoning: a model then has
            to close its thought before it calls. Marks that are several tokens are not forbidden.
        tool_call_parser: Format of the model's tool calls. auto: the tokenizer's response_template, or chosen by chat
            template and model; if none is known, json, which reads only the calls that tool_choice forces.
            docs/api/reasoning-and-tools.md lists the names.
        empty_answer: What an end of sequence inside reasoning does in chats. close: the reasoning is closed, and the
            model goes on to answer. as_is: the output ends there, without an answer.
        default_chat_template_kwargs: JSON object of chat_template_kwargs for requests that do not set them.
        sampling_defaults: Sampling defaults. model: from generation_config.json. openai: OpenAI's (temperature 1, top_p
            1).
        preferred_sampling_params: JSON object of default sampling parameters, with the names of /generate. They
            override --sampling-defaults; a request overrides both.
        allow_auto_truncate: Cut off the end of a prompt that is too long, and lower max_tokens to the space that is
            left. Default: both are a 400.
        unknown_fields: What to do with fields of a request that are unknown here. warn: the request is answered without
            them; the answer lists them in the field warnings. refuse: a 400.
        stream_interval: Tokens per stream event. Higher values send fewer, larger events.
        sse_keep_alive_interval: Seconds without an event after which a stream of server-sent events gets a comment, so
            that proxies and clients keep the connection. 0: never.
        stream_response_default_include_usage: Streams end with their usage, unless a request sets
            stream_options.include_usage to false.
        stream_output: Stream events of /generate contain only the new text. Default: all text so far.
        file_storage_path: Directory for uploaded files, batches and stored responses, which survive restarts. Without
            --database-url, one server at a time can use it. Default: storage/PORT in PALLADIO_DATA_DIR, else in
            XDG_DATA_HOME/palladio, else in ~/.local/share/palladio; with port 0, a temporary directory.
        database_url: PostgreSQL database for the records of files, batches and stored responses, as
            postgresql://USER:PASSWORD@HOST/DATABASE, for many servers on many hosts. --file-storage-path must then be a
            directory that all of them see, unless --blob-store is given. Needs the extra `postgres`.
            The password may be in PGPASSWORD or ~/.pgpass instead. Default: SQLite in --file-storage-path, for one
            server.
        database_connections: Connections of this server to --database-url for transactions; it has two more for locks
            and notifications.
        database_lease: Seconds after its last sign of life in which no other server of --database-url takes up what a
            server has begun.
        blob_store: Bucket for the contents of files in the place of a folder, as s3://BUCKET/PREFIX, gs://BUCKET/PREFIX
            or az://CONTAINER/PREFIX. Credentials, region and endpoint come from the store's usual environment
            variables, such as AWS_ACCESS_KEY_ID, AWS_REGION and AWS_ENDPOINT_URL. Needs
            the extra object-store. Default: contents are in --file-storage-path.
        max_stored_responses: Maximum stored /v1/responses answers per owner of API keys; the oldest are deleted first.
        max_request_bytes: Maximum size of a request body; a larger one gets a 413, a larger batch line an error.
            Default: 8 MiB plus 64 bytes per token of context, at most 32 MiB.
        max_request_values: Maximum JSON values in a request body; more get a 413, in a batch line an error. A list or
            object counts as 20 values, a field of an object as 10. Default: 1,000,000 plus one per token of context.
            Parsing blocks the server: about 100 ms for a million values.
        max_file_bytes: Maximum size of an uploaded file; a larger one gets a 413 as soon as that many bytes have
            arrived.
        max_batch_lines: Maximum lines of a batch's input file; with more, the batch fails.
        request_read_timeout: Seconds for the head of a request to arrive, and maximum pause within its body. A slower
            request gets a 408, as does a body that arrives slower than 16 KiB/s in the long run.
        response_write_timeout: Seconds within which a client must read some bytes of a pending answer. Otherwise the
            server closes the connection and aborts the request.
        max_connections: Maximum simultaneous connections; requests on further ones get a 503, except probes. Default:
            no limit.
        allowed_origins: Web origins that browsers may call from (CORS). "*": any. Default: any with --api-key; without
            it, only origins on localhost.
        allowed_hosts: Host names that requests may use for this server, besides localhost and IP addresses.
            "*.example.com": all names below example.com; "*": any. Default: any with --api-key; without it, the
            machine's own names and, if it listens on an address that other machines reach, all names that cannot be
            registered on the Internet.
        allowed_methods: HTTP methods that browsers may use from another origin (CORS). "*": any.
        allowed_headers: Request headers that browsers may send from another origin (CORS). "*": any.
        allow_credentials: Allow browsers to send cookies from another origin (CORS). Not with the origin "*".
        ssl_certfile: PEM file of the server's certificate and the intermediate ones. Turns HTTPS on.
        ssl_keyfile: PEM file of the certificate's private key. Default: the key is in --ssl-certfile.
        ssl_keyfile_password: Password of the private key.
        ssl_ca_certs: PEM file of certificate authorities. Clients must then present a certificate signed by one of
            them.
        enable_ssl_refresh: Reload the certificate files when they change, for new connections.
        root_path: URL prefix that a reverse proxy strips.
        ui: Serve browsers the chat page at / and the dashboard at /dashboard. They need no key themselves and ask the
            user for one.
        drain_timeout: Seconds that running requests get to finish after SIGTERM.
        log_level: Log level of the server.
        log_level_http: Log level of the HTTP server's own log and the access log. Default: --log-level.

    Raises:
        ConfigError: a value is out of range; the message names the flag.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    api_key_file: str | None = None
    admin_api_key: str | tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    weight_update_folders: tuple[str, ...] = ()
    served_model_name: tuple[str, ...] | None = None
    chat_template: str | None = None
    trust_request_chat_template: bool = False
    reasoning_parser: str = "auto"
    enable_strict_thinking: bool = False
    tool_call_parser: str = "auto"
    empty_answer: Literal["close", "as_is"] = "close"
    default_chat_template_kwargs: str = "{}"
    sampling_defaults: Literal["model", "openai"] = "model"
    preferred_sampling_params: str | None = None
    allow_auto_truncate: bool = False
    unknown_fields: Literal["warn", "refuse"] = "warn"
    stream_interval: int = 1
    sse_keep_alive_interval: float = 15.0
    stream_response_default_include_usage: bool = False
    stream_output: bool = False
    file_storage_path: str | None = None
    database_url: str | None = dataclasses.field(default=None, repr=False)
    database_connections: int = 4
    database_lease: float = 60.0
    blob_store: str | None = None
    max_stored_responses: int = 10_000
    max_request_bytes: int | None = None
    max_request_values: int | None = None
    max_file_bytes: int = 512 * 1024 * 1024
    max_batch_lines: int = 50_000
    request_read_timeout: float = 60.0
    response_write_timeout: float = 60.0
    max_connections: int | None = None
    allowed_origins: tuple[str, ...] | None = None
    allowed_hosts: tuple[str, ...] | None = None
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = dataclasses.field(default=None, repr=False)
    ssl_ca_certs: str | None = None
    enable_ssl_refresh: bool = False
    root_path: str = ""
    ui: bool = True
    drain_timeout: float = 60.0
    log_level: str = "info"
    log_level_http: str | None = None

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, f"--port must be in 0 … 65535, got {self.port}")
        for flag, limit in (
            ("--stream-interval", self.stream_interval),
            ("--database-connections", self.database_connections),
            ("--max-stored-responses", self.max_stored_responses),
            ("--max-request-bytes", self.max_request_bytes),
            ("--max-request-values", self.max_request_values),
            ("--max-file-bytes", self.max_file_bytes),
            ("--max-batch-lines", self.max_batch_lines),
            ("--max-connections", self.max_connections),
        ):
            require(limit is None or limit >= 1, f"{flag} must be at least 1, got {limit}")
        for flag, seconds in (
            ("--request-read-timeout", self.request_read_timeout),
            ("--response-write-timeout", self.response_write_timeout),
            ("--database-lease", self.database_lease),
        ):
            require(0 < seconds < float("inf"), f"{flag} must be > 0 and finite, got {seconds}")
        is_interval = 0 <= self.sse_keep_alive_interval < float("inf")
        require(is_interval, f"--sse-keep-alive-interval must be ≥ 0 and finite, got {self.sse_keep_alive_interval}")
        require(self.drain_timeout >= 0, f"--drain-timeout must be ≥ 0, got {self.drain_timeout}")
        is_named = self.served_model_name is None or all(self.served_model_name or ("",))
        require(is_named, "--served-model-name must not be empty")
        require(all(self.weight_update_folders), "--weight-update-folders must not be empty")
        require(self.blob_store is None or _BUCKET.fullmatch(self.blob_store) is not None, _NO_BUCKET)
        self._check_security()
        self._check_database()
        for flag, level in (("--log-level", self.log_level), ("--log-level-http", self.log_level_http)):
            is_known = level is None or level.lower() in LOG_LEVELS
            require(is_known, f"{flag} must be one of {', '.join(LOG_LEVELS)}, got {level!r}")
        check_name(self.reasoning_parser)
        check_format(self.tool_call_parser)
        _ = self.template_kwargs, self.preferred_defaults

    def _check_security(self) -> None:
        has_keys = self.api_key is None or bool(self.api_keys)
        require(has_keys, "--api-key must not be empty; leave it out to serve without a key")
        has_admin_keys = self.admin_api_key is None or bool(self.admin_api_keys)
        require(
            has_admin_keys, "--admin-api-key must not be empty; leave it out to have control routes like the others"
        )
        require(
            not self.allow_credentials or "*" not in (self.allowed_origins or "*"),
            "--allow-credentials needs --allowed-origins with the origins by name: browsers refuse it for *",
        )
        for flag, words in (
            ("--allowed-origins", self.allowed_origins or ()),
            ("--allowed-hosts", self.allowed_hosts or ()),
            ("--allowed-methods", self.allowed_methods),
            ("--allowed-headers", self.allowed_headers),
        ):
            is_json = any(word.startswith("[") for word in words)  # vLLM's way to write them
            require(not is_json, f"{flag} takes words, not a JSON list: {flag} one another")
        for flag, is_given in (
            ("--ssl-keyfile", self.ssl_keyfile is not None),
            ("--ssl-keyfile-password", self.ssl_keyfile_password is not None),
            ("--ssl-ca-certs", self.ssl_ca_certs is not None),
            ("--enable-ssl-refresh", self.enable_ssl_refresh),
        ):
            require(not is_given or self.ssl_certfile is not None, f"{flag} needs --ssl-certfile")

    def _check_database(self) -> None:
        if self.database_url is None:
            return
        url = SecretUrl(self.database_url)
        is_known = url.scheme in ("postgresql", "postgres")
        require(is_known, f"--database-url must be postgresql://USER:PASSWORD@HOST/DATABASE, not {url}")

    @property
    def api_keys(self) -> tuple[str, ...]:
        return _split_keys(self.api_key)

    @property
    def admin_api_keys(self) -> tuple[str, ...]:
        return _split_keys(self.admin_api_key)

    def public(self) -> dict[str, Any]:
        """Flag name → value, with secrets as "***"."""
        shown = {name: "***" if name in _HIDDEN and value is not None else value for name, value in vars(self).items()}
        url = None if self.database_url is None else str(SecretUrl(self.database_url))
        return shown | {"database_url": url}

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """`default_chat_template_kwargs`, parsed."""
        return _read_object("--default-chat-template-kwargs", self.default_chat_template_kwargs)

    @property
    def preferred_defaults(self) -> dict[str, Any]:
        """`preferred_sampling_params`, parsed: by the names of SamplingParams."""
        try:
            given = _read_object("--preferred-sampling-params", self.preferred_sampling_params or "{}")
            return _read_defaults(given)
        except InvalidRequestError as error:
            raise ConfigError(f"--preferred-sampling-params: {error}") from None


_NOT_DEFAULTS = frozenset(  # what only a request can say
    {"n", "logprobs", "prompt_logprobs", "logprob_token_ids"}
    | {"visible_special_ids", "grammar", "thinking", "closing", *GRAMMAR_NAMES}
)


def _read_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the `defaults` of `SamplingParams.from_dict`, under its names; SGLang's names are accepted.

    Raises:
        InvalidRequestError: an unknown name, one that is no default, or a bad value.
    """
    for name in values:
        if name in _NOT_DEFAULTS:
            raise InvalidRequestError.of("{param} cannot have a default: each request sets it", param=name)
    params = dataclasses.asdict(SamplingParams.from_dict(values))
    return {(field := ALIASES.get(name, name)): params[field] for name in values if values[name] is not None}


def _read_object(flag: str, text: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"{flag} is not valid JSON: {exc}") from None
    require(isinstance(value, dict), f"{flag} must be a JSON object")
    return value


def _split_keys(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    values = (given,) if isinstance(given, str) else given or ()
    return tuple(key.strip() for value in values for key in value.split(",") if key.strip())
