"""sglang-router, or its successor smg, before two servers. One is killed under load: all requests are answered."""

import concurrent.futures
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from checks import KEY, MODEL, end, equal, get_json, own_server, run_checks, true, wait_for

IS_SMG = importlib.util.find_spec("sglang_router") is None  # the environment has one of the two
COMMAND = (
    [str(Path(sys.executable).parent / "smg"), "launch"]
    if IS_SMG
    else [sys.executable, "-m", "sglang_router.launch_router"]
)
FLAGS = ("--api-key", KEY, "--log-level", "warning")
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "List 3 countries."}], "max_tokens": 32}


@contextlib.contextmanager
def _router(*workers: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*COMMAND, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers, "--api-key", KEY]
    command += ["--policy", "power_of_two" if IS_SMG else "round_robin", "--log-level", "warn"]
    command += ["--health-check-interval-secs", "2", "--prometheus-port", str(port + 1)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/readiness", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


def _ask(router: str, path: str, body: object) -> object:
    """The answer, or the status that came in its place."""
    try:
        return get_json(path, body, url=router)
    except urllib.error.HTTPError as error:
        return error.code


def check_routes() -> None:
    with own_server(*FLAGS) as (one, _), own_server(*FLAGS) as (other, _), _router(one, other) as router:
        equal([model["id"] for model in get_json("/v1/models", url=router)["data"]], [MODEL])
        workers = get_json("/workers", url=router)["workers"]
        equal([worker["model_id"] for worker in workers], [MODEL] * 2)
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
    """It asks each server for its load, and understands the answer."""
    for _ in range(100):
        loads = [worker.get("engine_load") for worker in get_json("/workers", url=router)["workers"]]
        if all(loads):
            break
        time.sleep(0.1)
    for load in loads:
        equal(load["dp_rank_count"], 1)
        (rank,) = load["loads"]
        true(rank["max_total_num_tokens"] == rank["memory"]["token_capacity"] > 0, rank)
        equal(rank["queues"], {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0})


def check_a_killed_worker() -> None:
    """What it had is tried again by the router; what comes later goes to the other one."""
    with own_server(*FLAGS) as (one, victim), own_server(*FLAGS) as (other, _), _router(one, other) as router:
        stop, killer = threading.Event(), threading.Timer(1.0, os.killpg, (victim.pid, signal.SIGKILL))

        def ask_on() -> list[object]:
            answers = []
            while not stop.is_set():
                answers.append(_ask(router, "/v1/chat/completions", CHAT))
            return answers

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            killer.start()
            asking = [pool.submit(ask_on) for _ in range(8)]
            time.sleep(6)
            stop.set()
        answers = [answer for one in asking for answer in one.result()]
        failed = [answer for answer in answers if isinstance(answer, int)]
        true(len(answers) > 40, len(answers))
        equal(failed, [])


if __name__ == "__main__":
    run_checks()
