"""Speculative decoding: the flags that say who proposes tokens, and how many."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.field_checks import check_fields

MAX_DRAFT_TOKENS = 32
MAX_MATCH = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Speculative decoding.

    Attributes:
        speculative_algorithm: Propose tokens, and verify several of them in one decode step. The tokens of an answer
            stay the same; steps are fewer where a text repeats itself. NGRAM: what followed the newest tokens where
            they stood earlier in the same request. Default: off.
        speculative_num_draft_tokens: Tokens that a request computes in a decode step: the newest one, and the proposed
            ones after it.
        speculative_ngram_min_match_window_size: NGRAM: newest tokens that have to be found again, at least.
        speculative_ngram_max_match_window_size: NGRAM: newest tokens that are compared, at most. The place where most
            of them agree is taken.
    """

    speculative_algorithm: Literal["NGRAM"] | None = None
    speculative_num_draft_tokens: int = 4
    speculative_ngram_min_match_window_size: int = 1
    speculative_ngram_max_match_window_size: int = 12

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_drafts(self) -> int:
        """Tokens that are proposed for a request at once; 0: speculative decoding is off."""
        return 0 if self.speculative_algorithm is None else self.speculative_num_draft_tokens - 1


def check_speculation(speculative: SpeculativeConfig, num_decode_steps: int, is_embedding: bool) -> None:
    """
    Raises:
        ConfigError: a value is out of range, or does not go with another flag.
    """
    tokens = speculative.speculative_num_draft_tokens
    low = speculative.speculative_ngram_min_match_window_size
    high = speculative.speculative_ngram_max_match_window_size
    if not 2 <= tokens <= MAX_DRAFT_TOKENS:
        raise ConfigError(
            f"--speculative-num-draft-tokens must be in 2 … {MAX_DRAFT_TOKENS} (the newest token is one of them), got "
            f"{tokens}"
        )
    if not 1 <= low <= high <= MAX_MATCH:
        raise ConfigError(
            "--speculative-ngram-min-match-window-size and --speculative-ngram-max-match-window-size must be in 1 … "
            f"{MAX_MATCH}, the first not over the second; got {low} and {high}"
        )
    if speculative.speculative_algorithm is None:
        for field in dataclasses.fields(speculative):
            if vars(speculative)[field.name] != field.default:
                raise ConfigError(f"--{field.name.replace('_', '-')} needs --speculative-algorithm NGRAM")
        return
    if is_embedding:
        raise ConfigError("--is-embedding has no decode steps: leave --speculative-algorithm out")
    if num_decode_steps > 1:
        raise ConfigError(
            "--speculative-algorithm and --num-continuous-decode-steps both compute several tokens in a step: give one "
            "of them"
        )
