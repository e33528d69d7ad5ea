"""Grammars: the flags of response_format, regex, ebnf and forced tool calls."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.config.field_checks import check_fields
from palladio.runtime.interface.errors import ConfigError

MIN_GRAMMAR_CACHE_BYTES = 1 << 24  # what one larger grammar takes, and some small ones


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrammarConfig:
    """Grammars: response_format, regex, ebnf and forced tool calls.

    Attributes:
        grammar_backend: llguidance compiles grammars. none: requests with a grammar are refused.
        constrained_json_whitespace_pattern: Regular expression for the whitespace allowed between JSON tokens. Default:
            up to 64 whitespace characters.
        constrained_json_disable_any_whitespace: Generate JSON without whitespace.
        json_additional_properties: Whether an object may have properties that its JSON schema does not list, where the
            schema does not say. closed: it may not, as in SGLang. standard: it may.
        grammar_cache_bytes: Memory for compiled grammars, in use and cached. One grammar may take a quarter of it, at
            most 64 MiB.
    """

    grammar_backend: Literal["llguidance", "none"] = "llguidance"
    constrained_json_whitespace_pattern: str | None = None
    constrained_json_disable_any_whitespace: bool = False
    json_additional_properties: Literal["closed", "standard"] = "closed"
    grammar_cache_bytes: int = 268_435_456

    def __post_init__(self) -> None:
        check_fields(self)
        if self.constrained_json_disable_any_whitespace and self.constrained_json_whitespace_pattern is not None:
            raise ConfigError(
                "--constrained-json-disable-any-whitespace and --constrained-json-whitespace-pattern contradict each "
                "other: give one of them"
            )
        if self.grammar_cache_bytes < MIN_GRAMMAR_CACHE_BYTES:
            raise ConfigError(
                f"--grammar-cache-bytes must be at least {MIN_GRAMMAR_CACHE_BYTES} (16 MiB), got "
                f"{self.grammar_cache_bytes}"
            )
