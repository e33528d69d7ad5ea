"""Samples that a response template reads: what a process of its own made of them travels as text, to the parser of a
message like any other."""

import functools
import json
from collections.abc import Callable
from types import TracebackType

from palladio.http.chat.chat_output import MessageParser, MessagePiece
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.generation.context import Context
from palladio.http.generation.output_stream import OutputStream
from palladio.http.observability.records.request_record import Origin
from palladio.http.response_templates.readers import Event, SampleReader
from palladio.http.tool_calls.reading.base import Functions, ToolPiece
from palladio.http.tool_calls.reading.output import CallOutput, openai_id
from palladio.http.wire.fields import AS_SENT, FieldMap
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest

NewReader = Callable[[], SampleReader]


class TemplateStream(OutputStream):
    """The outputs of a stream, each with the events of its text in place of the text, a line each.

    Args:
        new_reader: makes the reader of a sample.
    """

    def __init__(
        self,
        context: Context,
        request: GenerationRequest,
        new_reader: NewReader,
        *,
        origin: Origin | None = None,
        names: FieldMap = AS_SENT,
    ) -> None:
        super().__init__(context, [request], origin=origin, names=names)
        self._new_reader = new_reader
        self._readers: dict[int, SampleReader] = {}
        self._again = functools.partial(TemplateStream, context, request, new_reader, origin=origin, names=names)

    def renewed(self) -> OutputStream:
        return self._again()

    def attach(self, write: object, pipe: object) -> None:
        """There is no fast path: reading waits for a process."""

    async def __anext__(self) -> RequestOutput:
        output = await super().__anext__()
        reader = self._readers.get(output.index)
        if reader is None:
            reader = self._readers[output.index] = self._new_reader()
        text = output.take_text()
        events = await reader.feed(text) if text else []
        if output.finish is not None:
            events += await reader.finish()
        output.text = "".join(map(_line, events))
        return output

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for reader in self._readers.values():
            reader.close()
        await super().__aexit__(kind, exc, traceback)


class TemplateMessageParser(MessageParser):
    """Reads such lines, in pieces of any size.

    Args:
        functions: that may be called; text of calls of others is content.
        parallel: false: calls after the first are dropped.
    """

    def __init__(self, plan: ReasoningPlan, functions: Functions, *, parallel: bool = True) -> None:
        super().__init__(None, None, plan)
        self._output = CallOutput(functions, parallel=parallel, new_id=openai_id)
        self._line = ""

    def feed(self, text: str) -> list[MessagePiece]:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._event(json.loads(line))
        return self._give()

    def take_plain(self, text: str) -> bool | None:
        return None

    def finish(self) -> list[MessagePiece]:
        self._output.flush()
        self._add_read(self._output.piece())
        self._release()
        return self._give()

    def _event(self, event: list[str]) -> None:
        kind, text, *call = event
        if kind == "reasoning":
            self._add_reasoning(text)
        elif kind == "content":
            self._content(text)
        else:
            arguments, raw = call
            if text not in self._output.functions:
                self._content(raw)
                return
            self._output.begin(text)
            self._output.arguments(arguments)
            self._add_read(self._output.piece())

    def _content(self, text: str) -> None:
        self._output.content(text)
        read: ToolPiece = self._output.piece()
        if read.content:
            self._add_read(read)


def _line(event: Event) -> str:
    return json.dumps(event) + "\n"
