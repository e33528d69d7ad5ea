"""Messages of Anthropic's form → the messages of a chat request."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from palladio.http.anthropic.protocol_anthropic import CountTokensRequest
from palladio.http.wire.fields import WarningList
from palladio.http.wire.protocol import UnreadFields
from palladio.runtime.interface.errors import InvalidRequestError

_TEXTS = ("content", "reasoning_content")
_OF_ANSWERS = ("id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "container", "usage", "warnings")
_MESSAGE = frozenset({"role", "content", *_OF_ANSWERS})  # which clients send back
_BLOCK = frozenset(
    {"type", "text", "citations", "parsed_output", "thinking", "signature", "data", "id", "name", "input"}
)
_PART = _BLOCK | {"caller", "tool_use_id", "content", "is_error"}
_ERROR = "Error: "  # before the result of a tool that failed: chat templates know of no other way to say so


class AnthropicConversation:
    """
    Args:
        warnings: fields that nothing reads may pass with one.

    Attributes:
        messages: as chat has them.
        paths: in the client's request, of each.
        continues: the last one is the beginning of the answer.

    Raises:
        InvalidRequestError: a message is malformed, or holds what is not served; `param` is its path.
    """

    def __init__(self, body: CountTokensRequest, warnings: WarningList) -> None:
        self._unread = UnreadFields(warnings)
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._said: list[dict[str, list[str]]] = []  # of each message: texts by key, which are joined once
        if body.system:
            blocks = self._blocks(body.system, "system")
            self._add({"role": "system", "content": _joined(blocks, "system")}, "system")
        for position, message in enumerate(body.messages):
            path = f"messages.{position}"
            self._unread.report(message, path, _MESSAGE)
            blocks = self._blocks(message.get("content"), f"{path}.content")
            match message.get("role"):
                case "user":
                    self._user(blocks, path)
                case "assistant":
                    self._assistant(blocks, path)
                case "system":
                    self._add({"role": "system", "content": _joined(blocks, f"{path}.content")}, path)
                case _:
                    raise InvalidRequestError(f"{path}.role must be user, assistant or system", param=f"{path}.role")
        for said, joined in zip(self._said, self.messages, strict=True):
            joined |= {name: "\n".join(texts) for name, texts in said.items()}
        last = self.messages[-1]
        self.continues = last["role"] == "assistant"
        if self.continues and (last.get("tool_calls") or not last.get("content")):
            what = "calls tools: their results must follow" if last.get("tool_calls") else "has no text to go on from"
            raise InvalidRequestError(f"{self.paths[-1]}: the last message {what}", param=self.paths[-1])

    def _blocks(self, content: object, path: str) -> list[dict[str, Any]]:
        blocks = _blocks(content, path)
        for position, block in enumerate(blocks):
            self._unread.report(block, f"{path}.{position}", _PART)
        return blocks

    def _user(self, blocks: Sequence[Mapping[str, Any]], path: str) -> None:
        texts: list[str] = []
        for position, block in enumerate(blocks):
            where = f"{path}.content.{position}"
            if block.get("type") == "tool_result":
                self._flush(texts, path)
                self._blocks(block.get("content") or [], f"{where}.content")
                self._add(_tool_result(block, where), path)
            else:
                texts.append(_text(block, where))
        self._flush(texts, path)

    def _flush(self, texts: list[str], path: str) -> None:
        if texts:
            self._add({"role": "user", "content": "\n".join(texts)}, path)
            texts.clear()

    def _assistant(self, blocks: Sequence[Mapping[str, Any]], path: str) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for position, block in enumerate(blocks):
            where = f"{path}.content.{position}"
            match block.get("type"):
                case "thinking":
                    thoughts.append(_string(block, "thinking", where))
                case "redacted_thinking":
                    pass  # only its maker can read it
                case "tool_use":
                    calls.append(_tool_use(block, where))
                case _:
                    texts.append(_text(block, where))
        message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        self._add(message, path)

    def _add(self, message: dict[str, Any], path: str) -> None:
        """Add a message; consecutive messages of the user or of the assistant become one."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != message["role"] or message["role"] not in ("user", "assistant"):
            self.messages.append(message)
            self.paths.append(path)
            self._said.append({name: [message[name]] for name in _TEXTS if message.get(name)})
            return
        for name in _TEXTS:
            if message.get(name):
                self._said[-1].setdefault(name, []).append(message[name])
        if "tool_calls" in message:
            last.setdefault("tool_calls", []).extend(message["tool_calls"])


def _blocks(content: object, path: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequestError(f"{path} must be a string or a list of content blocks", param=path)
    return content


def _joined(blocks: Sequence[Mapping[str, Any]], path: str) -> str:
    return "\n".join(_text(block, f"{path}.{position}") for position, block in enumerate(blocks))


def _text(block: Mapping[str, Any], path: str) -> str:
    if block.get("type") != "text":
        raise InvalidRequestError(
            f"not supported yet: content blocks of type {block.get('type')!r} here; this server takes text",
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return _string(block, "text", path)


def _string(block: Mapping[str, Any], name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{path}.{name} must be a string", param=f"{path}.{name}")
    return value


def _tool_use(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise InvalidRequestError(f"{path}.input must be an object", param=f"{path}.input")
    function = {"name": _string(block, "name", path), "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": _string(block, "id", path), "type": "function", "function": function}


def _tool_result(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    content = block.get("content")
    text = "" if content is None else _joined(_blocks(content, f"{path}.content"), f"{path}.content")
    is_error = block.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        raise InvalidRequestError(f"{path}.is_error must be true or false", param=f"{path}.is_error")
    call_id = _string(block, "tool_use_id", path)
    return {"role": "tool", "tool_call_id": call_id, "content": _ERROR + text if is_error else text}
