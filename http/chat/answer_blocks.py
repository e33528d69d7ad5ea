"""A sample as blocks (reasoning, text, calls) in the order in which they come: what newer routes than chat answer."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from palladio.http.chat.chat_output import MessagePiece
from palladio.http.chat.chat_run import ChatRun
from palladio.http.chat.text_logprobs import TextLogprobs
from palladio.http.generation.usage import Usage
from palladio.http.tool_calls.reading.base import ToolDelta
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob

BlockKind = Literal["reasoning", "text", "call"]


@dataclasses.dataclass(slots=True)
class Block:
    """One block.

    Attributes:
        position: among all blocks, from 0.
        call: for a call: its first piece, which has id and name; None for others.
        text: so far: of a call, its arguments.
        logprobs: of a text, if they were asked for; complete when the block ends.
    """

    position: int
    kind: BlockKind
    call: ToolDelta | None = None
    text: str = ""
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)

    def add(self, text: str) -> None:
        """Text that comes next."""
        self.text += text

    def add_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add log-probabilities of the next tokens."""
        self.logprobs += logprobs


class BlockWriter:
    """The common part of EventWriters that send blocks; subclasses say how.

    Neither the blocks nor what is in them depend on how the text was cut.

    Attributes:
        usage: usage of the sample so far.
        finish: how it ended; None: it has not.
    """

    ALWAYS_TEXT = False  # a sample of nothing at all is an empty text

    def __init__(self, run: ChatRun) -> None:
        self.usage = Usage(1)
        self.finish: FinishReason | None = None
        self._reader = run.plan.new_parser()
        self._has_tools = run.plan.new_tools is not None
        self._counter = run.plan.new_counter(run.tokenizer, run.request.params)
        asked = run.request.params.logprobs is not None
        self._text_logprobs = TextLogprobs(run.plan, run.tokenizer, run.request.params) if asked else None
        self._has_begun = False
        self._num_texts = 0
        self._num_blocks = 0
        self._block: Block | None = None

    def write(self, output: RequestOutput) -> bytes:
        """The events of an output."""
        self._count(output)
        events = b"" if self._has_begun else self._begin()
        self._has_begun = True
        for piece in self._pieces(output):
            events += self._write(piece)
        if output.finish is None:
            return events
        self.finish = output.finish
        if self._num_blocks == 0 and self.ALWAYS_TEXT:
            events += self._enter("text", None)
        return events + self._leave() + self._end()

    def _begin(self) -> bytes:
        raise NotImplementedError

    def _open(self, block: Block) -> bytes:
        raise NotImplementedError

    def _add(self, block: Block, text: str, logprobs: list[TokenLogprob]) -> bytes:
        """Write what is new in a block.

        Args:
            text: the new text; `block` already contains it.
            logprobs: log-probabilities of new tokens.
        """
        raise NotImplementedError

    def _close(self, block: Block) -> bytes:
        raise NotImplementedError

    def _end(self) -> bytes:
        """After the last block."""
        raise NotImplementedError

    @property
    def is_cut(self) -> bool:
        """It did not end by itself."""
        return self.finish is not None and self.finish.type != "stop"

    def _count(self, output: RequestOutput) -> None:
        self.usage.add(output)
        if self._counter is not None:
            self._counter.add(output.token_ids)
            self.usage.note_reasoning(0, self._counter.count)
        if self._text_logprobs is not None:
            self._text_logprobs.add(output.logprobs or (), ends=output.finish is not None)

    def _pieces(self, output: RequestOutput) -> list[MessagePiece]:
        """What became certain. A tool-call parser tells text and calls of one piece apart, but not which came first:
        so it gets single characters."""
        pieces: list[MessagePiece] = []
        for part in output.text if self._has_tools else (output.text,):
            pieces += self._reader.feed(part)
        if output.finish is not None:
            pieces += self._reader.finish()
        return _joined(pieces)

    def _write(self, piece: MessagePiece) -> bytes:
        call, block, events = piece.call, self._block, b""
        kind: BlockKind = "call" if call is not None else "reasoning" if piece.reasoning else "text"
        is_new_call = call is not None and call.name is not None
        if block is None or block.kind != kind or is_new_call:
            events = self._leave() + self._enter(kind, call)
        block = self._block
        assert block is not None
        text = call.arguments if call is not None else piece.reasoning or piece.content
        block.add(text)
        return events + self._add(block, text, self._new_logprobs(block)) if text else events

    def _enter(self, kind: BlockKind, call: ToolDelta | None) -> bytes:
        self._block = Block(self._num_blocks, kind, call)
        self._num_blocks += 1
        self._num_texts += kind == "text"
        return self._open(self._block)

    def _leave(self) -> bytes:
        block, self._block = self._block, None
        if block is None:
            return b""
        self._new_logprobs(block)
        return self._close(block)

    def _new_logprobs(self, block: Block) -> list[TokenLogprob]:
        """Those of a text's tokens that were not there before."""
        if self._text_logprobs is None or block.kind != "text":
            return []
        new = list(self._text_logprobs.of(self._num_texts - 1)[len(block.logprobs) :])
        block.add_logprobs(new)
        return new


def _joined(pieces: list[MessagePiece]) -> list[MessagePiece]:
    """Adjacent pieces of the same thing as one."""
    joined: list[MessagePiece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and piece.call is not None and last.call is not None and piece.call.name is None:
            call = dataclasses.replace(last.call, arguments=last.call.arguments + piece.call.arguments)
            joined[-1] = MessagePiece(call=call)
        elif last is not None and piece.content and last.content:
            joined[-1] = MessagePiece(content=last.content + piece.content)
        elif last is not None and piece.reasoning and last.reasoning:
            joined[-1] = MessagePiece(reasoning=last.reasoning + piece.reasoning)
        elif piece != MessagePiece():
            joined.append(piece)
    return joined
