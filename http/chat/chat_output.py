"""From a sample's text to its chat message: reasoning, content, tool calls. Streams and whole answers read it alike."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Self

import orjson

from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.generation.chunks import UNFINISHED, ChatChunks, StreamSettings
from palladio.http.generation.usage import finish_fields
from palladio.http.reasoning.counter import ReasoningCounter
from palladio.http.reasoning.family import PromptEnd
from palladio.http.reasoning.reasoning_parser import ReasoningParser, ReasoningPiece
from palladio.http.tool_calls.reading.base import ToolCallParser, ToolDelta, ToolPiece
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class MessagePiece:
    """What became certain of a message: one of the three.

    Attributes:
        call: one piece of one call, since there are clients that read only the first of a chunk's `tool_calls`.
    """

    reasoning: str = ""
    content: str = ""
    call: ToolDelta | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MessagePlan:
    """How to read the samples of a request.

    Attributes:
        end: where the prompt leaves them.
        new_tools: makes a tool-call parser; None: there are no tools.
        new_whole: makes a parser of all of a message, which reads what a response template has made of its text; None:
            the other two read it.
    """

    reasoning: ReasoningPlan
    end: PromptEnd
    new_tools: Callable[[], ToolCallParser] | None = None
    new_whole: "Callable[[], MessageParser] | None" = None

    @property
    def is_plain(self) -> bool:
        """All text is content."""
        return self.reasoning.family is None and self.new_tools is None and self.new_whole is None

    def new_parser(self) -> "MessageParser":
        return self.new_text_parser() if self.new_whole is None else self.new_whole()

    def new_text_parser(self) -> "MessageParser":
        """One for a sample's own text, whatever reads its outputs."""
        return MessageParser(self._new_reasoning(), self.new_tools() if self.new_tools else None, self.reasoning)

    def new_counter(self, tokenizer: Tokenizer, params: SamplingParams) -> ReasoningCounter | None:
        """Counts the reasoning of a sample; None: it has none."""
        family = self.reasoning.family
        if family is None:
            return None
        return ReasoningCounter(family.new_parser(self.end, has_tools=self.new_tools is not None), tokenizer, params)

    def _new_reasoning(self) -> ReasoningParser | None:
        family, keeps = self.reasoning.family, not self.reasoning.separates and self.reasoning.includes
        if family is None or (keeps and self.new_tools is None):
            return None
        return family.new_parser(self.end, has_tools=self.new_tools is not None, keep_tags=keeps)


class MessageParser:
    """Reads one sample. What its pieces add up to does not depend on how the text was cut.

    Args:
        reasoning: None: the text has none, or it stays in the content.
        tools: None: the text has no calls.

    Attributes:
        num_calls: tool calls so far.
    """

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolCallParser | None, plan: ReasoningPlan) -> None:
        self.num_calls = 0
        self._reasoning = reasoning
        self._tools = tools
        self._plan = plan
        self._gathered: list[str] = []  # reasoning that is to be sent in one piece
        self._pieces: list[MessagePiece] = []

    def feed(self, text: str) -> list[MessagePiece]:
        """Takes new text, returns what became certain, in order."""
        if text:
            self._take((ReasoningPiece(content=text),) if self._reasoning is None else self._reasoning.feed(text))
        return self._give()

    def take_plain(self, text: str) -> bool | None:
        """Takes new text if `feed` would give all of it in one piece, and that can be seen at a glance.

        Args:
            text: not empty.

        Returns:
            Whether it is reasoning, else it is content; None: it has not been taken.
        """
        if self._tools is not None or self._gathered:
            return None
        reasoning = self._reasoning
        if reasoning is None:
            return False
        is_reasoning = reasoning.is_reasoning
        if is_reasoning and not (self._plan.includes and self._plan.separates and self._plan.streams):
            return None
        return is_reasoning if reasoning.take_plain(text) else None

    def finish(self) -> list[MessagePiece]:
        """What was held back, at the end of the text."""
        if self._reasoning is not None:
            self._take(self._reasoning.finish())
        if self._tools is not None:
            last = self._tools.finish()
            self._add_read(last)
        self._release()
        return self._give()

    def _give(self) -> list[MessagePiece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _take(self, pieces: Iterable[ReasoningPiece]) -> None:
        for piece in pieces:
            if piece.reasoning:
                self._add_reasoning(piece.reasoning)
            elif self._tools is None:
                self._add(MessagePiece(content=piece.content))
            else:
                self._add_read(self._tools.feed(piece.content))

    def _add_reasoning(self, text: str) -> None:
        if not self._plan.includes:
            return
        if not self._plan.separates:
            self._add(MessagePiece(content=text))
        elif self._plan.streams:
            self._pieces.append(MessagePiece(reasoning=text))
        else:
            self._gathered.append(text)

    def _add_read(self, read: ToolPiece) -> None:
        """The end of a call that began earlier comes before the text: a call that breaks off is closed, and what broke
        it is text."""
        begun_earlier = len(list(itertools.takewhile(lambda call: call.name is None, read.calls)))
        for call in read.calls[:begun_earlier]:
            self._add(MessagePiece(call=call))
        if read.content:
            self._add(MessagePiece(content=read.content))
        for call in read.calls[begun_earlier:]:
            self.num_calls = max(self.num_calls, call.index + 1)
            self._add(MessagePiece(call=call))

    def _add(self, piece: MessagePiece) -> None:
        self._release()
        self._pieces.append(piece)

    def _release(self) -> None:
        if self._gathered:
            self._pieces.append(MessagePiece(reasoning="".join(self._gathered)))
            self._gathered.clear()


@dataclasses.dataclass(frozen=True, slots=True)
class ChatMessage:
    """A whole message.

    Attributes:
        calls: OpenAI's `tool_calls`.
    """

    content: str
    reasoning: str
    calls: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, parser: MessageParser, text: str) -> Self:
        """Read a whole text."""
        pieces = parser.feed(text) + parser.finish()
        calls: dict[int, dict[str, Any]] = {}
        for delta in (piece.call for piece in pieces if piece.call is not None):
            if delta.index not in calls:
                function = {"name": delta.name, "arguments": ""}
                calls[delta.index] = {"id": delta.id, "type": "function", "function": function}
            calls[delta.index]["function"]["arguments"] += delta.arguments
        content = "".join(piece.content for piece in pieces)
        return cls(content, "".join(piece.reasoning for piece in pieces), tuple(calls.values()))

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's `message`: the content is null where there is something else instead."""
        return {
            "role": "assistant",
            "content": self.content or (None if self.reasoning or self.calls else ""),
            "reasoning_content": self.reasoning or None,
            "reasoning": self.reasoning or None,
            "tool_calls": self.calls or None,
            "refusal": None,
        }


def delta_fields(piece: MessagePiece) -> dict[str, Any]:
    """OpenAI's `delta` of a piece."""
    if piece.reasoning:
        return {"content": None, "reasoning_content": piece.reasoning, "reasoning": piece.reasoning}
    if piece.call is not None:
        return {"content": None, "reasoning_content": None, "tool_calls": [_call_delta(piece.call)]}
    return {"content": piece.content, "reasoning_content": None}


def _call_delta(delta: ToolDelta) -> dict[str, Any]:
    if delta.name is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


_HERE = "\0"  # in place of a text


class MessageChunks(ChatChunks):
    """Each piece of a message is a chunk; the first chunk has the logprobs and ids of the tokens since the last one.

    What the parsers hold back at the end comes before the chunk with the finish reason.
    """

    def __init__(
        self, settings: StreamSettings, tokenizer: Tokenizer, plan: MessagePlan, params: SamplingParams
    ) -> None:
        super().__init__(settings, tokenizer)
        self._quick, self._is_plain = False, self._quick
        self._plan = plan
        self._params = params
        self._counts = settings.include_usage or settings.continuous_usage
        self._parsers: dict[int, MessageParser] = {}
        self._counters: dict[int, ReasoningCounter] = {}
        self._plain_frames: dict[tuple[int, bool], list[bytes]] = {}  # what stands round the text, by index and kind

    def write(self, output: RequestOutput) -> bytes:
        if self._counts:
            self._count(output)
        index, text = output.index, output.text
        if self._is_plain and text and output.finish is None and index in self._parsers:
            is_reasoning = self._parsers[index].take_plain(text)
            if is_reasoning is not None:
                frame = self._plain_frames.get((index, is_reasoning)) or self._new_frame(index, is_reasoning)
                return orjson.dumps(text).join(frame)
        return super().write(output)

    def _new_frame(self, index: int, is_reasoning: bool) -> list[bytes]:
        piece = MessagePiece(reasoning=_HERE) if is_reasoning else MessagePiece(content=_HERE)
        frame = self._piece_choice(index, piece, b"null", b"").split(orjson.dumps(_HERE))
        frame[0], frame[-1] = self._head + frame[0], frame[-1] + self._tail
        self._plain_frames[index, is_reasoning] = frame
        return frame

    def _count(self, output: RequestOutput) -> None:
        counter = self._counters.get(output.index) or self._plan.new_counter(self._tokenizer, self._params)
        if counter is not None:
            self._counters[output.index] = counter
            counter.add(output.token_ids)
            self._usage.note_reasoning(output.index, counter.count)

    def _flush(self, output: RequestOutput) -> bytes:
        index = output.index
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self._plan.new_parser()
        pieces = parser.feed(output.take_text())
        if output.finish is not None:
            pieces += parser.finish()
        if not pieces and self._has_tokens(output):
            pieces = [MessagePiece()]
        if not pieces:
            return b""
        logprobs, ids = self._of_tokens(output)
        chunks = b""
        for piece in pieces:
            chunks += self._chunk(self._piece_choice(index, piece, logprobs, ids))
            logprobs, ids = b"null", b""
        self._sent.add(index)
        return chunks

    def _piece_choice(self, index: int, piece: MessagePiece, logprobs: bytes, extra: bytes) -> bytes:
        if piece.content:
            return self._text_choice(index, orjson.dumps(piece.content), logprobs, extra)
        delta = orjson.dumps(delta_fields(piece))
        return b'{"index":%d,"delta":%b,"logprobs":%b%b%b}' % (index, delta, logprobs, UNFINISHED, extra)

    def _final_choice(self, index: int, finish: FinishReason) -> bytes:
        has_calls = self._parsers[index].num_calls > 0
        choice = {"index": index, "delta": {"reasoning_content": None}, "logprobs": None}
        choice |= finish_fields(finish, has_calls=has_calls) | self._usage.closed_fields(index)
        return orjson.dumps(choice)
