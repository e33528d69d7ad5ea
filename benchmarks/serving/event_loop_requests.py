"""The largest requests that each route takes, for event_loop.py."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.faults.attack_list import multipart, text_of

MB = 1_000_000
_TOOL_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
_MODEL = "palladio-default-v3"
_USER: list[dict[str, Any]] = [{"role": "user", "content": "a"}]


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """The limits of a server: bytes and values of a body, tokens of the context."""

    num_bytes: int
    num_values: int
    context: int


@dataclasses.dataclass(frozen=True, slots=True)
class Largest:
    """Attributes:
    name: what is large in it.
    body: makes it: an object, or bytes that are sent as they are.
    is_embedding: for a server of --is-embedding.
    """

    path: str
    name: str
    body: Callable[[Room], object]
    headers: Callable[[Room], Mapping[str, str]] = lambda _: {}
    is_embedding: bool = False
    method: str = "POST"


def _text(room: Room, share: float = 1.0) -> str:
    return text_of(int((room.num_bytes - 20_000) * share))


def _words(room: Room) -> str:
    """Make the longest prompt that fits the context."""
    return "a " * (room.context - 64)


def _completion(**fields: Any) -> Callable[[Room], object]:
    return lambda _: {"prompt": "a", "max_tokens": 1} | fields


def _chat(make: Callable[[Room], Mapping[str, Any]]) -> Callable[[Room], object]:
    return lambda room: {"messages": _USER, "max_tokens": 1} | dict(make(room))


def _stops(count: int, size: int) -> list[str]:
    return ["z" * (size - 4) + f"{number:04}" for number in range(count)]


def _ids(count: int) -> list[int]:
    return [number % 200 + 10 for number in range(count)]


def _objects(count: int, make: Callable[[int], Any]) -> list[Any]:
    return [make(number) for number in range(count)]


def _said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def _schema(size: int) -> dict[str, Any]:
    """Make a schema of about `size` characters: an object of objects."""
    inner = {f"p{number}": {"type": "object", "properties": {"a": {"type": "integer"}}} for number in range(400)}
    count = max(1, size // len(json.dumps(inner)))
    return {"type": "object", "properties": {f"q{n}": {"type": "object", "properties": inner} for n in range(count)}}


def _tools(count: int, size: int) -> list[Any]:
    return _objects(
        count,
        lambda n: {"type": "function", "function": {"name": f"f{n}", "parameters": _schema(size), "strict": True}},
    )


def _answered_calls(room: Room) -> dict[str, Any]:
    """Calls of one name and results of another, in Ollama's form: each result looks for its call."""
    count = room.num_values // 190
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {}}}] * 10}
    return {
        "model": _MODEL,
        "messages": [*_USER, *[call] * (count // 10), *[{"role": "tool", "tool_name": "b", "content": "x"}] * count],
    }


def _responses_items(room: Room) -> dict[str, Any]:
    return {"input": _objects(room.num_values // 50, lambda _: {"role": "user", "content": "a"}), "store": True}


def _headers(room: Room) -> dict[str, str]:
    return {"X-Request-Id": "x" * 8000, "traceparent": "00-" + "1" * 8000} | {f"X-A{n}": "a" for n in range(80)}


_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
REQUESTS: tuple[Largest, ...] = (
    Largest("/health", "nothing: this machine by itself", lambda _: None, method="GET"),
    Largest("/health", "headers", lambda _: None, _headers, method="GET"),
    Largest(_COMPLETIONS, "stop: 64 × 100,000 characters", _completion(stop=_stops(64, 100_000))),
    Largest(_COMPLETIONS, "stop: 60 × 20,000 characters", _completion(stop=_stops(60, 20_000))),
    Largest(_COMPLETIONS, "stop: 64 × 4,000 characters", _completion(stop=_stops(64, 4000))),
    Largest(_COMPLETIONS, "stop: 64 × 256 characters, n: 128", _completion(stop=_stops(64, 256), n=128)),
    Largest(
        _COMPLETIONS,
        "4,096 prompts, each told 64 stop strings of 256 characters, 512 biases, 16,384 allowed ids",
        lambda _: (
            {"prompt": ["a"] * 4096, "max_tokens": 1, "stop": _stops(64, 256)}
            | {"logit_bias": {str(n): 1 for n in range(512)}, "allowed_token_ids": list(range(200))}
        ),
    ),
    Largest(_COMPLETIONS, "prompt: a text", lambda room: {"prompt": _text(room)}),
    Largest(_COMPLETIONS, "prompt: 4,096 texts", lambda room: {"prompt": [text_of(2000)] * 4096, "max_tokens": 1}),
    Largest(_COMPLETIONS, "prompt: a million ids", lambda room: {"prompt": _ids(room.num_values - 200)}),
    Largest(_COMPLETIONS, "prompt: 4,000 lists of ids", lambda room: {"prompt": [_ids(200)] * 4000, "max_tokens": 1}),
    Largest(
        _COMPLETIONS,
        "32 prompts of a whole context, n: 128",
        lambda room: {"prompt": [_ids(room.context - 8)] * 32, "n": 128, "max_tokens": 1},
    ),
    Largest(
        _COMPLETIONS,
        "64 prompts of a whole context, echo and logprobs",
        lambda room: {"prompt": [_ids(room.context - 8)] * 64, "max_tokens": 1, "echo": True, "logprobs": 5},
    ),
    Largest(_COMPLETIONS, "stop_regex", _completion(stop_regex=["(a{1,8}b{1,8})" * 6 + "d" * n for n in range(8)])),
    Largest(_COMPLETIONS, "json_schema: a text", lambda room: {"prompt": "a", "json_schema": json.dumps(_schema(MB))}),
    Largest(_COMPLETIONS, "json_schema: an enum", lambda room: {"prompt": "a", "json_schema": {"enum": _ids(250_000)}}),
    Largest(_COMPLETIONS, "guided_choice", _completion(guided_choice=[f"choice number {n}" for n in range(40_000)])),
    Largest(_COMPLETIONS, "regex", lambda room: {"prompt": "a", "regex": "(ab|cd)" * 140_000}),
    Largest(_COMPLETIONS, "ebnf", lambda _: {"prompt": "a", "ebnf": 'root ::= "a"\n' * 70_000}),
    Largest(
        _COMPLETIONS,
        "structural_tag",
        lambda room: {
            "prompt": "a",
            "structural_tag": {
                "structures": _objects(8000, lambda n: {"begin": f"<{n}>", "schema": _TOOL_SCHEMA, "end": "</a>"}),
                "triggers": ["<"],
            },
        },
    ),
    Largest(_COMPLETIONS, "unknown fields", lambda _: {"prompt": "a"} | {f"unknown{n}": n for n in range(250)}),
    Largest(_COMPLETIONS, "a field of another type", lambda room: {"prompt": _objects(40_000, lambda n: {"a": n})}),
    Largest(_CHAT, "one message of text", _chat(lambda room: _said(_text(room)))),
    Largest(_CHAT, "a message that fits", _chat(lambda room: _said(_words(room)))),
    Largest(_CHAT, "many messages", _chat(lambda room: {"messages": _USER * (room.num_values // 50)})),
    Largest(
        _CHAT,
        "many parts",
        _chat(
            lambda room: {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * (room.num_values // 50)}]
            }
        ),
    ),
    Largest(_CHAT, "128 large tools", _chat(lambda room: {"tools": _tools(128, 10_000), "tool_choice": "required"})),
    Largest(_CHAT, "many tools", _chat(lambda room: {"tools": [{"type": "function"}] * (room.num_values // 50)})),
    Largest(
        _CHAT,
        "arguments of earlier calls",
        _chat(
            lambda room: {
                "messages": [
                    *_USER,
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": f"c{n}", "function": {"name": "f", "arguments": json.dumps({"a": _ids(80)})}}
                            for n in range(2500)
                        ],
                    },
                ],
                "tools": _tools(1, 10),
            }
        ),
    ),
    Largest(
        _CHAT,
        "chat_template_kwargs",
        _chat(lambda room: {"chat_template_kwargs": {"enable_thinking": True, "a": [[1] * 30] * 18_000}}),
    ),
    Largest(_CHAT, "metadata", _chat(lambda room: {"metadata": {f"k{n}": "v" for n in range(room.num_values // 12)}})),
    Largest(
        _CHAT,
        "response_format",
        _chat(lambda room: _format(_schema(MB))),
    ),
    Largest(
        _CHAT,
        "response_format over the limit",
        _chat(lambda room: _format({"enum": [_text(room)]})),
    ),
    Largest(_CHAT, "prompt_logprobs", _chat(lambda room: _said(_words(room)) | {"prompt_logprobs": 20})),
    Largest(
        _CHAT,
        "n: 128, logprobs",
        _chat(lambda room: {"n": 128, "logprobs": True, "top_logprobs": 20, "max_tokens": 100, "ignore_eos": True}),
    ),
    Largest(
        "/generate",
        "4,096 prompts and parameters",
        lambda room: {"text": ["a"] * 4096} | {"sampling_params": [{"max_new_tokens": 1, "stop": ["x", "yy"]}] * 4096},
    ),
    Largest(
        "/generate",
        "4,096 unknown parameters",
        lambda room: {"text": ["a"] * 4096} | {"sampling_params": [{"max_new_tokens": 1, "unknown_one": 1}] * 4096},
    ),
    Largest(
        "/generate",
        "64 prompts of a whole context, return_logprob",
        lambda room: {
            "input_ids": [_ids(room.context - 8)] * 64,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 5,
            "return_text_in_logprobs": True,
            "sampling_params": {"max_new_tokens": 1},
        },
    ),
    Largest("/tokenize", "a text", lambda room: {"prompt": text_of(262_144 + 32 * room.context)}),
    Largest(
        "/tokenize",
        "4,096 texts, names of tokens",
        lambda room: {"prompt": [text_of(90)] * 4096, "return_token_strs": True},
    ),
    Largest("/tokenize", "messages", lambda room: {"messages": _USER * (room.num_values // 50)}),
    Largest("/detokenize", "8 contexts of ids", lambda room: {"tokens": _ids(8 * room.context)}),
    Largest("/detokenize", "4,096 lists", lambda room: {"tokens": [_ids(8)] * 4096}),
    Largest(
        "/v1/chat/completions/render",
        "many messages",
        _chat(lambda room: {"messages": _USER * (room.num_values // 50)}),
    ),
    Largest("/v1/completions/render", "a text", lambda room: {"prompt": _words(room), "return_token_offsets": True}),
    Largest(
        "/v1/score",
        "a long query beside 2,048 items",
        lambda room: {"query": _text(room, 0.1), "items": ["a"] * 2048, "label_token_ids": [1, 2]},
    ),
    Largest(
        "/v1/score",
        "label_token_ids",
        lambda room: {"query": "a", "items": ["a"] * 16, "label_token_ids": _ids(100_000)},
    ),
    Largest(
        "/v1/score",
        "a long text beside 2,048",
        lambda room: {"text_1": _text(room, 0.1), "text_2": ["a"] * 2048},
        is_embedding=True,
    ),
    Largest(
        "/v1/score", "2,048 pairs", lambda room: {"text_1": "a", "text_2": [text_of(3000)] * 2048}, is_embedding=True
    ),
    Largest(
        "/v1/rerank",
        "a long query beside 2,048 documents",
        lambda room: {"query": _text(room, 0.1), "documents": ["a"] * 2048},
        is_embedding=True,
    ),
    Largest(
        "/v1/rerank",
        "max_tokens_per_doc",
        lambda room: {"query": "a", "documents": [text_of(4000)] * 2048, "max_tokens_per_doc": 4},
        is_embedding=True,
    ),
    Largest("/v1/embeddings", "2,048 texts", lambda room: {"input": [text_of(1000)] * 2048}, is_embedding=True),
    Largest("/encode", "2,048 texts", lambda room: {"text": [text_of(1000)] * 2048}, is_embedding=True),
    Largest("/v1/classify", "2,048 texts", lambda room: {"input": [text_of(1000)] * 2048}, is_embedding=True),
    Largest("/v1/responses", "many items, stored", _responses_items),
    Largest(
        "/v1/responses",
        "many tools",
        lambda room: {
            "input": "a",
            "tools": [{"type": "function", "name": "f", "parameters": {}}] * (room.num_values // 90),
        },
    ),
    Largest(
        "/v1/responses",
        "many tools that are left out",
        lambda room: {"input": "a", "tools": [{"type": "web_search"}] * (room.num_values // 35)},
    ),
    Largest("/v1/responses/input_tokens", "many items", lambda room: {"input": _responses_items(room)["input"]}),
    Largest(
        "/v1/responses",
        "metadata",
        lambda room: {"input": "a", "metadata": {f"k{n}": "v" for n in range(room.num_values // 12)}},
    ),
    Largest(
        "/v1/messages",
        "many messages",
        lambda room: {"max_tokens": 1, "messages": _USER * (room.num_values // 50), "model": _MODEL},
    ),
    Largest(
        "/v1/messages",
        "many blocks",
        lambda room: {
            "max_tokens": 1,
            "model": _MODEL,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * (room.num_values // 50)}],
        },
    ),
    Largest(
        "/v1/messages",
        "many blocks of system",
        lambda room: {
            "max_tokens": 1,
            "model": _MODEL,
            "messages": _USER,
            "system": [{"type": "text", "text": "a"}] * (room.num_values // 50),
        },
    ),
    Largest(
        "/v1/messages",
        "many tools",
        lambda room: {
            "max_tokens": 1,
            "model": _MODEL,
            "messages": _USER,
            "tools": [{"name": "f", "input_schema": {}}] * (room.num_values // 70),
        },
    ),
    Largest(
        "/v1/messages",
        "stop_sequences",
        lambda room: {
            "max_tokens": 1,
            "model": _MODEL,
            "messages": _USER,
            "stop_sequences": _stops(64, 10_000),
        },
    ),
    Largest("/api/chat", "calls and results of other names", _answered_calls),
    Largest(
        "/api/chat",
        "many messages",
        lambda room: {"model": _MODEL, "messages": _USER * (room.num_values // 50)},
    ),
    Largest(
        "/api/generate",
        "options.stop",
        lambda room: {
            "model": _MODEL,
            "prompt": "a",
            "options": {"stop": _stops(64, 10_000), "num_predict": 1},
        },
    ),
    Largest(
        "/parse_function_call",
        "text",
        lambda room: {"text": "<tool_call>{" * 80_000, "tools": _tools(1, 10), "tool_call_parser": "qwen25"},
    ),
    Largest(
        "/parse_function_call",
        "tools",
        lambda room: {"text": "a", "tools": _tools(128, 10_000), "tool_call_parser": "qwen25"},
    ),
    Largest("/separate_reasoning", "text", lambda room: {"text": "<think>" * 140_000, "reasoning_parser": "qwen3"}),
    Largest(
        "/v1/batches",
        "metadata",
        lambda room: {
            "input_file_id": "a",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {f"k{n}": "v" for n in range(room.num_values // 12)},
        },
    ),
    Largest(
        "/v1/files",
        "an upload of many lines",
        lambda room: multipart(
            {"purpose": b"batch"}, b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}\n' * 1_000_000
        ),
        lambda _: {"Content-Type": "multipart/form-data; boundary=x"},
    ),
    Largest(
        "/v1/files",
        "an upload of one line",
        lambda room: multipart({"purpose": b"batch"}, b"a" * 60 * MB),
        lambda _: {"Content-Type": "multipart/form-data; boundary=x"},
    ),
    Largest("/abort_request", "rid", lambda room: {"rid": _text(room)}),
)
