"""Texts and conversations as token ids: how long they may be, what stays of them, and where they are tokenized."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import orjson

from palladio.http.prompts.chat_messages import content_text, continues_final_message
from palladio.http.prompts.chat_template import MAX_SECONDS, ChatTemplate
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError, RenderLimitError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.interface.request.pooling_params import EncodedText
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")

FIELD = "truncate_prompt_tokens"


@dataclasses.dataclass(frozen=True, slots=True)
class Truncation:
    """
    Attributes:
        limit: most tokens that stay.
        keeps_end: the last ones; else the first ones.
    """

    limit: int
    keeps_end: bool

    @classmethod
    def of(cls, room: LengthLimit, asked: int | None, reserved: int | None, *, is_automatic: bool) -> Self | None:
        """
        Args:
            asked: truncate_prompt_tokens: how many of the last tokens stay; -1: as many as fit; None: not given.
            reserved: tokens that are to be generated; None: as many as there is room for.
            is_automatic: --allow-auto-truncate: else as many of the first ones stay as leave room for a token.

        Returns:
            None: what is too long is refused.

        Raises:
            InvalidRequestError: what is asked for is out of range.
        """
        reserved = 1 if reserved is None else reserved
        if asked is None:
            return cls(room.limit - min(reserved, 1), keeps_end=False) if is_automatic else None
        if asked != -1 and not 1 <= asked <= room.limit:
            message = "{param} must be -1 (as many as fit) or in 1 … {limit} ({what}), got {asked}"
            raise InvalidRequestError.of(message, param=FIELD, limit=room.limit, what=room.name, asked=asked)
        return cls(max(1, room.limit - reserved) if asked == -1 else asked, keeps_end=True)

    def cut(self, token_ids: list[T], num_before: int = 0, num_behind: int = 0) -> list[T]:
        """What stays of a prompt, or of a list of something else for each of its tokens.

        Args:
            num_before, num_behind: special tokens around the text, which stay: what reads the last token of a text may
                count on the one that ends it.
        """
        if not self.cuts(token_ids):
            return token_ids
        kept = self.limit - num_before - num_behind
        if kept < 1:
            return token_ids[-self.limit :] if self.keeps_end else token_ids[: self.limit]
        end = len(token_ids) - num_behind
        text = token_ids[end - kept : end] if self.keeps_end else token_ids[num_before : num_before + kept]
        return token_ids[:num_before] + text + token_ids[end:]

    def cuts(self, token_ids: list[T]) -> bool:
        return len(token_ids) > self.limit


LONG_TEXT = 8192  # characters; longer texts are tokenized off the event loop, so that streams keep flowing
COUNTED_BASE, COUNTED_PER_TOKEN = 262_144, 32  # characters
ENTRY_SIZE = 64  # characters
CUT_MARGIN = 65_536  # characters: how a text begins and ends may depend on as many others


async def run_encoding(encode: Callable[[], T], num_characters: int) -> T:
    """Calls `encode`: in a thread if it has many characters to do, so that streams keep flowing."""
    return await asyncio.to_thread(encode) if num_characters > LONG_TEXT else encode()


def entries_size(entries: object, tools: Sequence[object] | None = None) -> int:
    """What messages, items or blocks, and tools count for in `run_encoding`, beside their texts."""
    size = ENTRY_SIZE * len(tools or ())
    if not isinstance(entries, list):
        return size
    contents = [entry.get("content") for entry in entries if isinstance(entry, dict)]
    return size + ENTRY_SIZE * (len(entries) + sum(len(content) for content in contents if isinstance(content, list)))


def required(tokenizer: Tokenizer | None) -> Tokenizer:
    """
    Raises:
        InvalidRequestError: the server runs without one.
    """
    if tokenizer is None:
        raise InvalidRequestError(
            "the server runs with --skip-tokenizer-init: send token ids to /v1/completions or /generate"
        )
    return tokenizer


class TextEncoder:
    """The tokenizer as the routes use it. Safe to use from several threads.

    Args:
        bounded: refuse a text that cannot fit the context before it is tokenized: for prompts to generate from. Others
            are only counted, and refused if they are longer than `max_counted`.
    """

    def __init__(self, engine: EngineClient, *, bounded: bool) -> None:
        self._engine = engine
        self._bounded = bounded
        self._longest_token = 0  # characters; found when first needed
        self._frame: tuple[int, int] | None = None  # found when first needed

    @property
    def tokenizer(self) -> Tokenizer:
        """
        Raises:
            InvalidRequestError: the server runs without one.
        """
        return required(self._engine.tokenizer)

    def encode(self, text: str, add_special_tokens: bool = True, truncation: Truncation | None = None) -> list[int]:
        """
        Args:
            truncation: what to do with a text that is too long; None: nothing.

        Raises:
            ContextLengthError: bounded, and the text would not fit even with the longest token everywhere.
            InvalidRequestError: not bounded, and longer than `max_counted`.
        """
        if truncation is not None:
            return self._encode_cut(text, truncation, add_special_tokens)
        self._check_length(len(text))
        return self.tokenizer.encode(text, add_special_tokens)

    def spans(self, text: str, add_special_tokens: bool, truncation: Truncation) -> list[tuple[int, int]] | None:
        """Which characters each token of `encode` is of, see `Tokenizer.spans`.

        Args:
            truncation: what was done with it; it has no effect on a text that was short enough.

        Returns:
            None: the tokenizer does not know, or the text is too long to be tokenized as a whole.
        """
        if len(text) > max(LONG_TEXT, LengthLimit.of(self._engine.info).limit * self._find_longest_token()):
            return None
        spans = self.tokenizer.spans(text, add_special_tokens)
        return None if spans is None else truncation.cut(spans, *(self.find_frame() if add_special_tokens else ()))

    def encode_pair(self, first: str, second: str, add_special_tokens: bool, limit: int | None) -> EncodedText:
        """Encode two texts together, as `Tokenizer.encode_pair` does.

        Raises:
            ContextLengthError, InvalidRequestError: as `encode`.
        """
        if limit is not None:  # no more than what holds the tokens that stay, even with the longest token everywhere
            enough = limit * self._find_longest_token() + CUT_MARGIN
            first, second = first[:enough], second[:enough]
        else:
            self._check_length(len(first) + len(second))
        return self.tokenizer.encode_pair(first, second, add_special_tokens, limit)

    def _check_length(self, num_characters: int) -> None:
        if not self._bounded:
            self.check_counted(num_characters)
        elif num_characters > LONG_TEXT:
            room = LengthLimit.of(self._engine.info)
            if num_characters > room.limit * self._find_longest_token():
                least = -(-num_characters // self._find_longest_token())
                raise ContextLengthError.of_prompt(
                    f"The input ({num_characters} characters) is longer than {room.name} ({room.limit} tokens) can "
                    "hold. Send a shorter prompt.",
                    *(least, room.limit, f"at least that many: it has {num_characters} characters"),
                )

    @property
    def max_counted(self) -> int:
        """Characters of a text that is only to be counted: some eight contexts of English, and more of a small one."""
        return COUNTED_BASE + COUNTED_PER_TOKEN * LengthLimit.of(self._engine.info).limit

    def check_counted(self, num_characters: int) -> None:
        """
        Raises:
            InvalidRequestError: it is too much to be counted.
        """
        if num_characters > self.max_counted:
            raise InvalidRequestError(
                f"The input ({num_characters} characters) is too long to be counted: at most {self.max_counted} "
                f"characters, {COUNTED_PER_TOKEN} for each token of the context and {COUNTED_BASE} more. Send it in "
                "parts.",
                param="prompt",
            )

    def _encode_cut(self, text: str, truncation: Truncation, add_special_tokens: bool) -> list[int]:
        """Tokenizes no more than what holds the tokens that stay, even with the longest token everywhere."""
        frame = self.find_frame() if add_special_tokens else ()
        tokenizer = self.tokenizer
        if len(text) > LONG_TEXT:
            enough = truncation.limit * self._find_longest_token() + CUT_MARGIN
            part = text[-enough:] if truncation.keeps_end else text[:enough]
            token_ids = tokenizer.encode(part, add_special_tokens)
            if len(part) == len(text) or truncation.cuts(token_ids):
                return truncation.cut(token_ids, *frame)
            # it has become shorter: white space that the tokenizer joins, for example
        return truncation.cut(tokenizer.encode(text, add_special_tokens), *frame)

    def find_frame(self) -> tuple[int, int]:
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


QUICK_SECONDS = 0.02  # on the event loop
MESSAGE_SIZE = 32  # characters that a message counts for, beside its own


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, and how it becomes a prompt.

    Attributes:
        add_special_tokens: default false: templates write the special tokens themselves.
        kwargs: chat_template_kwargs.
        tools: what the template writes of tools; None: nothing.
        truncation: of the prompt's token ids, where they are too many; its text is as rendered.
    """

    messages: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    kwargs: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    truncation: Truncation | None = None

    @property
    def size(self) -> int:
        """About how many characters there are to render."""
        values = [value for message in self.messages for value in message.values()]
        others = [value for value in values if not isinstance(value, str)]
        texts = sum(len(value) for value in values if isinstance(value, str))
        return texts + MESSAGE_SIZE * len(self.messages) + len(orjson.dumps((others, self.tools)))


@dataclasses.dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the model gets it.

    Attributes:
        text: as the template rendered it.
        token_ids: of that text.
        continued: the text of the message that is continued; None: a new one begins.
    """

    text: str
    token_ids: list[int]
    continued: str | None


WriteGrammar = Callable[[], Grammar | None]


async def encode_chat(
    template: ChatTemplate,
    encoder: TextEncoder,
    conversation: Conversation,
    write_grammar: WriteGrammar = lambda: None,
    size: int = 0,
) -> tuple[ChatPrompt, Grammar | None]:
    """The prompt of a conversation, and the grammar of its answer.

    What is short is done at once. What takes long to render goes to the template's few threads; tokenizing and the
    grammar, which have no time limit, never do: they would hold up other conversations.

    Args:
        size: what writing the grammar counts for, in characters.

    Raises:
        InvalidRequestError: the messages are malformed, there is no template, it refuses them, or it does not read what
            it is given (kwargs); or there is no such grammar.
        RenderLimitError: rendering takes too long.
    """
    given = conversation

    def render(seconds: float) -> str:
        settings = (given.add_generation_prompt, given.continue_final_message, given.kwargs, given.tools)
        return template.render(encoder.tokenizer, given.messages, *settings, seconds=seconds)

    def finish(text: str) -> tuple[ChatPrompt, Grammar | None]:
        token_ids = encoder.encode(text, bool(given.add_special_tokens), given.truncation)
        continues = continues_final_message(given.messages, given.add_generation_prompt, given.continue_final_message)
        continued = content_text(given.messages[-1]) if continues else None
        return ChatPrompt(text, token_ids, continued), write_grammar()

    text: str | None = None
    if given.size <= LONG_TEXT and not template.is_of_request:
        with contextlib.suppress(RenderLimitError):
            text = render(QUICK_SECONDS)
    if text is None:
        text = await asyncio.get_running_loop().run_in_executor(template.threads, render, MAX_SECONDS)
    rendered = text
    return await run_encoding(lambda: finish(rendered), max(len(rendered), size))
