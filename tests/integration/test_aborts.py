"""Clients that leave or abort: nothing hangs or leaks a page (the `server` fixture checks)."""

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.integration.serving import BODIES, COMPLETIONS, MAX_RUNNING, ROUTES, Server, error_of


def send_and_leave(server: Server, path: str, body: dict) -> None:
    """A whole request, whose sender does not wait for the answer."""
    raw = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", server.http.base_url.port or 0), timeout=20) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n"
        )
        connection.sendall(head.encode() + raw)
        time.sleep(0.01)


@pytest.mark.parametrize("path", ROUTES)
def test_leaving_before_the_first_token(server, path):
    """All slots are busy, so these requests wait in the queue when their clients go."""
    # On a busy machine what keeps the slots may end too soon: then that has proved nothing, and it goes again.
    assert any(leave_while_busy(server, path) for _ in range(10))


def leave_while_busy(server: Server, path: str) -> bool:
    """Ten clients come and go; returns whether all slots were busy the whole time."""
    with ThreadPoolExecutor(1) as pool:
        # 240 tokens each: more would not all be admitted at once to the pool of 2,048.
        busy = {"prompt": [[5]] * MAX_RUNNING, "max_tokens": 240, "ignore_eos": True, "seed": 0, "rid": f"busy{path}"}
        running = pool.submit(server.post, COMPLETIONS, busy)
        while server.stats()["num_running"] != MAX_RUNNING and not running.done():
            time.sleep(0.005)
        for stream in (False, True) * 5:
            send_and_leave(server, path, BODIES[path] | {"stream": stream})
        aborted = server.post("/abort_request", {"rid": f"busy{path}"}).json()["aborted"]
        reasons = [choice["finish_reason"] for choice in running.result().json()["choices"]]
        assert reasons.count("abort") == aborted
        assert reasons.count("length") == MAX_RUNNING - aborted
        return aborted == MAX_RUNNING


def test_leaving_in_the_middle(server):
    body = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
    for _ in range(20):
        with server.http.stream("POST", COMPLETIONS, json=body) as stream:
            next(stream.iter_lines())


async def abort_many(url: str, count: int) -> list[str]:
    """How each of `count` requests ended: a third is aborted by id, a third by hanging up, a third as it arrives."""
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        gate = asyncio.Semaphore(24)

        async def one(number: int) -> str:
            rid = f"doomed-{number}"
            body = {"prompt": [5 + number % 300] * (1 + number % 90), "max_tokens": 400, "ignore_eos": True, "rid": rid}
            async with gate, http.stream("POST", COMPLETIONS, json=body | {"stream": True}) as stream:
                if number % 3 == 0:
                    return "left at once"
                lines = stream.aiter_lines()
                await anext(lines)
                if number % 3 == 1:
                    return "left"
                await http.post("/abort_request", json={"rid": rid})
                async for line in lines:
                    if '"finish_reason":"' in line:
                        return str(json.loads(line[6:])["choices"][0]["finish_reason"])
            return "lost"

        return await asyncio.gather(*map(one, range(count)))


@pytest.mark.slow
def test_a_thousand_aborts(server):
    ends = asyncio.run(abort_many(server.url, 1000))
    counts = {end: ends.count(end) for end in set(ends)}
    late = counts.pop("length", 0)  # ran to its end before the abort arrived: on a busy machine
    assert counts == {"left at once": 334, "left": 333, "abort": 333 - late}
    assert late < 200
    server.check_clean()
    answer = server.post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 8, "ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 8


def test_abort_all_and_unknown_ids(server):
    assert server.post("/abort_request", {"rid": "nobody"}).json() == {"aborted": 0}
    assert server.post("/abort_request", {"abort_all": True}).json() == {"aborted": 0}
    error_of(server.post("/abort_request", {}))
    error_of(server.post("/abort_request", {"rid": 5}))


def test_two_requests_with_one_id(server):
    # With probabilities each pass is a step of its own: it still runs when the second one comes.
    body = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True, "rid": "twin", "logprobs": 5}
    with server.http.stream("POST", COMPLETIONS, json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert "twin" in error_of(server.post(COMPLETIONS, body | {"stream": False}))["message"]
