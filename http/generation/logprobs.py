"""Log-probabilities in the shapes that clients know: OpenAI chat's, OpenAI's legacy arrays, vLLM's prompt_logprobs."""

from collections.abc import Callable, Sequence
from typing import Any

from palladio.runtime.interface.outputs.token_output import TokenLogprob
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

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
        entry(item.token_id, item.logprob or 0.0) | {"top_logprobs": [entry(*top) for top in _beside(item)]}
        for item in logprobs
    ]
    return {"content": content, "refusal": None}


def _beside(item: TokenLogprob) -> tuple[tuple[int, float], ...]:
    """What stands in `top_logprobs`: the likeliest, or if tokens were asked for these, after the token itself."""
    if not item.asked or item.logprob is None:
        return item.top
    return ((item.token_id, item.logprob), *(pair for pair in item.asked if pair[0] != item.token_id))


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
    """Builds OpenAI's legacy arrays for one choice, piece by piece: text offsets run on over a stream's chunks.

    Each position's `top_logprobs` has the chosen token and the likeliest ones, or those of logprob_token_ids. They are
    named by their texts; of several tokens with the same text, all but the first are named `token_id:ID`, so that none
    hides another.

    Args:
        prompt_ids: of the prompt.
        echo: the prompt's text as the choice shows it; None: it does not.
        as_ids: name every token `token_id:ID`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        *,
        echo: str | None = None,
        as_ids: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._num_beside = len(params.logprob_token_ids or ()) + 1 if params.logprob_token_ids else params.logprobs or 0
        self._as_ids = as_ids
        self._echo = echo or ""
        spaces = params.spaces_between_special_tokens
        shows_all = self._echo == tokenizer.decode(prompt_ids, False, spaces) if echo else False
        self._prompt = tokenizer.new_stream(skip_special_tokens=not shows_all, spaces_between_special_tokens=spaces)
        self._output = tokenizer.new_stream(
            prompt_ids,
            skip_special_tokens=params.skip_special_tokens,
            visible_special_ids=params.visible_special_ids,
            spaces_between_special_tokens=spaces,
        )
        self._prompt_length = 0
        self._length = len(self._echo)

    def of_prompt(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The arrays of the prompt's tokens."""
        offsets: list[int] = []
        for item in logprobs:
            begin, self._prompt_length = self._place(self._prompt.push, self._prompt_length, item.token_id)
            offsets.append(min(begin, len(self._echo)))
        return self._arrays(logprobs, offsets)

    def of_output(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The arrays of the next tokens of the output."""
        offsets: list[int] = []
        for item in logprobs:
            begin, self._length = self._place(self._output.push, self._length, item.token_id)
            offsets.append(begin)
        return self._arrays(logprobs, offsets)

    def _place(self, push: Callable[[int], str], length: int, token_id: int) -> tuple[int, int]:
        """Return where a token's text begins, and the length of all text including it.

        Args:
            length: characters of text before the token.
        """
        text = push(token_id)
        own = self._tokenizer.token_text(token_id)
        # what comes out with a token may begin with the rest of earlier ones: bytes that make no code point
        begin = length + len(text) - len(own) if own and text.endswith(own) else length
        return begin, length + len(text)

    def _arrays(self, logprobs: Sequence[TokenLogprob], offsets: list[int]) -> dict[str, Any]:
        return {
            "tokens": [self._name(item.token_id) for item in logprobs],
            "token_logprobs": [None if item.logprob is None else finite(item.logprob) for item in logprobs],
            "top_logprobs": [self._top(item) for item in logprobs] if self._num_beside else None,
            "text_offset": offsets,
        }

    def _top(self, item: TokenLogprob) -> dict[str, float] | None:
        if item.logprob is None:
            return None
        named = {self._name(item.token_id): finite(item.logprob)}
        for token_id, logprob in _beside(item)[: self._num_beside]:
            if token_id != item.token_id:
                name = self._name(token_id)
                named[_id_name(token_id) if name in named else name] = finite(logprob)
        return named

    def _name(self, token_id: int) -> str:
        return _id_name(token_id) if self._as_ids else token_name(self._tokenizer, token_id)


def join_arrays(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The legacy arrays of consecutive tokens as one."""
    return {name: None if values is None else values + second[name] for name, values in first.items()}


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"
