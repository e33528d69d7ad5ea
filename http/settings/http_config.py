"""HttpConfig: what the HTTP server is told. The CLI flags are these fields."""

import dataclasses
import json
from typing import Any, Literal

from palladio.http.reasoning.registry import check_name
from palladio.http.tool_calls.registry import check_format
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.sampling_params import SamplingParams

SECRETS = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})  # flags whose values are never shown
_LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """The HTTP server.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one and prints it.
        api_key: clients must send this as `Authorization: Bearer KEY` or `x-api-key: KEY`; several keys: as several
            values, or separated by commas. NAME:KEY says whose key it is; with keys of several owners, each finds only
            what was made with its own. Other users of the host see what a command line holds: see api_key_file.
        api_key_file: more keys, one a line (# begins a comment), with names or without; read again when it changes.
        admin_api_key: the routes that control the server (/flush_cache, /abort_request, /start_profile, /stop_profile)
            need this key; it opens all other routes too, and finds what anybody made.
        served_model_name: model names that requests may give, the first one is shown; default: the model path;
            "*" accepts any name.
        chat_template: a .jinja or .json file, or the name of a built-in template; default: the tokenizer's own.
        reasoning_parser: how the model writes its reasoning, which becomes reasoning_content: auto goes by the model
            and its chat template, none separates nothing; the names are those of the table in api.md.
        tool_call_parser: how the model writes tool calls: auto goes by its chat template and the model, and takes json
            where neither tells, which reads only calls that tool_choice forces; the names are those of the table in
            api.md.
        default_chat_template_kwargs: JSON object of chat_template_kwargs for requests that do not set them.
        sampling_defaults: model takes the defaults of generation_config.json; openai takes OpenAI's (temperature 1,
            top_p 1).
        preferred_sampling_params: JSON object of sampling parameters, by the names of /generate, for requests that do
            not give them; over those of sampling_defaults.
        allow_auto_truncate: cut the end off prompts that are too long, and lower max_tokens to what the prompt leaves;
            default: both are a 400.
        stream_interval: tokens per event of a stream; more means fewer, larger events.
        stream_output: each event of a stream of /generate has only what is new; without it, all so far.
        file_storage_path: folder for uploaded files, batches and stored responses, which outlive restarts; one server
            at a time uses it; default: storage/PORT in PALLADIO_DATA_DIR, else in XDG_DATA_HOME/palladio, else in
            ~/.local/share/palladio; with port 0 a temporary one.
        max_stored_responses: answers of /v1/responses that are kept, of each owner of API keys; the oldest make room
            for new ones.
        max_request_bytes: larger request bodies are refused with a 413; of a batch, longer lines are errors; default:
            8 MiB, and 64 bytes more for each token of the context, 32 MiB at most.
        max_request_values: JSON bodies that hold more values are refused with a 413; of a batch, lines with more are
            errors; a list or an object counts as 20 values, a field of an object as 10; default: 1,000,000, and one
            more for each token of the context. Nothing else is served while a body is read: some 100 ms for a million.
        max_file_bytes: larger uploads are refused with a 413, as soon as so much of them has arrived.
        max_batch_lines: a batch whose file has more lines fails.
        request_read_timeout: seconds that a request's head may take to arrive, and that its body may stand still; more
            is a 408, as is a body slower than 16 KiB a second in the long run.
        response_write_timeout: seconds in which a client must take some bytes of its answer, if there are any for it;
            else its connection is closed, and its request aborted.
        max_connections: connections that are served at the same time; requests on more of them get a 503, but for
            probes; default: no limit.
        allowed_origins: web origins that browsers may call from (CORS); "*" allows any; default: any with api_key,
            without it those of localhost.
        allowed_hosts: names that requests may call this server by, beside localhost and addresses; "*.example.com" is
            all names below one, and "*" any; default: any with api_key, without it the machine's own, and on an
            address that others reach those that are no names of the Internet.
        allowed_methods: HTTP methods that they may use; "*" allows any.
        allowed_headers: request headers that they may send; "*" allows any.
        allow_credentials: they may send cookies; not with the origin "*".
        ssl_certfile: PEM file of the server's certificate and those between it and the root: serves HTTPS.
        ssl_keyfile: PEM file of its private key; default: it is in ssl_certfile.
        ssl_keyfile_password: what the private key is encrypted with.
        ssl_ca_certs: PEM file of certificate authorities: clients must bring a certificate that one of them has signed.
        enable_ssl_refresh: read these files again when they change, for new connections.
        root_path: URL prefix that a reverse proxy in front strips off.
        drain_timeout: seconds that running requests get to finish after SIGTERM.
        log_level: of the server's log.
        log_level_http: of the HTTP server's own log and the access log; default: log_level.

    Raises:
        ConfigError: a value is out of range; the message names the flag.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    api_key_file: str | None = None
    admin_api_key: str | tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    served_model_name: tuple[str, ...] | None = None
    chat_template: str | None = None
    reasoning_parser: str = "auto"
    tool_call_parser: str = "auto"
    default_chat_template_kwargs: str = "{}"
    sampling_defaults: Literal["model", "openai"] = "model"
    preferred_sampling_params: str | None = None
    allow_auto_truncate: bool = False
    stream_interval: int = 1
    stream_output: bool = False
    file_storage_path: str | None = None
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
    drain_timeout: float = 60.0
    log_level: str = "info"
    log_level_http: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be in 0 … 65535, got {self.port}")
        if self.stream_interval < 1:
            raise ConfigError(f"--stream-interval must be at least 1, got {self.stream_interval}")
        if self.max_stored_responses < 1:
            raise ConfigError(f"--max-stored-responses must be at least 1, got {self.max_stored_responses}")
        for flag, limit in (
            ("--max-request-bytes", self.max_request_bytes),
            ("--max-request-values", self.max_request_values),
            ("--max-file-bytes", self.max_file_bytes),
            ("--max-batch-lines", self.max_batch_lines),
        ):
            if limit is not None and limit < 1:
                raise ConfigError(f"{flag} must be at least 1, got {limit}")
        if self.drain_timeout < 0:
            raise ConfigError(f"--drain-timeout must be ≥ 0, got {self.drain_timeout}")
        if self.served_model_name is not None and not all(self.served_model_name or ("",)):
            raise ConfigError("--served-model-name must not be empty")
        self._check_security()
        for flag, level in (("--log-level", self.log_level), ("--log-level-http", self.log_level_http)):
            if level is not None and level.lower() not in _LOG_LEVELS:
                raise ConfigError(f"{flag} must be one of {', '.join(_LOG_LEVELS)}, got {level!r}")
        check_name(self.reasoning_parser)
        check_format(self.tool_call_parser)
        _ = self.template_kwargs, self.preferred_defaults

    def _check_security(self) -> None:
        if self.api_key is not None and not self.api_keys:
            raise ConfigError("--api-key must not be empty; leave it out to serve without a key")
        if self.admin_api_key is not None and not self.admin_api_keys:
            raise ConfigError("--admin-api-key must not be empty; leave it out to have control routes like the others")
        for flag, seconds in (
            ("--request-read-timeout", self.request_read_timeout),
            ("--response-write-timeout", self.response_write_timeout),
        ):
            if not 0 < seconds < float("inf"):
                raise ConfigError(f"{flag} must be > 0 and finite, got {seconds}")
        if self.max_connections is not None and self.max_connections < 1:
            raise ConfigError(f"--max-connections must be at least 1, got {self.max_connections}")
        if self.allow_credentials and "*" in (self.allowed_origins or "*"):
            raise ConfigError(
                "--allow-credentials needs --allowed-origins with the origins by name: browsers refuse it for *"
            )
        for flag, words in (
            ("--allowed-origins", self.allowed_origins or ()),
            ("--allowed-hosts", self.allowed_hosts or ()),
            ("--allowed-methods", self.allowed_methods),
            ("--allowed-headers", self.allowed_headers),
        ):
            if any(word.startswith("[") for word in words):  # vLLM's way to write them
                raise ConfigError(f"{flag} takes words, not a JSON list: {flag} one another")
        if self.ssl_certfile is None:
            for flag, is_given in (
                ("--ssl-keyfile", self.ssl_keyfile is not None),
                ("--ssl-keyfile-password", self.ssl_keyfile_password is not None),
                ("--ssl-ca-certs", self.ssl_ca_certs is not None),
                ("--enable-ssl-refresh", self.enable_ssl_refresh),
            ):
                if is_given:
                    raise ConfigError(f"{flag} needs --ssl-certfile")

    @property
    def api_keys(self) -> tuple[str, ...]:
        return _split_keys(self.api_key)

    @property
    def admin_api_keys(self) -> tuple[str, ...]:
        return _split_keys(self.admin_api_key)

    def public(self) -> dict[str, Any]:
        """Flag name → value, with secrets as "***"."""
        return {name: "***" if name in SECRETS and value is not None else value for name, value in vars(self).items()}

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """`default_chat_template_kwargs`, parsed."""
        return _read_object("--default-chat-template-kwargs", self.default_chat_template_kwargs)

    @property
    def preferred_defaults(self) -> dict[str, Any]:
        """`preferred_sampling_params`, parsed: by the names of SamplingParams."""
        try:
            given = _read_object("--preferred-sampling-params", self.preferred_sampling_params or "{}")
            return SamplingParams.read_defaults(given)
        except InvalidRequestError as error:
            raise ConfigError(f"--preferred-sampling-params: {error}") from None


def _read_object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"{flag} is not valid JSON: {exc}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} must be a JSON object")
    return value


def _split_keys(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    values = (given,) if isinstance(given, str) else given or ()
    return tuple(key.strip() for value in values for key in value.split(",") if key.strip())
