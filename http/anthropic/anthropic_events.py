"""The events of an answer in Anthropic's form, and the message that they add up to."""

from collections.abc import Mapping
from typing import Any

import orjson

from palladio.http.chat.answer_blocks import Block, BlockWriter
from palladio.http.chat.chat_run import ChatRun
from palladio.http.wire.body import read_json
from palladio.http.wire.errors import ErrorBody
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.token_output import TokenLogprob

_DELTAS: Mapping[str, tuple[str, str]] = {  # kind of a block → type of its deltas, and where their text is
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


class AnthropicEvents(BlockWriter):
    """An EventWriter. An answer in one piece is what its events add up to.

    Attributes:
        message: so far; its content has the blocks that have ended.
    """

    def __init__(self, run: ChatRun, name: str, model: str) -> None:
        super().__init__(run)
        self._called = False
        self.message: dict[str, Any] = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": None,
        }

    def close(self) -> bytes:
        return _event("message_stop")

    def fail(self, error: ErrorBody) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(error.anthropic_payload())

    def _begin(self) -> bytes:
        return _event("message_start", message=self.message | {"usage": self._usage()}) + _event("ping")

    def _open(self, block: Block) -> bytes:
        return _event("content_block_start", index=block.position, content_block=_content(block))

    def _add(self, block: Block, text: str, logprobs: list[TokenLogprob]) -> bytes:
        kind, name = _DELTAS[block.kind]
        return _event("content_block_delta", index=block.position, delta={"type": kind, name: text})

    def _close(self, block: Block) -> bytes:
        self._called |= block.kind == "call"
        self.message["content"].append(_content(block))
        return _event("content_block_stop", index=block.position)

    def _end(self) -> bytes:
        assert self.finish is not None
        matched = self.finish.matched
        delta: dict[str, Any] = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        if isinstance(matched, str):
            delta["stop_sequence"] = matched
        usage = self._usage()
        self.message |= delta | {"usage": usage}
        return _event("message_delta", delta=delta, usage=usage)

    def _stop_reason(self) -> str:
        assert self.finish is not None
        if self.is_cut:
            return "max_tokens"
        if isinstance(self.finish.matched, str):
            return "stop_sequence"
        return "tool_use" if self._called else "end_turn"

    def _usage(self) -> dict[str, Any]:
        """Anthropic counts cached tokens of the prompt apart from the others."""
        counts = self.usage.as_dict()
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": counts["reasoning_tokens"]},
        }


def _content(block: Block) -> dict[str, Any]:
    match block.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "text":
            return {"type": "text", "text": block.text}
        case _:
            assert block.call is not None
            return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": _input(block.text)}


def _input(arguments: str) -> Any:
    """Read a call's arguments; empty if they are no JSON (such as NaN) or are nested too deeply."""
    try:
        return read_json(arguments, "arguments") if arguments else {}
    except InvalidRequestError:
        return {}


def _event(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({"type": name, **fields}))
