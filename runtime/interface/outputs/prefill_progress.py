"""PrefillProgress: how far a prompt's computation has come, for requests that ask."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillProgress:
    """The state of one request's prefill.

    Attributes:
        num_prompt_tokens: length of the prompt.
        num_cached: prompt tokens found in the prefix cache.
        num_computed: prompt tokens whose keys and values are in the cache, those found there included.
        seconds: since the first part of the prompt was dispatched.
    """

    num_prompt_tokens: int
    num_cached: int
    num_computed: int
    seconds: float

    def as_dict(self) -> dict[str, int]:
        """Returns llama.cpp's `prompt_progress`."""
        return {
            "total": self.num_prompt_tokens,
            "cache": self.num_cached,
            "processed": self.num_computed,
            "time_ms": round(1000 * self.seconds),
        }
