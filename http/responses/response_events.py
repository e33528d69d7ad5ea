"""The events of a streamed response, and the response that they add up to."""

import time
from collections.abc import Mapping
from typing import Any

import orjson

from palladio.http.chat.answer_blocks import Block, BlockWriter
from palladio.http.chat.chat_run import ChatRun
from palladio.http.generation.logprobs import chat_logprobs
from palladio.http.responses.response_items import Item, Response, item_id
from palladio.http.responses.response_object import response_error, response_usage
from palladio.http.wire.errors import ErrorBody
from palladio.runtime.interface.outputs.token_output import TokenLogprob

_OBFUSCATED_SIZE = 32  # characters that a delta is filled up to, or to a multiple of
_TERMINAL: Mapping[str, str] = {  # status → the last event's name; OpenAI has none for cancelled
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
_ITEM_KINDS = {"reasoning": "reasoning", "text": "message", "call": "function_call"}


class ResponseEvents(BlockWriter):
    """An EventWriter whose events are typed and numbered. An answer in one piece is what they add up to.

    Args:
        response: a new one, which is filled in.
        obfuscate: fill deltas up, so that their sizes do not reveal the lengths of tokens.

    Attributes:
        response: so far; its output has the items that have ended.
    """

    ALWAYS_TEXT = True

    def __init__(self, run: ChatRun, response: Response, *, obfuscate: bool = False) -> None:
        super().__init__(run)
        self.response = response
        self._tokenizer = run.tokenizer
        self._has_logprobs = run.request.params.logprobs is not None
        self._obfuscate = obfuscate
        self._sequence_number = 0

    def queue(self) -> bytes:
        """The events before the engine has it, of one in the background."""
        return self._of_response("response.created") + self._of_response("response.queued")

    def close(self) -> bytes:
        return self._of_response(_TERMINAL[self.response["status"]])

    def fail(self, error: ErrorBody) -> bytes:
        """Marks it as failed as well."""
        opening = b"" if self._sequence_number else self._begin()
        self.end("failed", error=response_error(error))
        code = error.code or "server_error"
        event = self._event("error", code=code, message=error.message, param=error.param)
        return opening + event + self.close()

    def keep(self, fields: dict[str, Any]) -> None:
        """Take over fields of the response from an earlier attempt."""
        self.response |= fields

    def end(self, status: str, **fields: Any) -> None:
        """Nothing will be added any more."""
        usage = None if self._num_blocks == 0 and self.finish is None else response_usage(self.usage)
        self.response |= {"status": status, "usage": usage, **fields}

    def _begin(self) -> bytes:
        self.response["status"] = "in_progress"
        opening = b"" if self._sequence_number else self._of_response("response.created")
        return opening + self._of_response("response.in_progress")

    def _end(self) -> bytes:
        assert self.finish is not None
        match self.finish.type:
            case "stop":
                self.end("completed", completed_at=int(time.time()))
            case "length":
                self.end("incomplete", incomplete_details={"reason": "max_output_tokens"})
            case _:
                self.end("cancelled")
        return b""

    def _open(self, block: Block) -> bytes:
        item = self._item(block, "in_progress")
        if block.kind != "call":
            item["content"] = []  # it comes in events of its own
        events = self._event("response.output_item.added", output_index=block.position, item=item)
        if block.kind == "call":
            return events
        return events + self._of_block("response.content_part.added", block, part=self._part(block))

    def _add(self, block: Block, text: str, logprobs: list[TokenLogprob]) -> bytes:
        fields: dict[str, Any] = {"delta": text}
        if block.kind == "text":
            fields["logprobs"] = self._logprobs(logprobs)
        if self._obfuscate:
            fields["obfuscation"] = "x" * (-len(text) % _OBFUSCATED_SIZE)
        return self._of_block(f"{_EVENTS[block.kind]}.delta", block, **fields)

    def _close(self, block: Block) -> bytes:
        item = self._item(block, "incomplete" if self.finish is not None and self.is_cut else "completed")
        self.response["output"].append(item)
        name = f"{_EVENTS[block.kind]}.done"
        if block.kind == "call":
            events = self._of_block(name, block, arguments=block.text)
        else:
            part = self._part(block)
            fields = {"logprobs": part["logprobs"]} if block.kind == "text" else {}
            events = self._of_block(name, block, text=block.text, **fields)
            events += self._of_block("response.content_part.done", block, part=part)
        return events + self._event("response.output_item.done", output_index=block.position, item=item)

    def _item(self, block: Block, status: str) -> Item:
        kind = _ITEM_KINDS[block.kind]
        head = {"id": self._id(block), "type": kind, "status": status}
        match block.kind:
            case "reasoning":
                return head | {"summary": [], "content": [self._part(block)]}
            case "text":
                return head | {"role": "assistant", "content": [self._part(block)]}
            case _:
                assert block.call is not None
                return head | {"call_id": block.call.id, "name": block.call.name, "arguments": block.text}

    def _part(self, block: Block) -> dict[str, Any]:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": block.text}
        part = {"type": "output_text", "text": block.text, "annotations": []}
        return part | {"logprobs": self._logprobs(block.logprobs)}

    def _logprobs(self, logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
        return list(chat_logprobs(self._tokenizer, logprobs)["content"]) if self._has_logprobs else []

    def _id(self, block: Block) -> str:
        return item_id(_ITEM_KINDS[block.kind], self.response["id"], block.position)

    def _of_block(self, name: str, block: Block, **fields: Any) -> bytes:
        place: dict[str, Any] = {"item_id": self._id(block), "output_index": block.position}
        if block.kind != "call":
            place["content_index"] = 0
        return self._event(name, **place, **fields)

    def _of_response(self, name: str) -> bytes:
        return self._event(name, response=self.response)

    def _event(self, name: str, **fields: Any) -> bytes:
        event = _event(name, self._sequence_number, fields)
        self._sequence_number += 1
        return event


def unmade_events(response: Response) -> bytes:
    """All events of one in the background that ended before the engine had it."""
    queued = response | {"status": "queued", "error": None}
    events = [("response.created", queued), ("response.queued", queued), (_TERMINAL[response["status"]], response)]
    return b"".join(_event(name, number, {"response": shown}) for number, (name, shown) in enumerate(events))


def _event(name: str, number: int, fields: Mapping[str, Any]) -> bytes:
    data = orjson.dumps({"type": name, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


_EVENTS: Mapping[str, str] = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}
