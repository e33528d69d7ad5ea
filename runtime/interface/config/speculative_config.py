"""Speculative decoding: the flags that say who proposes tokens, and how many."""

import dataclasses
import json
from typing import Any, Literal, NamedTuple

from palladio.runtime.interface.config.field_checks import check_fields
from palladio.runtime.interface.errors import ConfigError

MAX_DRAFT_TOKENS = 32
MAX_MATCH = 64
VLLM_MATCH = 5  # tokens that have to agree, where vLLM's JSON does not say
_VLLM_KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_VLLM_METHODS = ("ngram", "[ngram]", "ngram_gpu")


class NgramSettings(NamedTuple):
    """Settings of the matcher, see NgramProposer: tokens that it proposes at once, and tokens that have to agree."""

    num_drafts: int
    min_match: int
    max_match: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Speculative decoding.

    Attributes:
        speculative_algorithm: Propose draft tokens and verify several of them in one decode step. The tokens of an
            answer stay the same; text that repeats itself takes fewer steps. NGRAM: drafts are the tokens that followed
            the same text earlier in the request. Default: off.
        speculative_num_draft_tokens: Tokens that a request computes in a decode step: the newest one and its drafts.
        speculative_ngram_min_match_window_size: NGRAM: minimum number of newest tokens that must match earlier text.
        speculative_ngram_max_match_window_size: NGRAM: maximum number of newest tokens to compare. The earlier text
            with the longest match is used.
        speculative_config: The same as JSON with vLLM's keys: method (ngram), num_speculative_tokens, prompt_lookup_min
            and prompt_lookup_max. In place of the flags above.
    """

    speculative_algorithm: Literal["NGRAM"] | None = None
    speculative_num_draft_tokens: int = 4
    speculative_ngram_min_match_window_size: int = 1
    speculative_ngram_max_match_window_size: int = 12
    speculative_config: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def ngram(self) -> NgramSettings | None:
        """What is asked for; None: speculative decoding is off.

        Raises:
            ConfigError: a value is out of range, or flags contradict each other.
        """
        if self.speculative_config is not None:
            self._refuse_others("is given by --speculative-config already: leave one of them out")
            return _of_vllm(self.speculative_config)
        tokens = self.speculative_num_draft_tokens
        low, high = self.speculative_ngram_min_match_window_size, self.speculative_ngram_max_match_window_size
        if not 2 <= tokens <= MAX_DRAFT_TOKENS:
            raise ConfigError(
                f"--speculative-num-draft-tokens must be in 2 … {MAX_DRAFT_TOKENS} (the newest token is one of them), "
                f"got {tokens}"
            )
        if not 1 <= low <= high <= MAX_MATCH:
            raise ConfigError(
                "--speculative-ngram-min-match-window-size and --speculative-ngram-max-match-window-size must be in "
                f"1 … {MAX_MATCH}, the first not over the second; got {low} and {high}"
            )
        if self.speculative_algorithm is None:
            self._refuse_others("needs --speculative-algorithm NGRAM")
            return None
        return NgramSettings(tokens - 1, low, high)

    @property
    def num_drafts(self) -> int:
        """Tokens that are proposed for a request at once; 0: speculative decoding is off."""
        return 0 if self.ngram is None else self.ngram.num_drafts

    def _refuse_others(self, why: str) -> None:
        """Refuse all fields but the JSON.

        Raises:
            ConfigError: one of them is set; the message ends with `why`.
        """
        for field in dataclasses.fields(self):
            if field.name != "speculative_config" and vars(self)[field.name] != field.default:
                raise ConfigError(f"--{field.name.replace('_', '-')} {why}")


def check_speculation(speculative: SpeculativeConfig, num_decode_steps: int, is_embedding: bool) -> None:
    """
    Raises:
        ConfigError: a value is out of range, or does not go with another flag.
    """
    if speculative.ngram is None:
        return
    flag = "--speculative-algorithm" if speculative.speculative_config is None else "--speculative-config"
    if is_embedding:
        raise ConfigError(f"--is-embedding has no decode steps: leave {flag} out")
    if num_decode_steps > 1:
        raise ConfigError(
            f"{flag} and --num-continuous-decode-steps both compute several tokens in a step: give one of them"
        )


def _of_vllm(text: str) -> NgramSettings:
    """Reads vLLM's JSON; what it leaves out has vLLM's defaults."""
    flag = "--speculative-config"
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} must be a JSON object, got {text!r}: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{flag} must be a JSON object, got {text!r}")
    method = given.get("method") or given.get("model")
    if method not in _VLLM_METHODS:
        raise ConfigError(f"{flag}: method must be ngram, got {method!r}; draft models are not supported yet")
    if unknown := [key for key in given if key not in _VLLM_KEYS]:
        raise ConfigError(f"{flag}: {unknown[0]} is not supported; supported: {', '.join(_VLLM_KEYS)}")
    count = _number(given, "num_speculative_tokens", MAX_DRAFT_TOKENS - 1)
    if count is None:
        raise ConfigError(f"{flag}: num_speculative_tokens is missing")
    low, high = (_number(given, f"prompt_lookup_{end}", MAX_MATCH) for end in ("min", "max"))
    low, high = low or high or VLLM_MATCH, high or low or VLLM_MATCH
    if low > high:
        raise ConfigError(f"{flag}: prompt_lookup_min must not be over prompt_lookup_max, got {low} and {high}")
    return NgramSettings(count, low, high)


def _number(given: dict[str, Any], key: str, most: int) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"--speculative-config: {key} must be in 1 … {most}, got {value!r}")
    return value
