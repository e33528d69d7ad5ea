"""Items of /v1/responses: as clients send them → as they are stored and listed → the messages of a chat request."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palladio.http.wire.fields import WarningList
from palladio.http.wire.protocol import UnreadFields
from palladio.http.wire.typed_json import typed
from palladio.runtime.interface.errors import InvalidRequestError

Item = dict[str, Any]
Response = dict[str, Any]  # which has items as its output

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
# What items and their parts may hold: what is read, and what else OpenAI's items have, which clients send back.
_ITEM = frozenset(
    {"type", "id", "status", "role", "content", "phase", "summary", "encrypted_content", "call_id", "name", "arguments"}
    | {"output", "namespace", "caller", "created_by", "internal_chat_message_metadata_passthrough"}
)
_PART = frozenset({"type", "text", "refusal", "annotations", "logprobs", "parsed", "prompt_cache_breakpoint"})
_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
MAX_ITEM_ID = 256


def item_id(kind: str, response_id: str, position: int | str) -> str:
    """Make the id of an item of a response.

    Args:
        position: its place in the output; of input items, "in" and the place in the input.
    """
    return f"{_PREFIXES[kind]}_{response_id.removeprefix('resp_')}_{position}"


def referenced_ids(given: str | Sequence[Item] | None) -> list[str]:
    """The stored items that an input refers to.

    Raises:
        InvalidRequestError: a reference has no id.
    """
    if given is None or isinstance(given, str):
        return []
    return [_string(item, "id", f"input.{n}") for n, item in enumerate(given) if _kind(item) == "item_reference"]


def input_items(
    given: str | Sequence[Item] | None, referenced: Mapping[str, Item], response_id: str, warnings: WarningList
) -> list[Item]:
    """The input of a request in the form in which it is stored.

    Args:
        referenced: the items of `referenced_ids`.
        warnings: fields that nothing reads may pass with one.

    Raises:
        InvalidRequestError: an item is malformed, or of a kind that is not served; `param` is its path.
    """
    if given is None:
        return []
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items: list[Item] = []
    unread = UnreadFields(warnings)
    for position, item in enumerate(given):
        path = f"input.{position}"
        if _kind(item) == "item_reference":
            items.append(referenced[item["id"]])
            continue
        kept = {name: value for name, value in item.items() if value is not None}
        read = _READERS.get(_kind(item))
        if read is None:
            raise InvalidRequestError(
                f"not supported yet: items of type {_kind(item)!r}; known: {', '.join(_READERS)}, item_reference",
                param=f"{path}.type",
                code="unsupported_parameter",
            )
        made = item_id(_kind(item), response_id, f"in{position}")
        given_id = _string(kept, "id", path) if "id" in kept else made
        items.append({"id": given_id, **read(kept, path)})
        unread.report(item, path, _ITEM)
        for name in ("content", "output", "summary"):
            for number, part in enumerate(item[name] if isinstance(item.get(name), list) else ()):
                unread.report(part, f"{path}.{name}.{number}", _PART)
    return items


def chat_messages(items: Iterable[tuple[str, Item]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The conversation that items are, and the path of each message.

    What the assistant says in one go (reasoning, text, calls) becomes one message.

    Args:
        items: each with its path in the request.
    """
    messages: list[dict[str, Any]] = []
    paths: list[str] = []
    turn: dict[str, Any] | None = None  # the assistant's, which goes on
    thoughts: dict[int, tuple[dict[str, Any], list[str]]] = {}  # of each turn, joined once

    def assistant(path: str) -> dict[str, Any]:
        nonlocal turn
        if turn is None:
            turn = {"role": "assistant"}
            messages.append(turn)
            paths.append(path)
        return turn

    for path, item in items:
        match item["type"]:
            case "reasoning":
                if turn is not None and turn.keys() - {"role", "reasoning_content"}:
                    turn = None  # reasoning again begins a new turn
                said = assistant(path)
                thoughts.setdefault(id(said), (said, []))[1].append(_reasoning_text(item))
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                assistant(path).setdefault("tool_calls", []).append(call)
            case "message" if item["role"] == "assistant":
                if turn is not None and turn.keys() & {"content", "tool_calls"}:
                    turn = None
                assistant(path)["content"] = _message_parts(item)
            case "message":
                turn = None
                messages.append({"role": item["role"], "content": _message_parts(item)})
                paths.append(path)
            case _:
                turn = None
                output = item["output"]
                content = output if isinstance(output, str) else [_chat_part(part) for part in output]
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
                paths.append(path)
    for said, texts in thoughts.values():
        said["reasoning_content"] = "".join(texts)
    return messages, paths


def _kind(item: Item) -> str:
    """A message may leave it out."""
    kind = item.get("type") or ("message" if "role" in item else None)
    return kind if isinstance(kind, str) else repr(kind)[:100]


def _message(item: Item, path: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequestError(f"{path}.role must be one of {', '.join(_ROLES)}", param=f"{path}.role")
    parts = _parts(item.get("content"), f"{path}.content")
    if role == "assistant":
        content = [_output_part(part) for part in parts]
    else:
        content = [{"type": "input_text", "text": _text(part)} for part in parts]
    return {"type": "message", "role": role, "status": "completed", "content": content}


def _function_call(item: Item, path: str) -> Item:
    names = ("call_id", "name", "arguments")
    return {"type": "function_call", **{name: _string(item, name, path) for name in names}, "status": "completed"}


def _function_call_output(item: Item, path: str) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = [{"type": "input_text", "text": _text(part)} for part in _parts(output, f"{path}.output")]
    call_id = _string(item, "call_id", path)
    return {"type": "function_call_output", "call_id": call_id, "output": output, "status": "completed"}


def _reasoning(item: Item, path: str) -> Item:
    fields: Item = {"type": "reasoning", "summary": [], "content": []}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        for position, entry in enumerate(typed(item.get(name, []), list, f"{path}.{name}", "a list")):
            given = entry.get("text") if isinstance(entry, dict) else None
            text = typed(given, str, f"{path}.{name}.{position}.text", "a string")
            fields[name].append({"type": kind, "text": text})
    return fields


_READERS = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def _string(item: Item, name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (name == "id" and not 0 < len(value) <= MAX_ITEM_ID):
        kind = f"a string of 1 … {MAX_ITEM_ID} characters" if name == "id" else "a string"
        raise InvalidRequestError(f"{path}.{name} must be {kind}", param=f"{path}.{name}")
    return value


def _parts(content: object, path: str) -> list[Item]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = typed(content, list, path, "a string or a list of content parts")
    for position, part in enumerate(parts):
        where = f"{path}.{position}"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            raise InvalidRequestError(
                f"not supported yet: content parts of type {kind!r}; this server takes text",
                param=f"{where}.type",
                code="unsupported_parameter",
            )
        name = "refusal" if kind == "refusal" else "text"
        typed(part.get(name), str, f"{where}.{name}", "a string")
    return parts


def _text(part: Item) -> str:
    return str(part["refusal" if part["type"] == "refusal" else "text"])


def _output_part(part: Item) -> Item:
    if part["type"] == "refusal":
        return {"type": "refusal", "refusal": part["refusal"]}
    return {"type": "output_text", "text": part["text"], "annotations": []}


def _message_parts(item: Item) -> str | list[Item]:
    """One part is a string, which every template takes."""
    parts = item["content"]
    return _text(parts[0]) if len(parts) == 1 else [_chat_part(part) for part in parts]


def _chat_part(part: Item) -> Item:
    return {"type": "text", "text": _text(part)}


def _reasoning_text(item: Item) -> str:
    """The reasoning itself, or else what was said of it."""
    return "".join(entry["text"] for entry in item.get("content") or item["summary"])
