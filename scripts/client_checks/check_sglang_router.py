"""sglang-router, its successor smg, or vLLM's router, which came from it, before two servers. One is killed under load:
the router tries whole answers again, and only those streams are lost that it had. Requests with the same beginning come
to the same server."""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from checks import KEY, MODEL, end, equal, get_json, own_server, run_checks, true

MODULE = next((name for name in ("sglang_router", "vllm_router") if importlib.util.find_spec(name)), None)
IS_SMG = MODULE is None  # the environment has one of the three
COMMAND = (
    [str(Path(sys.executable).parent / "smg"), "launch"]
    if IS_SMG
    else [sys.executable, "-m", f"{MODULE}.launch_router"]
)
FLAGS = ("--api-key", KEY, "--log-level", "warning")
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "List 3 countries."}], "max_tokens": 32}
WIDTH = 8  # requests at a time, of each kind
TOPICS = 6
# By default, several requests have to fail until the router leaves a dead server out, and all attempts at one request
# may be among them: now and then a whole answer is a 500.
BREAKER = ("--cb-failure-threshold", "3")
GONE = 0.3  # seconds until all processes of a server whose first one was killed have ended


@dataclasses.dataclass(frozen=True)
class Sent:
    """A request. begun, ended: seconds, monotonic. failure: ""; none."""

    begun: float
    ended: float
    failure: str


@contextlib.contextmanager
def _router(*workers: str, policy: str = "round_robin", flags: Sequence[str] = ()) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe, socket.create_server(("127.0.0.1", 0)) as of_metrics:
        port, metrics_port = probe.getsockname()[1], of_metrics.getsockname()[1]
    command = [*COMMAND, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers, "--api-key", KEY]
    command += ["--policy", policy, "--log-level", "warning" if MODULE == "vllm_router" else "warn"]
    command += [*flags, *BREAKER, "--health-check-interval-secs", "2", "--prometheus-port", str(metrics_port)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(lambda: process.poll() is not None or _num_healthy(url) == len(workers))
        true(process.poll() is None, "the router has ended")
        yield url
    finally:
        end(process)


def _workers(router: str) -> list[dict[str, Any]]:
    return get_json("/workers", url=router)["workers"]


def _num_healthy(router: str) -> int:
    try:
        return sum(worker["is_healthy"] for worker in _workers(router))
    except OSError:  # it does not listen yet
        return 0


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        true(time.monotonic() < deadline, "it takes too long")
        time.sleep(0.1)


def _ask(router: str, path: str, body: object) -> object:
    """The answer, or the status that came in its place."""
    try:
        return get_json(path, body, url=router)
    except urllib.error.HTTPError as error:
        return error.code


def check_routes() -> None:
    policy = "power_of_two" if IS_SMG else "round_robin"  # the first one asks for loads
    with own_server(*FLAGS) as (one, _), own_server(*FLAGS) as (other, _), _router(one, other, policy=policy) as router:
        equal([model["id"] for model in get_json("/v1/models", url=router)["data"]], [MODEL])
        known = "unknown" if MODULE == "vllm_router" else MODEL  # vLLM's asks for no name
        equal([worker["model_id"] for worker in _workers(router)], [known] * 2)
        if IS_SMG:
            _check_loads(router)
        for _ in range(4):
            true(_ask(router, "/v1/chat/completions", CHAT)["choices"][0]["message"]["content"])
        true(_ask(router, "/v1/completions", {"model": MODEL, "prompt": "Hello"})["choices"][0]["text"])
        for body in ({"text": "Hello"}, {"text": ["Hello", "World"]}, {"text": "Hello", "return_logprob": True}):
            true(_ask(router, "/generate", body | {"sampling_params": {"max_new_tokens": 8}}))
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        data = b'{"model": "%s", "stream": true, "prompt": "Hello"}' % MODEL.encode()
        with urllib.request.urlopen(urllib.request.Request(f"{router}/v1/completions", data, headers)) as stream:
            true(stream.read().endswith(b"data: [DONE]\n\n"))
        equal(_ask(router, "/v1/chat/completions", CHAT | {"temperature": -1}), 400)


def _check_loads(router: str) -> None:
    """It asks each server for its load, and understands the answer. Where that takes too long, it reads metrics until
    the next time; these have no sections."""
    _wait(lambda: all("memory" in rank for load in _loads(router) for rank in load.get("loads") or [{}]))
    for load in _loads(router):
        equal(load["dp_rank_count"], 1)
        (rank,) = load["loads"]
        true(rank["max_total_num_tokens"] == rank["memory"]["token_capacity"] > 0, rank)
        equal(rank["queues"], {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0})


def _loads(router: str) -> list[dict[str, Any]]:
    return [worker.get("engine_load") or {} for worker in _workers(router)]


def check_a_killed_worker() -> None:
    """Kill one of two servers under load. All whole answers arrive; only streams that were under way may be lost, and
    not all of those."""
    with (
        own_server(*FLAGS) as (one, victim),
        own_server(*FLAGS) as (other, _),
        _router(one, other, policy="random") as router,  # in turns, all streams may come to one of the two
    ):
        stop = threading.Event()
        whole, streams = list[Sent](), list[Sent]()

        def ask_on(ask: Callable[[str], str], sent: list[Sent]) -> None:
            while not stop.is_set():
                begun = time.monotonic()
                failure = ask(router)
                sent.append(Sent(begun, time.monotonic(), failure))

        with concurrent.futures.ThreadPoolExecutor(2 * WIDTH) as pool:
            asking = [pool.submit(ask_on, *of) for _ in range(WIDTH) for of in ((_whole, whole), (_stream, streams))]
            try:
                time.sleep(1.5)
                moment = time.monotonic()
                os.killpg(victim.pid, signal.SIGKILL)
                time.sleep(5)
                _wait(lambda: sum(sent.begun > moment for sent in streams) > 2 * WIDTH)
            finally:
                stop.set()
        for one in asking:
            one.result()
        equal([sent for sent in whole if sent.failure], [])
        lost = [sent for sent in streams if sent.failure]
        true(all(sent.begun - GONE <= moment <= sent.ended for sent in lost), (moment, lost))
        true(len(lost) < WIDTH, lost)
        print(f"{len(lost)} of {len(streams)} streams lost, 0 of {len(whole)} whole answers")


def check_prefixes() -> None:
    """With the policy that knows prefixes, a conversation stays with the server that has its beginning in the cache."""
    with (
        own_server(*FLAGS) as (one, _),
        own_server(*FLAGS) as (other, _),
        _router(one, other, policy="cache_aware") as router,
        concurrent.futures.ThreadPoolExecutor(TOPICS) as pool,
    ):

        def cached(topic: int, turn: int) -> float:
            """The share of the prompt that was in the cache."""
            text = f"{topic} {chr(97 + topic) * 3} " * 60 + f"Question {turn}"
            body = CHAT | {"messages": [{"role": "user", "content": text}]}
            usage = get_json("/v1/chat/completions", body, url=router)["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]

        turns = [list(pool.map(lambda topic, turn=turn: cached(topic, turn), range(TOPICS))) for turn in range(4)]
        true(max(turns[0]) < 0.5, turns)
        true(min(min(later) for later in turns[1:]) > 0.8, turns)
        asked = [_num_requests(url) for url in (one, other)]
        true(min(asked) > 0, asked)


def check_kv_events() -> None:
    """vLLM's router knows from KV events what each server has in its cache, without having sent it there."""
    if MODULE != "vllm_router":
        return
    with _with_events() as one, _with_events() as other:
        flags = [f"{kind}={server[0]}={place}" for server in (one, other) for kind, place in server[1].items()]
        flags += ["--kv-event-block-size=16", f"--kv-event-model={MODEL}"]
        with _router(one[0], other[0], policy="kv_aware", flags=flags) as router:

            def cached(topic: int, turn: int, url: str) -> float:
                text = f"{topic} {chr(97 + topic) * 3} " * 60 + f"Question {turn}"
                body = CHAT | {"messages": [{"role": "user", "content": text}]}
                usage = get_json("/v1/chat/completions", body, url=url)["usage"]
                return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]

            for topic in range(TOPICS):
                true(cached(topic, 0, (one, other)[topic % 2][0]) < 0.5)
            time.sleep(1)
            shares = [cached(topic, 1, router) for topic in range(TOPICS)]
            true(min(shares) > 0.8, shares)


@contextlib.contextmanager
def _with_events() -> Iterator[tuple[str, dict[str, str]]]:
    """A server that publishes them: its address, and the router's flags of its sockets, each with a place."""
    with socket.socket() as live, socket.socket() as replay:
        places = []
        for probe in (live, replay):
            probe.bind(("127.0.0.1", 0))
            places.append(probe.getsockname()[1])
    endpoints = {"endpoint": f"tcp://*:{places[0]}", "replay_endpoint": f"tcp://*:{places[1]}"}
    config = json.dumps({"enable_kv_cache_events": True, **endpoints})
    with own_server(*FLAGS, "--kv-events-config", config) as (url, _):
        names = ("--kv-event-source", "--kv-event-replay-source")
        yield url, {name: f"tcp://127.0.0.1:{place}" for name, place in zip(names, places, strict=True)}


def _num_requests(server: str) -> float:
    request = urllib.request.Request(f"{server}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sglang:num_requests_total"))


def _whole(router: str) -> str:
    answer = _ask(router, "/v1/chat/completions", CHAT)
    return str(answer) if isinstance(answer, int) else ""


def _stream(router: str) -> str:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = json.dumps(CHAT | {"stream": True, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{router}/v1/chat/completions", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=150) as stream:
            text = stream.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    return "" if text.endswith(b"data: [DONE]\n\n") and b'"error"' not in text else repr(text[-200:])


if __name__ == "__main__":
    run_checks()
