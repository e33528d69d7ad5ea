"""HttpConfig: what the HTTP server is told. The CLI flags are these fields."""

import dataclasses
import json
from typing import Any, Literal

from palladio.http.reasoning.registry import check_name
from palladio.http.tool_calls.registry import check_format
from palladio.runtime.errors import ConfigError

_LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """The HTTP server.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one and prints it.
        api_key: clients must send this as `Authorization: Bearer KEY`; several keys: separated by commas.
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
        stream_interval: tokens per event of a stream; more means fewer, larger events.
        file_storage_path: folder for uploaded files, batches and stored responses, which outlive restarts; one server
            at a time uses it; default: one for each port in ~/.local/share/palladio; with port 0 a temporary one.
        max_request_bytes: larger request bodies are refused with a 413.
        allowed_origins: web origins that browsers may call from (CORS); "*" allows any.
        root_path: URL prefix that a reverse proxy in front strips off.
        drain_timeout: seconds that running requests get to finish after SIGTERM.
        log_level: of the server's log.
        log_level_http: of the HTTP server's own log and the access log; default: log_level.

    Raises:
        ConfigError: a value is out of range; the message names the flag.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    served_model_name: tuple[str, ...] | None = None
    chat_template: str | None = None
    reasoning_parser: str = "auto"
    tool_call_parser: str = "auto"
    default_chat_template_kwargs: str = "{}"
    sampling_defaults: Literal["model", "openai"] = "model"
    stream_interval: int = 1
    file_storage_path: str | None = None
    max_request_bytes: int = 64 * 1024 * 1024
    allowed_origins: tuple[str, ...] = ("*",)
    root_path: str = ""
    drain_timeout: float = 60.0
    log_level: str = "info"
    log_level_http: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be in 0 … 65535, got {self.port}")
        if self.stream_interval < 1:
            raise ConfigError(f"--stream-interval must be at least 1, got {self.stream_interval}")
        if self.max_request_bytes < 1:
            raise ConfigError(f"--max-request-bytes must be at least 1, got {self.max_request_bytes}")
        if self.drain_timeout < 0:
            raise ConfigError(f"--drain-timeout must be ≥ 0, got {self.drain_timeout}")
        if self.served_model_name is not None and not all(self.served_model_name or ("",)):
            raise ConfigError("--served-model-name must not be empty")
        if self.api_key is not None and not self.api_keys:
            raise ConfigError("--api-key must not be empty; leave it out to serve without a key")
        for flag, level in (("--log-level", self.log_level), ("--log-level-http", self.log_level_http)):
            if level is not None and level.lower() not in _LOG_LEVELS:
                raise ConfigError(f"{flag} must be one of {', '.join(_LOG_LEVELS)}, got {level!r}")
        check_name(self.reasoning_parser)
        check_format(self.tool_call_parser)
        _ = self.template_kwargs

    @property
    def api_keys(self) -> tuple[str, ...]:
        return tuple(key.strip() for key in (self.api_key or "").split(",") if key.strip())

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """`default_chat_template_kwargs`, parsed."""
        try:
            value = json.loads(self.default_chat_template_kwargs)
        except ValueError as exc:
            raise ConfigError(f"--default-chat-template-kwargs is not valid JSON: {exc}") from None
        if not isinstance(value, dict):
            raise ConfigError("--default-chat-template-kwargs must be a JSON object")
        return value
