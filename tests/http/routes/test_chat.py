"""Chat completions through the real openai SDK."""

import asyncio

import httpx
import openai
import pytest

from tests.fake_engine import CACHED_TOKENS, EOS_ID, MODEL, FakeEngine

USER = [{"role": "user", "content": "List 3 countries and their capitals."}]


def test_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER, temperature=0, max_tokens=64)
    choice = answer.choices[0]
    assert (answer.object, answer.model, len(answer.id)) == ("chat.completion", MODEL, 32)
    assert (choice.message.content, choice.message.role) == ("Hello, wörld 🎉!", "assistant")
    assert choice.message.reasoning_content is None
    assert (choice.finish_reason, choice.matched_stop, choice.stop_reason) == ("stop", EOS_ID, EOS_ID)
    assert answer.usage.prompt_tokens == len(engine.calls[0].prompt_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert answer.system_fingerprint.startswith("fp_")
    assert engine.calls[0].params.max_tokens == 64


def test_strict_validation_of_the_sdk_passes(client: openai.OpenAI) -> None:
    strict = client.with_options()
    strict._strict_response_validation = True
    strict.chat.completions.create(model=MODEL, messages=USER, logprobs=True, top_logprobs=2)
    for _ in strict.chat.completions.create(model=MODEL, messages=USER, stream=True, logprobs=True):
        pass


def test_every_sampling_field_reaches_the_engine(client: openai.OpenAI, engine: FakeEngine) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "rid": "mine",
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        temperature=0.3,
        top_p=0.95,
        presence_penalty=0.2,
        frequency_penalty=-0.2,
        n=2,
        seed=-(2**63),
        stop="\n",
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=4,
        max_completion_tokens=8,
        user="someone",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        extra_body=extra,
    )
    params = engine.calls[0].params
    assert answer.id == engine.calls[0].request_id == "mine"
    assert (params.temperature, params.top_p, params.presence_penalty, params.frequency_penalty) == (
        0.3,
        0.95,
        0.2,
        -0.2,
    )
    assert (params.n, params.seed, params.stop, params.logit_bias) == (2, -(2**63), ("\n",), {5: -100.0})
    assert (params.logprobs, params.max_tokens, params.top_k, params.min_p) == (4, 8, 5, 0.1)
    assert (params.repetition_penalty, params.min_tokens, params.stop_token_ids) == (1.1, 2, (7,))
    assert params.ignore_eos
    assert params.no_stop_trim
    assert not params.skip_special_tokens
    assert not params.spaces_between_special_tokens
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_defaults_come_from_the_checkpoint_unless_openai_is_asked_for(engine: FakeEngine, serve) -> None:
    engine.sampling_defaults = {"temperature": 0.7, "top_k": 20}
    for flags, expected in (({}, (0.7, 20)), ({"sampling_defaults": "openai"}, (1.0, -1))):
        with openai.OpenAI(base_url=serve(**flags) + "/v1", api_key="x") as client:
            client.chat.completions.create(model=MODEL, messages=USER)
        params = engine.calls[-1].params
        assert (params.temperature, params.top_k) == expected
        assert params.max_tokens is None  # the rest of the context


def test_preferred_sampling_params_are_over_the_checkpoints_and_below_the_requests(engine: FakeEngine, serve) -> None:
    engine.sampling_defaults = {"temperature": 0.7, "top_k": 20}
    preferred = '{"temperature": 0.5, "max_new_tokens": 40, "stop": ["zz"], "min_p": null}'
    url = serve(preferred_sampling_params=preferred)
    chat, text, ids = {"messages": USER}, {"prompt": "hi"}, {"text": "hi"}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text), ("/generate", ids)):
        httpx.post(url + path, json=body).raise_for_status()
        params = engine.calls[-1].params
        assert (params.temperature, params.top_k, params.max_tokens, params.stop) == (0.5, 20, 40, ("zz",))
    httpx.post(url + "/v1/chat/completions", json=chat | {"temperature": 0.1, "max_tokens": 50}).raise_for_status()
    params = engine.calls[-1].params
    assert (params.temperature, params.max_tokens) == (0.1, 50)
    prompt = [5] * 2040  # which leaves eight tokens
    httpx.post(url + "/v1/completions", json={"prompt": prompt}).raise_for_status()
    assert engine.calls[-1].params.max_tokens == 8
    assert httpx.get(url + "/get_model_info").json()["preferred_sampling_params"]["max_tokens"] == 40


def test_a_preferred_min_tokens_makes_way_for_a_short_request(engine: FakeEngine, serve) -> None:
    url = serve(preferred_sampling_params='{"min_new_tokens": 8}')
    chat, text, ids = {"messages": USER}, {"prompt": "hi"}, {"text": "hi"}
    for given, least in ((1, 1), (8, 8), (9, 8)):
        length, samples = {"max_tokens": given}, {"sampling_params": {"max_new_tokens": given}}
        for path, body in (
            ("/v1/chat/completions", chat | length),
            ("/v1/completions", text | length),
            ("/generate", ids | samples),
        ):
            httpx.post(url + path, json=body).raise_for_status()
            assert engine.calls[-1].params.min_tokens == least
    httpx.post(url + "/v1/completions", json=text | {"max_tokens": 0, "echo": True}).raise_for_status()
    assert engine.calls[-1].params.min_tokens == 0
    error = httpx.post(url + "/v1/completions", json=text | {"max_tokens": 1, "min_tokens": 2}).json()["error"]
    assert error["param"] == "min_tokens"


def test_nulls_and_neutral_values_pass(client: openai.OpenAI) -> None:
    neutral = {
        "temperature": None,
        "stop": [],
        "seed": None,
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "separate_reasoning": True,
        "stream_reasoning": True,
        "chat_template_kwargs": {"enable_thinking": True},
        "stream_options": {"include_usage": True},
        "lora_path": None,
    }
    answer = client.chat.completions.create(model=MODEL, messages=USER, extra_body=neutral)
    assert answer.choices[0].message.reasoning_content is None


def test_stop_string(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(model=MODEL, messages=USER, stop=["wör", "zzz"]).choices[0]
    assert (choice.message.content, choice.finish_reason, choice.matched_stop) == ("Hello, ", "stop", "wör")
    choice = client.chat.completions.create(
        model=MODEL, messages=USER, stop="wör", extra_body={"include_stop_str_in_output": True}
    ).choices[0]
    assert choice.message.content == "Hello, wör"


def test_logprobs_have_bytes_also_of_half_code_points(client: openai.OpenAI) -> None:
    content = (
        client.chat.completions.create(model=MODEL, messages=USER, logprobs=True, top_logprobs=3)
        .choices[0]
        .logprobs.content
    )
    assert b"".join(bytes(token.bytes) for token in content[:-1]).decode() == "Hello, wörld 🎉!"
    assert content[0].token == "Hello"
    assert content[0].top_logprobs[0].token == "Hello"
    assert content[0].top_logprobs[2].logprob == -9999.0  # -inf has no JSON
    assert any(token.token.startswith("bytes:\\x") for token in content)


def test_prompt_logprobs_and_token_ids(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, extra_body={"prompt_logprobs": 2, "return_token_ids": True}
    )
    prompt_ids = engine.calls[0].prompt_ids
    assert answer.prompt_token_ids == prompt_ids
    assert answer.choices[0].token_ids[-1] == EOS_ID
    assert answer.prompt_logprobs[0] is None
    first = answer.prompt_logprobs[1]
    assert first[str(prompt_ids[1])]["rank"] == 1
    assert len(answer.prompt_logprobs) == len(prompt_ids)
    assert len(first) == 2


def test_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=USER, n=2, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk"
    *parts, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == 30
    assert all(part.usage is None for part in parts)
    for index in (0, 1):
        mine = [part.choices[0] for part in parts if part.choices[0].index == index]
        assert (mine[0].delta.role, mine[0].delta.content) == ("assistant", "")
        assert all(choice.delta.role is None for choice in mine[1:])
        assert "".join(choice.delta.content or "" for choice in mine) == "Hello, wörld 🎉!"
        assert all(choice.finish_reason is None for choice in mine[:-1])
        assert mine[-1].delta.content is None
        assert (mine[-1].finish_reason, mine[-1].matched_stop) == ("stop", EOS_ID)


def test_seeds_stream_loop(client: openai.OpenAI) -> None:
    text = ""
    for chunk in client.chat.completions.create(model=MODEL, messages=USER, stream=True):
        if chunk.choices[0].delta.content is not None:
            text += chunk.choices[0].delta.content
    assert text == "Hello, wörld 🎉!"


def test_sdk_stream_helper_accumulates(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=USER, logprobs=True) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello, wörld 🎉!"
    assert answer.choices[0].finish_reason == "stop"


def test_continuous_usage(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=USER, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 15)


def test_stream_logprobs_and_token_ids_cover_every_token(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        model=MODEL, messages=USER, stream=True, logprobs=True, top_logprobs=1, extra_body={"return_token_ids": True}
    )
    choices = [chunk.choices[0] for chunk in chunks]
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    ids = [token_id for choice in choices for token_id in getattr(choice, "token_ids", None) or []]
    assert len(tokens) == len(ids) == 15


def test_stream_interval_makes_fewer_events(engine: FakeEngine, serve) -> None:
    with openai.OpenAI(base_url=serve(stream_interval=4) + "/v1", api_key="x") as client:
        chunks = list(client.chat.completions.create(model=MODEL, messages=USER, stream=True))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert "".join(texts) == "Hello, wörld 🎉!"
    assert texts[0] == "Hello"  # the first token is not held back
    assert len(texts) == 5


def test_async_client_runs_many_at_once(serve, engine: FakeEngine) -> None:
    engine.reply = lambda ids, index: f"{len(ids)}/{index}"
    engine.delay = 0.001

    async def main(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x") as client:

            async def one(size: int) -> None:
                stream = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "x" * size}], stream=True
                )
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
                assert text.endswith("/0")

            await asyncio.gather(*map(one, range(1, 33)))

    asyncio.run(main(serve()))
    assert len(engine.calls) == 32
    assert all(call.finished for call in engine.calls)


def test_error_after_the_first_token_is_an_event(client: openai.OpenAI, engine: FakeEngine) -> None:
    from palladio.runtime.interface.errors import EngineDeadError

    engine.fail, engine.fail_after = EngineDeadError("the engine ended"), 2
    stream = client.chat.completions.create(model=MODEL, messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="the engine ended"):
        list(stream)


def test_error_before_the_first_token_is_a_status_also_for_streams(client: openai.OpenAI, engine: FakeEngine) -> None:
    from palladio.runtime.interface.errors import OverloadedError

    engine.refuse = OverloadedError("queue full", retry_after=2.5)
    with pytest.raises(openai.InternalServerError, match="queue full") as caught:
        client.chat.completions.create(model=MODEL, messages=USER, stream=True)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize("stream", [False, True])
def test_engine_abort_keeps_its_status(client: openai.OpenAI, engine: FakeEngine, stream: bool) -> None:
    for status, code in ((503, "overloaded"), (500, "generation_failed")):
        engine.abort_status = status
        with pytest.raises(openai.InternalServerError, match="gave up") as caught:
            client.chat.completions.create(model=MODEL, messages=USER, stream=stream)
        assert (caught.value.status_code, caught.value.code) == (status, code)


def test_engine_abort_after_the_first_token_keeps_its_code(http: httpx.Client, engine: FakeEngine) -> None:
    engine.abort_status, engine.fail_after = 500, 2
    body = {"messages": USER}
    answer = http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")
    assert '"code":"generation_failed"' in http.post("/v1/chat/completions", json=body | {"stream": True}).text
