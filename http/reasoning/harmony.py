"""gpt-oss's format (Harmony): a text of messages, each with a header that names its channel and recipient."""

import dataclasses
import re
from collections.abc import Callable
from typing import Literal

from palladio.http.reasoning.family import PromptEnd, ReasoningFamily
from palladio.http.reasoning.reasoning_parser import ReasoningParser
from palladio.runtime.interface.request.grammar_spec import Thinking, ThoughtClosing
from palladio.runtime.text.tokenizers.stop_strings import Marks
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
SPECIALS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)

Kind = Literal["reasoning", "content", "call"]

_MAX_HEADER = 1024  # characters, <|message|> included
_HEADER_END = Marks((MESSAGE,))
_BODY_END = Marks((END, CALL, RETURN, START, CHANNEL))
_find_channel = re.compile(r"<\|channel\|>\s*(\w+)").search
_find_recipient = re.compile(r"\bto=([^\s<]+)").search


@dataclasses.dataclass(frozen=True, slots=True)
class Channels:
    """How a text of messages is marked.

    Attributes:
        beginnings: of a header.
        closers: end a message, and are part of it.
        ends: end it as well: all of these, and marks with which the next header begins.
        kind: header → what the message is.
    """

    beginnings: tuple[str, ...]
    closers: tuple[str, ...]
    ends: Marks
    kind: Callable[[str], Kind]


class HarmonyParser(ReasoningParser):
    """analysis is reasoning, final and commentary are content; a message to a function is content with its markup.

    A message ends at its closing token, or where the next one begins. Text where a header should stand is content.
    Messages that become the same kind of text are on lines of their own.

    Args:
        channels: gpt-oss's, or another family's.
        opening: the prompt's last message, from <|start|> on, as far as it goes.
        keep_calls: pass messages to functions on as they are, for a tool-call parser; else only what they say.
        keep_tags: drop no markup at all.
    """

    def __init__(
        self, channels: Channels, *, opening: str = "", keep_calls: bool = False, keep_tags: bool = False
    ) -> None:
        super().__init__()
        self._channels = channels
        self._keep_calls = keep_calls
        self._keep = keep_tags
        self._kind: Kind | None = None  # of the message whose body this is; None: in a header
        self._written: set[Kind] = set()
        self._is_first = True  # nothing of this message's body was emitted
        if CHANNEL in opening or MESSAGE in opening:
            self.feed(opening)
            self._written.clear()

    @property
    def is_reasoning(self) -> bool:
        return self._kind == "reasoning"

    @property
    def is_undecided(self) -> bool:
        return self._kind is None and bool(self._held)

    def _read(self) -> bool:
        return self._read_header() if self._kind is None else self._read_body(self._kind)

    def _read_rest(self, held: str) -> None:
        if self._kind is not None:
            self._emit(self._kind, held)
        elif not held.lstrip().startswith("<") or self._keep:
            self._emit("content", held)

    def _read_header(self) -> bool:
        """Takes a whole header, or nothing. Returns whether to go on."""
        held, beginnings = self._held, self._channels.beginnings
        begins = held[self._at : self._at + _MAX_HEADER].lstrip()
        found = _HEADER_END.find(held, self._at, self._at + _MAX_HEADER)
        length = (len(held) if found is None else found[0] + len(MESSAGE)) - self._at
        if length > _MAX_HEADER:
            self._kind = "content"
            if begins.startswith(beginnings):  # markup that leads nowhere: its first mark must not be found again
                start = held.index(begins[0], self._at) + 1
                self._emit("content", held[self._at : start])
                self._at = start
            return True
        if found is None and any(begins.startswith(mark) or mark.startswith(begins) for mark in beginnings):
            return False
        if found is None or not begins.startswith(beginnings):
            self._kind = "content"  # no header
            return True
        header = held[self._at : self._at + length]
        self._at += length
        self._kind = self._channels.kind(header)
        if self._kind == "call" and self._keep_calls and not header.lstrip().startswith("<"):
            header = f"{START}assistant{header}"  # the prompt has this part
        self._is_first = True
        self._mark(self._kind, header)
        return True

    def _read_body(self, kind: Kind) -> bool:
        found = self._channels.ends.find(self._held, self._at)
        if found is None:
            cut = self._channels.ends.hold_from(self._held, self._at)
            self._emit(kind, self._held[self._at : cut])
            self._at = cut
            return False
        position, mark = found
        self._emit(kind, self._held[self._at : position])
        self._at = position
        if mark in self._channels.closers:
            self._mark(kind, mark)
            self._at += len(mark)
        self._kind = None
        self._is_first = True
        return True

    def _mark(self, kind: Kind, markup: str) -> None:
        if self._keep or (kind == "call" and self._keep_calls):
            self._append(markup, is_reasoning=kind == "reasoning")

    def _emit(self, kind: Kind, text: str) -> None:
        if not text:
            return
        shown: Kind = "content" if kind == "call" else kind
        with_markup = self._keep or (kind == "call" and self._keep_calls)
        if self._is_first and shown in self._written and not with_markup:
            self._append("\n", is_reasoning=kind == "reasoning")
        self._is_first = False
        if not with_markup:
            self._written.add(shown)
        self._append(text, is_reasoning=kind == "reasoning")


def _kind_of(header: str) -> Kind:
    recipient, channel = _find_recipient(header), _find_channel(header)
    if recipient is not None and recipient[1].startswith("functions."):
        return "call"
    return "reasoning" if channel is not None and channel[1] == "analysis" else "content"


_GPT_OSS = Channels(
    beginnings=(START, CHANNEL, MESSAGE, CONSTRAIN, "to="),
    closers=(END, CALL, RETURN),
    ends=_BODY_END,
    kind=_kind_of,
)


@dataclasses.dataclass(frozen=True, slots=True)
class HarmonyFamily(ReasoningFamily):
    """gpt-oss."""

    @property
    def specials(self) -> tuple[str, ...]:
        return SPECIALS

    def new_parser(self, end: PromptEnd, *, has_tools: bool = False, keep_tags: bool = False) -> ReasoningParser:
        return HarmonyParser(_GPT_OSS, opening=last_message(end), keep_calls=has_tools, keep_tags=keep_tags)

    def thinking(
        self, tokenizer: Tokenizer, end: PromptEnd, budget: int | None, *, has_grammar: bool, has_tools: bool
    ) -> Thinking | None:
        """Until the final message begins: its header closes reasoning, and whatever else is before the answer. What a
        model may write between the channel and the message, such as the type of a JSON answer, is left out.

        With tools, until the analysis ends: calls follow in messages of their own. Where a grammar is to hold then,
        the output is taken to begin with analysis, as headers are in the grammar, too, and would be read as part of it.
        """
        header, is_inside, _ = last_message(end).partition(MESSAGE)
        if is_inside and "analysis" not in header:
            return None
        telling, *others = (_ids(tokenizer, text) for text in _closing_texts(has_tools))
        start = f"{CHANNEL}analysis{MESSAGE}"
        return Thinking(
            start_ids=tuple(tokenizer.encode(start, add_special_tokens=False)),
            end_ids=sum(others, telling),
            begun=bool(is_inside) or has_grammar or not has_tools,
            budget=budget,
            num_telling=len(telling) if others else None,
        )

    def closing(self, tokenizer: Tokenizer, end: PromptEnd, *, has_tools: bool) -> ThoughtClosing | None:
        """A message of analysis has no answer after it, also where it has ended itself; with tools, one that has ended
        may have a call after it. A call ends the output on any channel."""
        if any(tokenizer.special_id(mark) is None for mark in (CHANNEL, MESSAGE, END, CALL)):
            return None
        header, _, _ = last_message(end).partition(MESSAGE)
        analysis = f"{CHANNEL}analysis"
        marks = ((_ids(tokenizer, analysis), True), (_ids(tokenizer, CHANNEL), False))
        return ThoughtClosing(
            end_ids=sum((_ids(tokenizer, text) for text in _closing_texts(has_tools)), ()),
            begun=analysis in header,
            start_ids=(),
            marks=(*marks, (_ids(tokenizer, END), False)) if has_tools else marks,
            last_ids=_ids(tokenizer, CALL),
        )

    def guess_end(self, answer: str) -> PromptEnd:
        return PromptEnd("")


def _closing_texts(has_tools: bool) -> tuple[str, ...]:
    """What closes reasoning: see `HarmonyFamily.thinking`."""
    return (END,) if has_tools else (f"{CHANNEL}final", MESSAGE)


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def last_message(end: PromptEnd) -> str:
    """The prompt's last message, from its mark on."""
    begin = end.text.rfind(START)
    return "" if begin < 0 else end.text[begin:]
