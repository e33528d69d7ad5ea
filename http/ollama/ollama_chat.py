"""A request to Ollama's /api/chat or /api/generate as the chat request that it comes to."""

import collections
from collections.abc import Mapping
from typing import Any

from palladio.http.ollama.protocol_ollama import OllamaChatRequest, OllamaFields, OllamaGenerateRequest, OllamaOptions
from palladio.http.wire.fields import FieldMap, WarningList, message_paths
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.http.wire.typed_json import typed
from palladio.runtime.interface.errors import InvalidRequestError

_SAME = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "stop")
_NEUTRAL: Mapping[str, object] = {"mirostat": 0, "tfs_z": 1, "typical_p": 1, "penalize_newline": True}
_NOT_YET: Mapping[str, str] = {  # of /api/generate, each with what the client can do
    "images": "this server takes text",
    "suffix": "write the prompt of a model that fills in with raw: true",
    "template": "start the server with --chat-template, or use raw: true",
    "context": "send the conversation to /api/chat",
}
_NOT_RAW = ("system", "think")
_PATHS: Mapping[str, str] = {  # of the chat request → of this one
    **{name: f"options.{name}" for name in (*_SAME, "seed")},
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format.json_schema.schema": "format",
    "response_format": "format",
    "thinking": "think",
    "reasoning_effort": "think",
}


class OllamaChat:
    """A request's chat request.

    Attributes:
        chat: the same, as the chat route takes it.
        names: what its fields are in this one.

    Args:
        model: as it is served.
        warnings: fields that have no effect may pass with one.
        prompt_ids: of a prompt of /api/generate that is taken as it is; None: it is a message.

    Raises:
        InvalidRequestError: a field is malformed, or asks for what this server has not; `param` is its path.
    """

    def __init__(
        self, body: OllamaFields, model: str, warnings: WarningList, prompt_ids: list[int] | None = None
    ) -> None:
        fields: dict[str, Any] = {"model": model} | _sampling(body.options or OllamaOptions(), warnings)
        fields |= {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
        fields |= _thinking(body) | _response_format(body.format)
        wholes: Mapping[str, str] = {}
        if isinstance(body, OllamaChatRequest):
            fields |= {"messages": _messages(body.messages or []), "tools": _tools(body.tools)}
        elif isinstance(body, OllamaGenerateRequest):
            _check_generate(body)
            parts = {"system": ("system", body.system), "prompt": ("user", body.prompt)}
            given = {name: {"role": role, "content": text} for name, (role, text) in parts.items() if text}
            wholes = message_paths("prompt", list(given))
            # what is taken as it is, is answered as it is
            raw = {"input_ids": prompt_ids, "separate_reasoning": False}
            fields |= {"messages": list(given.values())} if prompt_ids is None else raw
        self.chat = ChatRequest(**{name: value for name, value in fields.items() if value is not None})
        self.names = FieldMap(paths={**_PATHS, "input_ids": "prompt"}, wholes=wholes)


def _sampling(options: OllamaOptions, warnings: WarningList) -> dict[str, Any]:
    given = options.model_dump(exclude_none=True)
    for name, neutral in _NEUTRAL.items():
        if given.get(name, neutral) != neutral:
            raise _unsupported(f"options.{name}", f"only {neutral!r} is, which switches it off")
    penalty, window = options.repeat_penalty, options.repeat_last_n
    if penalty not in (None, 1.0) and window not in (None, -1, 0):
        warnings.warn(_unsupported("options.repeat_last_n", "repeat_penalty counts all of the text here, as with -1"))
    return {name: given.get(name) for name in _SAME} | {
        "repetition_penalty": None if window == 0 else penalty,
        "seed": None if options.seed == -1 else options.seed,
        "max_tokens": None if options.num_predict is None or options.num_predict <= 0 else options.num_predict,
    }


def _unsupported(path: str, instead: str) -> InvalidRequestError:
    return InvalidRequestError(f"not supported yet: {path} ({instead})", param=path, code="unsupported_parameter")


def _thinking(body: OllamaFields) -> dict[str, Any]:
    if isinstance(body.think, str):
        return {"reasoning_effort": body.think}
    return {} if body.think is None else {"thinking": body.think}


def _response_format(form: str | dict[str, Any] | None) -> dict[str, Any]:
    if form is None or form == "":
        return {}
    if isinstance(form, dict):
        return {"response_format": {"type": "json_schema", "json_schema": {"schema": form}}}
    if form != "json":
        raise InvalidRequestError(f'format must be "json" or a JSON schema, got {form[:100]!r}', param="format")
    return {"response_format": {"type": "json_object"}}


def _check_generate(body: OllamaGenerateRequest) -> None:
    given = body.model_dump(include={*_NOT_YET, *_NOT_RAW})
    for name, instead in _NOT_YET.items():
        if given[name]:
            raise _unsupported(name, instead)
    if body.raw:
        for field in _NOT_RAW:
            if given[field]:
                raise _unsupported(field, "with raw: true, the prompt is all that there is")


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    return [{"type": "function", **tool} for tool in tools] if tools else None


def _messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls have no ids in Ollama's form: a result belongs to the first call of its tool that has none yet."""
    read: list[dict[str, Any]] = []
    unanswered = _UnansweredCalls()
    for position, message in enumerate(messages):
        path = f"messages.{position}"
        kept = {name: value for name, value in message.items() if value is not None}
        if kept.pop("images", None):
            raise _unsupported(f"{path}.images", _NOT_YET["images"])
        if "thinking" in kept:
            kept["reasoning_content"] = kept.pop("thinking")
        if kept.get("tool_calls"):
            kept["tool_calls"] = calls = _calls(kept["tool_calls"], path)
            unanswered.add(calls)
        if kept.get("role") == "tool":
            name = kept.pop("tool_name", kept.get("name"))
            if "tool_call_id" not in kept and (found := unanswered.take(name)) is not None:
                kept["tool_call_id"] = found
            kept |= {} if name is None else {"name": name}
        read.append(kept)
    return read


class _UnansweredCalls:
    """Calls that have no result yet, in their order. Each is looked at twice at most."""

    def __init__(self) -> None:
        self._all: collections.deque[tuple[int, str, str]] = collections.deque()  # number, id and name
        self._by_name: dict[str, collections.deque[tuple[int, str, str]]] = {}
        self._taken: set[int] = set()
        self._num_calls = 0

    def add(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            entry = (self._num_calls, call["id"], call["function"]["name"])
            self._num_calls += 1
            self._all.append(entry)
            self._by_name.setdefault(entry[2], collections.deque()).append(entry)

    def take(self, name: object) -> str | None:
        """The id of the first one of that name (None: of any)."""
        row = self._all if name is None else self._by_name.get(name) if isinstance(name, str) else None
        while row:
            number, call_id, _ = row.popleft()
            if number not in self._taken:
                self._taken.add(number)
                return call_id
        return None


def _calls(calls: object, path: str) -> list[dict[str, Any]]:
    read = []
    for number, call in enumerate(typed(calls, list, f"{path}.tool_calls", "a list")):
        where = f"{path}.tool_calls.{number}"
        given = typed(call, dict, where, "an object with a function")
        function = typed(given.get("function"), dict, f"{where}.function", "an object with name and arguments")
        name = typed(function.get("name"), str, f"{where}.function.name", "a string")
        function = {"name": name, "arguments": function.get("arguments")}
        default = f"call_{path.rpartition('.')[2]}_{number}"
        read.append({"id": given.get("id") or default, "type": "function", "function": function})
    return read
