"""A real server under more load than it has room for, and what the prefix cache shows of itself there."""

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.integration.serving import MODEL

QUESTION = "Tell me a long story about the wind and the sea, and about all the ships upon it. " * 2
OUTPUT = 160  # tokens: eight requests of this length need more pages than there are


def ask(client: openai.OpenAI, question: str = QUESTION, **params) -> openai.types.chat.ChatCompletion:
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=24, temperature=0, **params)


def cached(answer: openai.types.chat.ChatCompletion) -> int:
    return answer.usage.prompt_tokens_details.cached_tokens


def test_cached_tokens_are_counted_and_change_nothing(server, client):
    server.post("/flush_cache", {}).raise_for_status()
    first, second = ask(client), ask(client)
    length = first.usage.prompt_tokens
    assert (cached(first), cached(second)) == (0, (length - 1) // 8 * 8)
    assert first.choices[0].message.content == second.choices[0].message.content
    salted = ask(client, extra_body={"cache_salt": "mine"})
    assert cached(salted) == 0
    assert cached(ask(client, extra_body={"extra_key": "mine"})) == cached(second), "two names of one thing"
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert cached(chunks[-1]) == cached(second)
    assert f"#new-token: {length - cached(second)}, #cached-token: {cached(second)}," in server.log()
    assert server.stats()["cache"]["num_hit_tokens"] >= 3 * cached(second)
    server.post("/flush_cache", {}).raise_for_status()
    assert server.stats()["cache"]["num_cached_tokens"] == 0
    assert cached(ask(client)) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--enable-mixed-chunk --schedule-policy lpm",
        "--cache-self-check 0.5 --schedule-policy dfs-weight",
    ],
)
def test_torture(launch, flags):
    """SGLang's tutorial in small: far more requests than fit, answered or cancelled; none stalls, starves or leaks."""
    tight = "--schedule-conservativeness 0.1 --max-total-tokens 1280"
    server = launch(f"--served-model-name {MODEL} --compile lazy {tight} {flags}")

    async def one(http: httpx.AsyncClient, number: int) -> str:
        body = {
            "messages": [{"role": "user", "content": f"{QUESTION} {number % 7}"}],
            "model": MODEL,
            "max_tokens": OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = await http.post("/v1/chat/completions", json=body)
        choice = answer.raise_for_status().json()["choices"][0]
        assert answer.json()["usage"]["completion_tokens"] == OUTPUT
        return choice["message"]["content"]

    async def all_of_them(count: int) -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
            return await asyncio.gather(*(one(http, number) for number in range(count)))

    answers = asyncio.run(all_of_them(14))
    assert all(answers[i] == answers[i % 7] for i in range(14)), "the same question, the same answer"
    assert len(set(answers)) > 1
    assert re.search(
        r"KV cache pool is full\. Retract requests\. #retracted_reqs: \d+, #new_token_ratio: [\d.]+ -> [\d.]+",
        server.log(),
    )

    async def cancelled() -> None:
        async with asyncio.timeout(1.5):
            await all_of_them(100)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    start = time.monotonic()
    server.wait_for_stats(num_running=0, num_waiting=0, num_used_tokens=0)
    with server.client() as client:
        ask(client)
    assert time.monotonic() - start < 20
    server.check_clean()
    stats = server.stats()["cache"]
    assert stats["enabled"]
    assert stats["num_self_check_failures"] == 0
    assert "Traceback" not in server.log()


@pytest.mark.slow
def test_a_full_queue_is_a_503_and_a_deadline_a_504(launch):
    server = launch("--max-queued-requests 1 --request-timeout 3600")
    body = {"prompt": "Hello", "max_tokens": 100, "ignore_eos": True}
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: server.post("/v1/completions", body), range(40)))
    refused = [answer for answer in answers if answer.status_code == 503]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all("--max-queued-requests 1" in answer.json()["error"]["message"] for answer in refused)
    late = server.post("/v1/completions", body | {"timeout": 0.001})
    assert late.status_code == 504
    assert late.json()["error"]["code"] == "deadline_exceeded"
    server.check_clean()
