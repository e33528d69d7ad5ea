"""What a request asks beside its tokens: cache salt, priority, timeout; and the answers 503 and 504."""

import dataclasses
from typing import Any

import httpx
import openai
import pytest

from palladio.runtime.interface.errors import DeadlineError, OverloadedError
from palladio.runtime.interface.request.generation_request import MAX_SALT_LENGTH, RequestOptions
from tests.fake_engine import MODEL, FakeEngine

USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/generate": {"text": "hi"},
}
ROUTES = list(BODIES)


def use(engine: FakeEngine, **scheduler: Any) -> None:
    """Sets scheduler flags."""
    engine.config = dataclasses.replace(
        engine.config, scheduler=dataclasses.replace(engine.config.scheduler, **scheduler)
    )


def test_through_the_sdk(client: openai.OpenAI, engine: FakeEngine) -> None:
    use(engine, schedule_policy="priority")
    extra = {"cache_salt": "tenant", "priority": -3, "timeout": 2}
    client.chat.completions.create(model=MODEL, messages=USER, extra_body=extra)
    for _ in client.chat.completions.create(model=MODEL, messages=USER, stream=True, extra_body=extra):
        pass
    client.completions.create(model=MODEL, prompt=["a", "b"], extra_body=extra)
    assert [call.options for call in engine.calls] == [RequestOptions("tenant", -3, 2.0)] * 4


@pytest.mark.parametrize("path", ROUTES)
def test_a_router_chooses_the_group_of_devices(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    assert http.post(path, json=BODIES[path] | {"routed_dp_rank": 0}).status_code == 200
    assert [call.options.dp_rank for call in engine.calls] == [0]
    answer = http.post(path, json=BODIES[path] | {"routed_dp_rank": 1})
    assert answer.status_code == 400
    assert "routed_dp_rank is 1; this server has one data-parallel rank, 0" in answer.text


@pytest.mark.parametrize("path", ROUTES)
def test_salts(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    for fields in ({}, {"cache_salt": "a"}, {"extra_key": "a"}, {"cache_salt": "a", "extra_key": "b"}):
        assert http.post(path, json=BODIES[path] | fields).status_code == 200
    nothing, salt, key, both = [call.options.cache_salt for call in engine.calls]
    assert (nothing, salt, key, both) == (None, "a", "a", '["a", "b"]')


def test_one_value_for_each_prompt_of_generate(http: httpx.Client, engine: FakeEngine) -> None:
    use(engine, schedule_policy="priority")
    body = {
        "input_ids": [[5], [6]],
        "extra_key": ["a", "b"],
        "cache_salt": "c",
        "priority": [1, 2],
        "timeout": [3, 4.5],
    }
    assert http.post("/generate", json=body).status_code == 200
    assert {call.prompt_ids[0]: call.options for call in engine.calls} == {
        5: RequestOptions('["c", "a"]', 1, 3.0),
        6: RequestOptions('["c", "b"]', 2, 4.5),
    }


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cache_salt": 5}, "string"),
        ({"cache_salt": ""}, "1 … 1024"),
        ({"cache_salt": "x" * (MAX_SALT_LENGTH + 1)}, "1 … 1024"),
        ({"extra_key": {"a": 1}}, "string"),
        ({"extra_key": ""}, "1 … 1024"),
        ({"priority": 1.5}, "integer"),
        ({"priority": "1"}, "integer"),
        ({"priority": True}, "integer"),
        ({"priority": 2**40}, "integer in"),
        ({"priority": 1}, "--schedule-policy priority"),
        ({"timeout": 0}, "> 0"),
        ({"timeout": -2}, "> 0"),
        ({"timeout": "2"}, "number"),
        ({"timeout": True}, "number"),
    ],
)
def test_wrong_values(http: httpx.Client, engine: FakeEngine, path: str, fields: dict, words: str) -> None:
    for stream in (False, True):
        answer = http.post(path, json=BODIES[path] | fields | {"stream": stream})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], [error["param"]]) == (400, "invalid_request_error", [*fields])
        assert words in error["message"]
    assert not engine.calls


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"extra_key": ["a"]}, "extra_key"),
        ({"cache_salt": ["a", "b", "c"]}, "cache_salt"),
        ({"cache_salt": ["a", None]}, "cache_salt.1"),
        ({"priority": [0]}, "priority"),
        ({"timeout": []}, "timeout"),
        ({"timeout": [1, 0]}, "timeout"),
    ],
)
def test_lists_of_generate_have_an_entry_for_each_prompt(http: httpx.Client, fields: dict, param: str) -> None:
    answer = http.post("/generate", json={"text": ["a", "b"]} | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_lists_are_for_generate_only(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": ["a", "b"], "cache_salt": ["a", "b"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


def test_null_and_zero_ask_for_nothing(http: httpx.Client, engine: FakeEngine) -> None:
    use(engine, request_timeout=30.0)
    for path in ROUTES:
        body = BODIES[path] | {"cache_salt": None, "extra_key": None, "priority": 0, "timeout": None}
        assert http.post(path, json=body).status_code == 200
    assert [call.options for call in engine.calls] == [RequestOptions(timeout=30.0)] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_a_deadline_before_the_first_token_is_a_504(
    http: httpx.Client, engine: FakeEngine, path: str, stream: bool
) -> None:
    body = BODIES[path] | {"stream": stream}
    engine.refuse = DeadlineError("too late")
    answers = [http.post(path, json=body)]
    engine.refuse, engine.abort_status = None, 504
    answers.append(http.post(path, json=body))
    for answer in answers:
        error = answer.json()["error"]
        assert answer.status_code == 504
        assert (error["type"], error["code"], error["param"]) == ("server_error", "deadline_exceeded", None)
        assert "retry-after" not in answer.headers


@pytest.mark.parametrize("path", ROUTES)
def test_a_deadline_after_the_first_token_is_an_event_of_the_stream(
    http: httpx.Client, engine: FakeEngine, path: str
) -> None:
    engine.abort_status, engine.fail_after = 504, 2
    assert http.post(path, json=BODIES[path]).status_code == 504
    answer = http.post(path, json=BODIES[path] | {"stream": True})
    assert answer.status_code == 200
    *parts, error, done, end = answer.text.split("\n\n")
    assert "Hello" in "".join(parts)
    assert '"code":"deadline_exceeded"' in error
    assert (done, end) == ("data: [DONE]", "")


def test_the_sdk_at_a_deadline(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.abort_status = 504
    with pytest.raises(openai.InternalServerError, match="gave up") as caught:
        client.chat.completions.create(model=MODEL, messages=USER)
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    engine.fail_after = 2
    chunks: list[Any] = []
    with pytest.raises(openai.APIError, match="gave up") as broken:
        chunks.extend(client.chat.completions.create(model=MODEL, messages=USER, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello,"
    assert broken.value.code == "deadline_exceeded"


def test_the_sdk_tries_again_only_if_it_is_told_to(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.abort_status = 504
    for retries in (0, 1):
        engine.calls.clear()
        with pytest.raises(openai.InternalServerError):
            client.with_options(max_retries=retries).chat.completions.create(model=MODEL, messages=USER)
        assert len(engine.calls) == 1 + retries


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_a_full_queue_is_a_503_with_retry_after(
    http: httpx.Client, engine: FakeEngine, path: str, stream: bool
) -> None:
    several = {"/v1/completions": {"prompt": ["a", "b"]}, "/generate": {"text": ["a", "b"]}}
    for fields in ({"stream": stream}, several.get(path, {}) | {"stream": stream}):
        engine.refuse, engine.abort_status = OverloadedError("The queue is full (--max-queued-requests 2)"), 0
        answers = [http.post(path, json=BODIES[path] | fields)]
        engine.refuse, engine.abort_status = None, 503  # as the engine process says it
        answers.append(http.post(path, json=BODIES[path] | fields))
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"


def cached(prompt_ids: list[int], index: int) -> int:
    """The first sample finds what others left; the next ones find the prompt of the first one."""
    return 10 * prompt_ids[0] if index == 0 else 1000


def test_cached_tokens_count_once_for_each_prompt(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.cached_tokens = cached
    options = {"include_usage": True, "continuous_usage_stats": True}
    usage = client.completions.create(model=MODEL, prompt=[[7], [8]], n=3).usage
    assert usage.prompt_tokens_details.cached_tokens == 70 + 80
    chunks = list(client.completions.create(model=MODEL, prompt=[[7], [8]], n=3, stream=True, stream_options=options))
    assert chunks[-1].usage == usage
    assert all(chunk.usage.prompt_tokens_details.cached_tokens <= 150 for chunk in chunks)
    usage = client.chat.completions.create(model=MODEL, messages=USER, n=2).usage
    first = engine.calls[-1].prompt_ids[0]
    assert usage.prompt_tokens_details.cached_tokens == 10 * first
    *_, last = client.chat.completions.create(model=MODEL, messages=USER, n=2, stream=True, stream_options=options)
    assert last.usage == usage


def test_generate_tells_the_cached_tokens_of_each_sample(http: httpx.Client, engine: FakeEngine) -> None:
    engine.cached_tokens = cached
    body = {"input_ids": [[7], [8]], "sampling_params": {"n": 2}}
    answers = http.post("/generate", json=body).json()
    assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [70, 1000, 80, 1000]
