"""Ollama's SDK: chat and generate, their streams, reports of the prefill in them, JSON, models, async, errors."""

import json
from typing import Any

import httpx
import ollama
from checks import KEY, MODEL, URL, equal, own_server, raises, run_checks, true

HEADERS = {"Authorization": f"Bearer {KEY}"}
CLIENT = ollama.Client(URL, headers=HEADERS)
QUESTION = "List 3 countries and their capitals."
CHAT: Any = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
GREEDY = {"temperature": 0, "num_predict": 8}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Vicenza", "Venice"]}},
    "required": ["city"],
    "additionalProperties": False,
}


class ProgressTransport(httpx.HTTPTransport):
    """Adds the field that the SDK has no argument for."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = json.dumps(json.loads(request.read()) | {"return_progress": True}).encode()
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        asking = httpx.Request(
            request.method, request.url, headers=headers, content=body, extensions=request.extensions
        )
        return super().handle_request(asking)


def check_chat() -> None:
    answer = CLIENT.chat(**CHAT, options=GREEDY)
    equal((answer.message.role, answer.done, answer.done_reason, answer.eval_count), ("assistant", True, "length", 8))
    true(answer.message.content)
    parts = list(CLIENT.chat(**CHAT, options=GREEDY, stream=True))
    equal("".join(part.message.content for part in parts), answer.message.content)
    equal((parts[-1].done, parts[-1].eval_count), (True, 8))


def check_generate() -> None:
    answer = CLIENT.generate(MODEL, QUESTION, options=GREEDY)
    parts = list(CLIENT.generate(MODEL, QUESTION, options=GREEDY, stream=True))
    equal("".join(part.response for part in parts), answer.response)
    true(answer.prompt_eval_count)


def check_progress_and_no_comments() -> None:
    """While one request runs, the next one waits long enough for comments, which lines of JSON have not."""
    with own_server("--sse-keep-alive-interval", "0.01", "--max-running-requests", "1") as (url, _):
        client = ollama.Client(url, transport=ProgressTransport())
        first = client.chat(**CHAT, options={"num_predict": 200, "stop": []}, stream=True)
        next(first)
        parts = list(client.chat(**CHAT, options=GREEDY, stream=True))
        true(list(first)[-1].done)
    reports = [part for part in parts if not part.done and not part.message.content]
    true(reports, parts)
    equal("".join(part.message.content for part in parts), CLIENT.chat(**CHAT, options=GREEDY).message.content)


def check_json() -> None:
    answer = CLIENT.chat(**CHAT, format=SCHEMA, options={"temperature": 0, "num_predict": 64})
    true(json.loads(answer.message.content)["city"] in ("Vicenza", "Venice"))


def check_models() -> None:
    true(any(MODEL in model.model for model in CLIENT.list().models))
    true(CLIENT.show(MODEL).details)


def check_errors() -> None:
    with raises(ollama.ResponseError, "404"):
        CLIENT.chat(**CHAT | {"model": "another"})
    with raises(ollama.ResponseError, "400"):
        CLIENT.chat(**CHAT, options={"temperature": -1})
    with raises(ollama.ResponseError, "401"):
        ollama.Client(URL).chat(**CHAT)
    with raises(ollama.ResponseError, "400"):
        list(CLIENT.chat(**CHAT, options={"temperature": -1}, stream=True))


async def check_async() -> None:
    parts = [part async for part in await ollama.AsyncClient(URL, headers=HEADERS).chat(**CHAT, stream=True)]
    true(parts[-1].done)


if __name__ == "__main__":
    run_checks()
