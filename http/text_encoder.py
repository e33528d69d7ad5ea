"""Text → token ids: long texts off the event loop, and those that cannot fit the context not at all."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from palladio.http.truncation import Truncation
from palladio.runtime.async_engine import LONG_TEXT, Room
from palladio.runtime.engine_client import EngineClient
from palladio.runtime.errors import ContextLengthError, InvalidRequestError
from palladio.runtime.tokenizer import Tokenizer

T = TypeVar("T")


async def run_encoding(encode: Callable[[], T], num_characters: int) -> T:
    """Calls `encode`: in a thread if it has many characters to do, so that streams keep flowing."""
    return await asyncio.to_thread(encode) if num_characters > LONG_TEXT else encode()


class TextEncoder:
    """The tokenizer as the routes use it. Safe to use from several threads.

    Args:
        bounded: refuse a text that cannot fit the context before it is tokenized: for prompts to generate from.
    """

    def __init__(self, engine: EngineClient, *, bounded: bool) -> None:
        self._engine = engine
        self._bounded = bounded
        self._longest_token = 0  # characters; found when first needed
        self._frame: tuple[int, int] | None = None  # likewise

    @property
    def tokenizer(self) -> Tokenizer:
        """
        Raises:
            InvalidRequestError: the server runs without one.
        """
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise InvalidRequestError(
                "the server runs with --skip-tokenizer-init: send token ids to /v1/completions or /generate"
            )
        return tokenizer

    def encode(self, text: str, add_special_tokens: bool = True, truncation: Truncation | None = None) -> list[int]:
        """
        Args:
            truncation: what to do with a text that is too long; None: nothing.

        Raises:
            ContextLengthError: bounded, and the text would not fit even with the longest token everywhere.
        """
        if truncation is not None:
            token_ids = self.tokenizer.encode(text, add_special_tokens)
            return truncation.cut(token_ids, *(self._find_frame() if add_special_tokens else ()))
        if self._bounded and len(text) > LONG_TEXT:
            room = Room.of(self._engine.info)
            if len(text) > room.limit * self._find_longest_token():
                raise ContextLengthError(
                    f"The input ({len(text)} characters) is longer than {room.name} ({room.limit} tokens) can hold. "
                    "Send a shorter prompt.",
                    param="prompt",
                )
        return self.tokenizer.encode(text, add_special_tokens)

    def _find_frame(self) -> tuple[int, int]:
        """How many special tokens the tokenizer puts before and behind a text."""
        if self._frame is None:
            plain, framed = (self.tokenizer.encode("a", add_special_tokens=added) for added in (False, True))
            others = len(framed) - len(plain)
            before = next((i for i in range(others + 1) if framed[i : i + len(plain)] == plain), 0)
            self._frame = before, others - before
        return self._frame

    def _find_longest_token(self) -> int:
        if not self._longest_token:
            tokenizer = self.tokenizer
            self._longest_token = max(len(tokenizer.token_text(i)) for i in range(tokenizer.vocab_size))
        return self._longest_token
