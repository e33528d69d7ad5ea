"""The lines of an answer in Ollama's form, and the answer that they add up to."""

import datetime
from collections.abc import Mapping
from typing import Any

import orjson

from palladio.http.chat.answer_blocks import Block, BlockWriter
from palladio.http.chat.chat_run import ChatRun
from palladio.http.generation.logprobs import chat_logprobs
from palladio.http.wire.body import read_json
from palladio.http.wire.errors import ErrorBody
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.token_output import TokenLogprob

NANOSECONDS = 1_000_000_000


class OllamaLines(BlockWriter):
    """An EventWriter: a line of JSON for each piece.

    Attributes:
        answer: the whole in one piece, once it has ended.

    Args:
        model: as the client calls it.
        is_chat: pieces are messages; else they are texts.
        warnings: fields of the last line, and of the whole.
    """

    def __init__(self, run: ChatRun, model: str, *, is_chat: bool, warnings: Mapping[str, Any]) -> None:
        super().__init__(run)
        self._tokenizer = run.tokenizer
        self._model = model
        self._is_chat = is_chat
        self._warnings = warnings
        self._whole: dict[str, Any] = {}
        self._logprobs: list[dict[str, Any]] = []
        self._num_sent = 0  # log-probabilities of the block that went out
        self.answer: dict[str, Any] = {}

    def close(self) -> bytes:
        return b""

    def fail(self, error: ErrorBody) -> bytes:
        return _line(error.ollama_payload())

    def _begin(self) -> bytes:
        return b""

    def _open(self, block: Block) -> bytes:
        self._num_sent = 0
        return b""

    def _add(self, block: Block, text: str, logprobs: list[TokenLogprob]) -> bytes:
        if block.kind == "call":
            return b""  # is sent whole, by _close
        self._num_sent += len(logprobs)
        return self._piece({"thinking" if block.kind == "reasoning" else "content": text}, logprobs)

    def _close(self, block: Block) -> bytes:
        if block.call is None:
            rest = block.logprobs[self._num_sent :]
            return self._piece({}, rest) if rest else b""
        calls = self._whole.setdefault("tool_calls", [])
        function = {"index": len(calls), "name": block.call.name, "arguments": _arguments(block.text)}
        calls.append({"id": block.call.id, "function": function})
        return _line(self._head() | self._said({"tool_calls": calls[-1:]}) | {"done": False})

    def _end(self) -> bytes:
        assert self.finish is not None
        counts, timings = self.usage.as_dict(), self.usage.timings()
        durations = {"total": "total", "load": "queue", "prompt_eval": "prefill", "eval": "decode"}
        end: dict[str, Any] = {"done": True, "done_reason": self.finish.type, **self._warnings}
        end |= {f"{name}_duration": int((timings[ours] or 0) * NANOSECONDS) for name, ours in durations.items()}
        end |= {"prompt_eval_count": counts["prompt_tokens"], "eval_count": counts["completion_tokens"]}
        whole = self._said(self._whole) | ({"logprobs": self._logprobs} if self._logprobs else {})
        self.answer = self._head() | whole | end
        return _line(self._head() | self._said({}) | end)

    def _piece(self, said: dict[str, str], logprobs: list[TokenLogprob]) -> bytes:
        for name, text in said.items():
            self._whole[name] = self._whole.get(name, "") + text
        entries = chat_logprobs(self._tokenizer, logprobs)["content"]
        self._logprobs += entries
        extra = {"logprobs": entries} if entries else {}
        return _line(self._head() | self._said(said) | extra | {"done": False})

    def _head(self) -> dict[str, Any]:
        return head(self._model)

    def _said(self, said: dict[str, Any]) -> dict[str, Any]:
        if self._is_chat:
            return {"message": {"role": "assistant", "content": "", **said}}
        others = {name: value for name, value in said.items() if name != "content"}
        return {"response": said.get("content", "")} | others


def head(model: str) -> dict[str, Any]:
    """What every line begins with."""
    now = datetime.datetime.now(datetime.UTC)
    return {"model": model, "created_at": now.isoformat().replace("+00:00", "Z")}


def _arguments(text: str) -> Any:
    """Read a call's arguments; empty if they are no JSON."""
    try:
        return read_json(text, "arguments") if text else {}
    except InvalidRequestError:
        return {}


def _line(fields: dict[str, Any]) -> bytes:
    return orjson.dumps(fields) + b"\n"
