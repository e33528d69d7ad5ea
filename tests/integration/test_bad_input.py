"""What clients get wrong: nothing of it crashes, hangs or leaks a page (the `server` fixture checks).

A few of each kind, with a real engine behind. tests/http/wire/test_bad_requests.py has every field, and the slow tests
here have them all with a real engine.
"""

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.serving import (
    BODIES,
    CHAT,
    COMPLETIONS,
    CONTEXT_LENGTH,
    EOS_ID,
    GENERATE,
    MODEL,
    OTHER_NAME,
    ROUTES,
    VOCAB_SIZE,
    Server,
    error_of,
)

EIGHT_MB = "All of Gaul is divided into three parts. " * 180_000  # about what a body may have here


def check_refused(server: Server, path: str, changes: dict, param: str) -> str:
    error = error_of(server.post(path, BODIES[path] | changes))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.rpartition(".")[2] in error["message"]
    return error["message"]


def sampling(path: str, name: str, value: object) -> tuple[dict, str]:
    """One sampling field, where the route wants it; and the name that an error gives it."""
    if path != GENERATE:
        return {name: value}, name
    name = "max_new_tokens" if name == "max_tokens" else name
    return {"sampling_params": {name: value}}, f"sampling_params.{name}"


def few(rows: list, *quick: int) -> list:
    """Parameters of a test: the rows of these numbers always run, the others are slow."""
    return [row if i in quick else pytest.param(*_values(row), marks=pytest.mark.slow) for i, row in enumerate(rows)]


def _values(row: object) -> tuple:
    return row if isinstance(row, tuple) else (row,)


WRONG_TYPES = [
    (CHAT, {"messages": "Hello"}, "messages"),
    (CHAT, {"messages": {}}, "messages"),
    (CHAT, {"messages": ["Hello"]}, "messages.0"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    (CHAT, {"messages": [{"content": "no role"}]}, "messages.0.role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages.0.content.0.text"),
    (CHAT, {"max_completion_tokens": "4"}, "max_completion_tokens"),
    (CHAT, {"logprobs": 3}, "logprobs"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    (CHAT, {"stream_options": "usage"}, "stream_options"),
    (COMPLETIONS, {"prompt": 5}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", 5]}, "prompt"),
    (COMPLETIONS, {"prompt": [[1, 2], 3]}, "prompt"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt"),
    (COMPLETIONS, {"prompt": [True]}, "prompt"),
    (COMPLETIONS, {"prompt": {"text": "Hello"}}, "prompt"),
    (COMPLETIONS, {"echo": "yes"}, "echo"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"suffix": "the end"}, "suffix"),
    (GENERATE, {"text": 5}, "text"),
    (GENERATE, {"input_ids": [1, 2]}, "text"),
    (GENERATE, {"sampling_params": "greedy"}, "sampling_params"),
    (GENERATE, {"sampling_params": {"temprature": 0}}, "sampling_params.temprature"),
    (GENERATE, {"return_logprob": "yes"}, "return_logprob"),
]


@pytest.mark.parametrize(("path", "changes", "param"), few(WRONG_TYPES, 0, 11, 22, 25))
def test_wrong_types(server, path, changes, param):
    check_refused(server, path, changes, param)


SAMPLING_FIELDS = [
    ("temperature", "0"),
    ("temperature", True),
    ("temperature", -0.1),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", 2.5),
    ("top_k", -2),
    ("min_p", 2),
    ("n", 0),
    ("n", 1000),
    ("frequency_penalty", 3),
    ("presence_penalty", [1]),
    ("repetition_penalty", 0),
    ("min_tokens", -1),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "4"),
    ("max_tokens", 10**30),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("seed", "lucky"),
    ("ignore_eos", 1),
    ("stop", 5),
    ("stop", {"text": "."}),
    ("stop", [1]),
    ("stop", [[]]),
    ("stop", ["", "a"]),
    ("stop", ["x"] * 65),
    ("stop_token_ids", "2"),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [-1]),
    ("logit_bias", [1]),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": "high"}),
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("name", "value"), few(SAMPLING_FIELDS, 1, 17, 27, 33))
def test_sampling_fields(server, path, name, value):
    changes, param = sampling(path, name, value)
    error = error_of(server.post(path, BODIES[path] | changes))
    assert error["param"] is not None
    assert error["param"] == param or error["param"].startswith(f"{param}.")
    assert param.rpartition(".")[2] in error["message"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("token_id", few([VOCAB_SIZE, -1, 2**40, 2**63 - 1], 0, 3))
def test_ids_out_of_the_vocabulary(server, path, token_id):
    for name, value in (("stop_token_ids", [token_id]), ("logit_bias", {str(token_id): 1})):
        changes, param = sampling(path, name, value)
        error = error_of(server.post(path, BODIES[path] | changes))
        assert error["param"] in (param, name)
    if path == COMPLETIONS:
        for prompt in ([5, token_id], [[5], [5, token_id]]):
            assert str(token_id) in check_refused(server, path, {"prompt": prompt}, "prompt")
    if path == GENERATE:
        answer = server.post(path, {"input_ids": [5, token_id]})
        assert str(token_id) in error_of(answer)["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_unknown_model(server, path):
    for name in ("gpt-4", "", "*", MODEL.upper()):
        error = error_of(server.post(path, BODIES[path] | {"model": name}), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert MODEL in error["message"]
    assert error_of(server.post(path, BODIES[path] | {"model": 5}))["param"] == "model"
    for name in (MODEL, OTHER_NAME):
        answer = server.post(path, BODIES[path] | {"model": name})
        assert answer.status_code == 200
        assert answer.json().get("model", name) == name
    assert error_of(server.http.get("/v1/models/gpt-4"), 404)["code"] == "model_not_found"


NOTHING_TO_ANSWER = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"max_tokens": 4}, "messages"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt"),
    (COMPLETIONS, {"prompt": ["Hello", ""]}, "prompt"),
    (COMPLETIONS, {}, "prompt"),
    (GENERATE, {"text": ""}, "text"),
    (GENERATE, {"input_ids": []}, "input_ids"),
    (GENERATE, {}, "text"),
]


@pytest.mark.parametrize(("path", "body", "param"), few(NOTHING_TO_ANSWER, 3, 8))
def test_nothing_to_answer(server, path, body, param):
    assert error_of(server.post(path, body))["param"] == param


@pytest.mark.parametrize(
    "raw", few([b"", b"{", b"[]", b"5", b'"x"', b"null", b'{"prompt": "a", "temperature": NaN}'], 1, 6)
)
@pytest.mark.parametrize("path", ROUTES)
def test_no_json_object(server, path, raw):
    answer = server.http.post(path, content=raw, headers={"Content-Type": "application/json"})
    error_of(answer)


@pytest.mark.parametrize("number", few(["NaN", "Infinity", "-Infinity", "1e999", "-1e999"], 3))
@pytest.mark.parametrize("path", ROUTES)
def test_numbers_that_are_none(server, path, number):
    changes, _ = sampling(path, "temperature", 12345.0)
    raw = json.dumps(BODIES[path] | changes).replace("12345.0", number)
    error_of(server.http.post(path, content=raw.encode(), headers={"Content-Type": "application/json"}))


@pytest.mark.parametrize("text", few([b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\\ud800", b"\\udc00 x"], 1, 3))
@pytest.mark.parametrize("path", ROUTES)
def test_text_that_is_not_utf8(server, path, text):
    raw = json.dumps(BODIES[path]).encode().replace(b"Hello", text)
    error_of(server.http.post(path, content=raw, headers={"Content-Type": "application/json"}))


@pytest.mark.parametrize("extra", few([0, 1, 600], 0))
def test_prompt_over_the_context(server, extra):
    """As long as the context is too long too: there would be no room for a token."""
    ids = [5] * (CONTEXT_LENGTH + extra)
    for answer in (
        server.post(COMPLETIONS, {"prompt": ids}),
        server.post(COMPLETIONS, {"prompt": ids, "stream": True}),
        server.post(COMPLETIONS, {"prompt": [[5], ids]}),
        server.post(GENERATE, {"input_ids": ids}),
    ):
        error = error_of(answer)
        assert str(len(ids)) in error["message"]
        assert str(CONTEXT_LENGTH) in error["message"]
        assert error["code"] == "context_length_exceeded"
    messages = [{"role": "user", "content": "word " * len(ids)}]
    count = server.post("/tokenize", {"messages": messages}).json()["count"]
    error = error_of(server.post(CHAT, {"messages": messages}))
    assert error["param"] == "messages"
    assert str(count) in error["message"]
    assert str(CONTEXT_LENGTH) in error["message"]


@pytest.mark.parametrize("max_tokens", few([CONTEXT_LENGTH, 100_000, 2**31, 2**63 - 1], 0, 3))
def test_max_tokens_over_the_context(server, max_tokens):
    answer = server.post(COMPLETIONS, {"prompt": [5] * 100, "max_tokens": max_tokens})
    error = error_of(answer)
    assert error["param"] == "max_tokens"
    assert all(str(number) in error["message"] for number in (100, max_tokens, CONTEXT_LENGTH))
    error = error_of(server.post(CHAT, BODIES[CHAT] | {"max_tokens": None, "max_completion_tokens": max_tokens}))
    assert error["param"] == "max_completion_tokens"
    assert "max_completion_tokens" in error["message"]


def test_the_whole_context(server):
    """The largest request that fits is served to its end."""
    body = {"prompt": [5] * 100, "max_tokens": CONTEXT_LENGTH - 100, "ignore_eos": True}
    answer = server.post(COMPLETIONS, body).json()
    assert answer["usage"]["total_tokens"] == CONTEXT_LENGTH
    longest = server.post(COMPLETIONS, {"prompt": [5] * (CONTEXT_LENGTH - 1), "ignore_eos": True}).json()
    assert longest["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("path", ROUTES)
def test_seeds_of_64_bits(server, path):
    texts = {}
    for seed in (0, 1, 2**32, 2**63, 2**63 - 1, -1, -(2**63), 2**64 - 1):
        body = BODIES[path] | sampling(path, "seed", seed)[0]
        if path == GENERATE:
            body["sampling_params"] |= {"max_new_tokens": 32, "temperature": 1}
        else:
            body |= {"max_tokens": 32, "temperature": 1}
        answers = [server.post(path, body).json() for _ in range(2)]
        first, second = (answer.get("choices") or answer["text"] for answer in answers)
        assert first == second
        texts[seed % 2**64] = str(first)
    assert len(set(texts.values())) == len(texts)  # all 64 bits count; -1 and 2**64 - 1 are the same


@pytest.mark.parametrize("path", ROUTES)
def test_eight_megabytes(server, path):
    """Refused with both numbers, and others are answered meanwhile."""
    body = {
        CHAT: {"messages": [{"role": "user", "content": EIGHT_MB}]},
        COMPLETIONS: {"prompt": EIGHT_MB},
        GENERATE: {"text": EIGHT_MB},
    }[path]
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.url, timeout=5) as other:
        slow = pool.submit(server.post, path, body)
        while not slow.done():
            begun = time.monotonic()
            assert other.get("/health").status_code == 200
            assert time.monotonic() - begun < 3.0
            time.sleep(0.05)
    error = error_of(slow.result())
    assert error["code"] == "context_length_exceeded"
    assert max(map(int, re.findall(r"\d+", error["message"]))) >= len(EIGHT_MB)  # a chat template adds some
    assert str(CONTEXT_LENGTH) in error["message"]


def test_body_over_the_limit(server):
    with socket.create_connection(("127.0.0.1", server.http.base_url.port or 0), timeout=20) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_eos_is_what_the_checkpoint_says(server):
    answer = server.post(COMPLETIONS, BODIES[COMPLETIONS] | {"logit_bias": {str(EOS_ID): 100}}).json()
    assert answer["choices"][0]["matched_stop"] == EOS_ID
