"""Log-probabilities in the shapes that clients know: OpenAI chat's, OpenAI's legacy arrays, vLLM's prompt_logprobs."""

import codecs
from collections.abc import Sequence
from typing import Any

from palladio.runtime.outputs import TokenLogprob
from palladio.runtime.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text; a token that is not UTF-8 on its own is shown by its bytes, so that no two look the same."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """OpenAI chat's `logprobs`."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_name(tokenizer, token_id),
            "logprob": finite(logprob),
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    content = [
        entry(item.token_id, item.logprob or 0.0) | {"top_logprobs": [entry(*top) for top in item.top]}
        for item in logprobs
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob], num_top: int
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: token id → logprob, rank and text for each position; null for the first.

    The rank is null for a prompt token that is not among the likeliest.
    """
    positions: list[dict[str, Any] | None] = []
    for item in logprobs:
        if item.logprob is None:
            positions.append(None)
            continue
        ranked: dict[int, tuple[float, int | None]] = {item.token_id: (item.logprob, None)}
        ranked |= {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(item.top[:num_top], 1)}
        positions.append(
            {
                str(token_id): {
                    "logprob": finite(logprob),
                    "rank": rank,
                    "decoded_token": token_name(tokenizer, token_id),
                }
                for token_id, (logprob, rank) in ranked.items()
            }
        )
    return positions


class LegacyLogprobs:
    """Builds OpenAI's legacy arrays for one choice, piece by piece: text offsets run on over a stream's chunks."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def arrays(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The arrays of the next tokens."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for item in logprobs:
            name = token_name(self._tokenizer, item.token_id)
            tokens.append(name)
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(item.token_id)))
            if item.logprob is None:
                values.append(None)
                tops.append(None)
                continue
            values.append(finite(item.logprob))
            top = {token_name(self._tokenizer, i): finite(logprob) for i, logprob in item.top[: self._num_top]}
            tops.append({name: finite(item.logprob)} | top if self._num_top else None)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
