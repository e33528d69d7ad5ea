"""Load against a server that says what it is told: what is measured, what fails, and how fast requests come."""

import asyncio
import json
import random
import statistics
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.load.client import Answer, Target, ask, find_model
from palladio.load.figures import percentile, summarize
from palladio.load.http_client import ClientError, HttpClient
from palladio.load.plot import check_plot_path, render_svg
from palladio.load.runner import Pace, run_asks
from palladio.load.sweep import Slo, sweep
from palladio.load.workloads import Ask, Mix, make_asks
from palladio.runtime.interface.errors import ConfigError
from tests.fake_openai import FakeServer, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


async def asked(target: Target, max_tokens: int = 2) -> Answer:
    async with target.client() as client:
        return await ask(target, client, "Hi", max_tokens)


async def test_an_answer_is_measured(server: FakeServer) -> None:
    server.deltas, server.delay = [{"reasoning_content": "a"}, *({"content": "b"} for _ in range(4))], 0.01
    answer = await asked(Target(server.url, "m", "chat", {"temperature": None}, "KEY"), 5)
    assert (answer.error, answer.completion_tokens, answer.prompt_tokens, len(answer.gaps)) == (None, 5, 7, 4)
    assert answer.first >= 0.009
    assert all(gap >= 0.005 for gap in answer.gaps)
    assert answer.total >= answer.first + sum(answer.gaps)
    (body,) = server.asked
    assert (body["max_tokens"], body["stream_options"], "temperature" in body) == (5, {"include_usage": True}, False)
    assert server.keys == {"Bearer KEY"}


async def test_what_fails_is_told(server: FakeServer) -> None:
    target = Target(server.url, "m")
    assert (await asked(target, 3)).error == "asked for 3 tokens, got 2"
    server.break_after = 1
    assert (await asked(target)).error == f"{server.url}/v1 does not answer: it broke off"
    server.status, server.body = 429, {"error": {"message": "too many", "code": "x"}}
    assert (await asked(target)).error == "HTTP 429: too many"
    assert "does not answer: " in (await asked(Target("http://127.0.0.1:9", "m"))).error

    async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"what\r\n\r\n")
        writer.close()

    garbage = await asyncio.start_server(talk_nonsense, "127.0.0.1", 0)
    async with garbage:
        port = garbage.sockets[0].getsockname()[1]
        assert "does not answer: " in (await asked(Target(f"http://127.0.0.1:{port}", "m"))).error
    for address in ("ftp://x", "http://", "http://host:port"):
        with pytest.raises(ConfigError, match="--base-url"):
            HttpClient(address)


async def test_connections_are_used_again_and_renewed(server: FakeServer) -> None:
    target = Target(server.url)
    async with target.client() as client:
        named = await find_model(target, client)
        assert named.model == "fake-model"
        for _ in range(3):
            assert (await ask(named, client, "Hi", 2)).error is None
        assert server.connections == 1
        for _, writer in client._idle:  # as the server does with one that has been idle for long
            writer.transport.abort()
        assert (await ask(named, client, "Hi", 2)).error is None
    with pytest.raises(ClientError):
        async with HttpClient(server.url).stream("GET", "models"):
            raise ValueError("while it is read")


async def test_leaving_an_answer_closes_its_connection(server: FakeServer) -> None:
    """By that the server knows that nobody listens."""
    server.deltas, server.delay = [{"content": "x"}] * 2000, 0.001
    async with HttpClient(server.url) as client:
        async with client.stream("POST", "completions", {}) as response:
            assert await anext(response.events())
        assert await asyncio.to_thread(server.left.wait, 10)
        assert (await client.ask("GET", "models"))[0] == 200


async def test_concurrency_is_kept_and_rates_come_at_random(server: FakeServer) -> None:
    target, asks, seen = Target(server.url, "m"), [Ask("Hi", 2)] * 12, []
    server.delay = 0.003
    async with target.client() as client:
        figures = await run_asks(target, client, asks, Pace(concurrency=3), 30, on_answer=seen.append)
        assert (figures["failures"], figures["completion_tokens"], len(seen), server.most_at_once) == (0, 24, 12, 3)
        assert figures["tokens_per_second"] == pytest.approx(24 / figures["seconds"])
        figures = await run_asks(target, client, asks, Pace(rate=200.0), 30, on_answer=seen.append)
        assert figures["failures"] == 0
        starts = sorted(answer.started for answer in seen[12:])
        rng = random.Random("arrivals 0")
        wanted = sum(rng.expovariate(200.0) for _ in asks[1:])
        assert starts[-1] - starts[0] >= 0.9 * wanted
        server.delay = 5
        late = await run_asks(target, client, asks[:1], Pace(concurrency=1), 0.02)
        assert late["errors"] == ["not done after 0.02 s"]
        server.delay = 0


def test_figures() -> None:
    good = [Answer(first=0.1 * n, total=0.1 * n + 0.3, gaps=[0.1] * 3, completion_tokens=4) for n in (1, 2, 3)]
    figures = summarize([*good, Answer(error="gone", first=9.0)], 2.0)
    assert (figures["requests"], figures["failures"], figures["errors"]) == (4, 1, ["gone"])
    assert figures["ttft_p50"] == pytest.approx(0.2)
    assert figures["tpot_p99"] == pytest.approx(0.1)
    assert (figures["tokens_per_second"], figures["requests_per_second"]) == (6.0, 1.5)
    assert percentile([], 50) is None
    assert summarize([], 1.0)["itl_p99"] is None


@pytest.mark.parametrize(
    ("refinements", "loads"), [(0, [1, 2, 4, 8]), (2, [1, 2, 4, 8, 6, 5]), (9, [1, 2, 4, 8, 6, 5])]
)
async def test_a_sweep_goes_up_until_the_promise_breaks(refinements: int, loads: list[float]) -> None:
    """What this server can do is a load of 5."""
    asked = []

    async def measure(pace: Pace) -> dict[str, object]:
        asked.append(pace.value)
        return {"ttft_p99": 0.1 if pace.value <= 5 else 0.6, "failures": 0}

    await sweep(measure, Pace(concurrency=1), [Slo.parse("ttft:p99<500ms")], refinements)
    assert asked == loads


def test_promises() -> None:
    slo = Slo.parse("ITL:p95 <= 1.5s")
    assert (slo.key, slo.limit, slo.name) == ("itl_p95", 1.5, "itl:p95<1500ms")
    assert not slo.holds({"itl_p95": None})
    for wrong in ("ttft<5ms", "ttft:p98<5ms", "speed:p99<5ms", "ttft:p99<5"):
        with pytest.raises(ConfigError, match="ttft:p99<500ms"):
            Slo.parse(wrong)


async def test_prompts_have_the_lengths_that_were_asked_for(server: FakeServer, tmp_path: Path) -> None:
    """A word is two tokens here."""
    target = Target(server.url, "m")
    async with target.client() as client:

        async def texts(mix: Mix, seed: int = 0) -> list[Ask]:
            return await make_asks(target, client, mix, 40, seed)

        random_ = await texts(Mix("random", 200, 50))
        assert statistics.mean(len(each.prompt.split()) for each in random_) == pytest.approx(100, rel=0.2)
        assert {25 <= each.max_tokens <= 75 for each in random_} == {True}
        assert await texts(Mix("random", 200, 50)) == random_ != await texts(Mix("random", 200, 50), 1)
        shared = await texts(Mix("prefix", 100, 10, 60))
        assert len({each.prompt[:100] for each in shared}) == 1
        assert len({each.prompt for each in shared}) == 40
        chats = [each.max_tokens for each in await texts(Mix("sharegpt"))]
        assert len(set(chats)) > 20
        assert 4 <= min(chats) <= max(chats) <= 1024
        file = tmp_path / "chats.json"
        file.write_text(json.dumps([{"conversations": [{"value": "Hi"}, {"value": "x" * 400}]}, {"conversations": []}]))
        assert set(await texts(Mix(dataset=file))) == {Ask("Hi", 100)}
        file.write_text("[]")
        with pytest.raises(ConfigError, match="has no conversations"):
            await texts(Mix(dataset=file))


def test_a_plot_shows_each_level(tmp_path: Path) -> None:
    answers = [Answer(first=0.2, total=0.5, gaps=[0.1], completion_tokens=2)]
    levels = [{"load": load, "of": "rate"} | summarize(answers, 1.0) for load in (1.0, 4.0)]
    svg = render_svg("a <model>", "rate", levels, [Slo.parse("ttft:p99<500ms")])
    root = xml.etree.ElementTree.fromstring(svg)
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (names.count("polyline"), names.count("circle")) == (5, 10)
    assert svg.count("stroke-dasharray") == 1
    assert "a &lt;model&gt;" in svg
    with pytest.raises(ConfigError, match=r"must end with \.svg or \.png"):
        check_plot_path(tmp_path / "x.gif")


def test_answers_are_asked_in_their_own_loop(server: FakeServer) -> None:
    assert asyncio.run(asked(Target(server.url, "m"))).error is None
