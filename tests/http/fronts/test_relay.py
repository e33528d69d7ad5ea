"""Several fronts answer as one: here three apps in one process, each with an engine of its own, so that it shows which
one was asked."""

import asyncio
import contextlib

import httpx
import msgspec
import pytest

from palladio.http.app import create_app
from palladio.http.observability.front_counts import ended_counts
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from palladio.runtime.interface.errors import ConfigError, OverloadedError
from tests.fake_engine import FakeEngine

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
BRIEF = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
MODEL = FakeEngine(None).config.source.model_path


class Member:
    """A front's Peers, without processes between."""

    is_alone = False
    member = ""

    def __init__(self, group, number):
        self.group, self.number = group, number
        self.answerers = {}

    async def lead(self):
        return []

    async def leader(self):
        if not self.group.leading:
            raise OverloadedError("no front process does this now; try again soon")
        return self.group.leading

    async def ask(self, front, kind, body=b""):
        if front not in self.group.members:
            raise OverloadedError("it has ended")
        async for part in self.group.members[front].answerers[kind](body):
            yield part

    async def ask_others(self, kind, body=b""):
        others = [number for number in self.group.members if number != self.number]
        return [b"".join([part async for part in self.ask(number, kind, body)]) for number in others]

    async def tally(self, own):
        return [*await self.ask_others("metrics", own), *self.group.gone]

    def note(self, event):
        pass

    def answer(self, kind, answerer):
        self.answerers[kind] = answerer


class Group:
    """Front 2 leads."""

    def __init__(self):
        self.members, self.gone, self.leading = {}, [], 2
        self.engines, self.apps = {}, {}

    def client(self, number, key=None):
        transport = httpx.ASGITransport(self.apps[number], client=("127.0.0.1", 1))
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@contextlib.asynccontextmanager
async def three_fronts(tokenizer, folder, **flags):
    group, stores, held = Group(), [], contextlib.ExitStack()
    held.callback(Storage(folder).close)
    for number in (1, 2, 3):
        engine = group.engines[number] = FakeEngine(tokenizer, reply="Hello")
        config = HttpConfig(file_storage_path=str(folder), **flags)
        peers = group.members[number] = Member(group, number)
        stores.append(Storage(folder, is_held=True))
        group.apps[number] = create_app(engine, config, storage=stores[-1], peers=peers)
    try:
        yield group
    finally:
        for app in group.apps.values():
            await app.state.batch_worker.stop()
            await app.state.unfinished_responses.stop()
            if app.state.sampler is not None:
                await app.state.sampler.stop()
        for store in stores:
            store.close()
        held.close()


@pytest.fixture
async def fronts(tokenizer, tmp_path):
    async with three_fronts(tokenizer, tmp_path) as group:
        yield group


def counter(text, name):
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


async def ask_each(group, count=1):
    for number in (1, 2, 3):
        async with group.client(number) as client:
            for index in range(count):
                assert (await client.post(CHAT, json={**BRIEF, "rid": f"r{number}.{index}"})).status_code == 200


async def test_metrics_are_of_all_fronts_and_counters_outlive_them(fronts):
    await ask_each(fronts, 2)
    async with fronts.client(1) as client:
        before = (await client.get("/metrics")).text
        assert counter(before, "sglang:num_requests_total") == 6
        assert counter(before, "sglang:time_to_first_token_seconds_count") == 6
        assert counter(before, "sglang:http_requests_active") == 1
        asked = [part async for part in fronts.members[3].answerers["metrics"](b"")]
        del fronts.members[3]
        fronts.gone = asked
        counts = msgspec.msgpack.decode(asked[0])
        fronts.gone = [ended_counts([msgspec.msgpack.encode(counts | {"http_active": 7, "live_batches": 7})])]
        after = (await client.get("/metrics")).text
    assert counter(after, "sglang:num_requests_total") == 6
    assert counter(after, "sglang:http_requests_active") == 1, "what a front was at ends with it"
    assert counter(after, "palladio:live_batches") == 0


async def test_a_request_is_explained_and_aborted_wherever_it_is(fronts):
    await ask_each(fronts)
    for engine in fronts.engines.values():
        engine.delay, engine.reply = 0.02, "x" * 500
    async with fronts.client(1) as first, fronts.client(3) as third:
        assert [(await first.get(f"/v1/requests/r{number}.0/explain")).status_code for number in (1, 2, 3)] == [200] * 3
        assert (await first.get("/v1/requests/r9/explain")).status_code == 404
        bodies = [{**BRIEF, "max_tokens": 500, "rid": f"long{client}"} for client in (1, 3)]
        running = [
            asyncio.create_task(client.post(CHAT, json=body))
            for client, body in zip((first, third), bodies, strict=True)
        ]
        while (await first.get("/load")).json() != {"server_load": 2}:
            await asyncio.sleep(0.01)
        assert (await third.post("/abort_request", json={"rid": "long1"})).json() == {"aborted": 1}
        await running[0]
        assert (await third.post("/abort_request", json={"abort_all": True})).json() == {"aborted": 1}
        answers = await asyncio.gather(*running)
        assert [answer.json()["choices"][0]["finish_reason"] for answer in answers] == ["abort", "abort"]
        refused = await third.post("/abort_request", json={})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "rid")


async def test_background_responses_are_made_where_the_leader_is(fronts):
    async with fronts.client(1) as first, fronts.client(3) as third:
        plain = await first.post(RESPONSES, json={"input": "Hi", "metadata": {"background": "no"}})
        assert plain.json()["status"] == "completed"
        assert (len(fronts.engines[1].calls), len(fronts.engines[2].calls)) == (1, 0)
        made = (await first.post(RESPONSES, json={"input": "Hi", "background": True})).json()
        assert made["status"] == "queued"
        followed = await third.get(f"{RESPONSES}/{made['id']}", params={"stream": True})
        assert followed.headers["content-type"].startswith("text/event-stream")
        assert followed.text.rstrip().splitlines()[-1].startswith('data: {"type":"response.completed"')
        assert [len(engine.calls) for engine in fronts.engines.values()] == [1, 1, 0]
        assert (await third.get(f"{RESPONSES}/{plain.json()['id']}")).json() == plain.json()
        broken = await first.post(
            RESPONSES, content=b'{"background": true', headers={"content-type": "application/json"}
        )
        assert broken.json()["error"]["code"] == "invalid_json"
        assert (await first.delete(f"{RESPONSES}/{made['id']}")).json()["deleted"]
        assert (await third.get(f"{RESPONSES}/{made['id']}")).status_code == 404


async def test_batches_and_the_dashboard_are_the_leaders_and_without_one_there_is_a_503(fronts):
    await ask_each(fronts)
    async with fronts.client(1) as client:
        assert (await client.get("/v1/batches")).json()["data"] == []
        data = (await client.get("/dashboard/data")).json()
        assert data["totals"]["requests"] == 3
        fronts.engines[3].fail = ZeroDivisionError("in front 3")
        async with fronts.client(3) as third:
            assert (await third.post(CHAT, json=BRIEF)).status_code == 500
        errors = (await client.get("/dashboard/data")).json()["errors"]
        assert [error["where"] for error in errors] == [f"POST {CHAT}"]
        del fronts.members[2]
        assert (await client.get("/v1/batches")).status_code == 503
        fronts.leading = 0
        refused = await client.get("/v1/batches")
        assert (refused.status_code, refused.json()["error"]["message"][:16]) == (503, "no front process")
        assert (await client.post(CHAT, json=BRIEF)).status_code == 200, "all else goes on"


async def test_keys_and_limits_hold_before_a_request_is_handed_on(tokenizer, tmp_path):
    flags = {"api_key": "anna:key-of-anna,ben:key-of-ben", "max_request_bytes": 2000}
    async with three_fronts(tokenizer, tmp_path, **flags) as group:
        async with group.client(1) as stranger:
            assert (await stranger.get("/v1/batches")).status_code == 401
        async with group.client(1, "key-of-anna") as anna, group.client(3, "key-of-ben") as ben:
            made = (await anna.post(RESPONSES, json={"input": "Hi", "background": True})).json()
            assert (await ben.get(f"{RESPONSES}/{made['id']}")).status_code == 404
            assert (await anna.get(f"{RESPONSES}/{made['id']}")).status_code == 200
            large = await anna.post(RESPONSES, json={"input": "x" * 3000, "background": True})
            assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
            assert len(group.engines[2].calls) == 1


def test_a_folder_is_held_for_all_fronts_and_by_one_server(tmp_path):
    parent = Storage(tmp_path / "storage")
    fronts = [Storage(parent.folder, is_held=True) for _ in range(2)]
    with pytest.raises(ConfigError, match="in use by another server"):
        Storage(parent.folder)
    for store in (*fronts, parent):
        store.close()
