"""sglang-router before two servers, one of which is killed under load: every request is answered."""

import concurrent.futures
import contextlib
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

from checks import KEY, MODEL, end, equal, get_json, own_server, run_checks, true, wait_for

FLAGS = ("--api-key", KEY, "--log-level", "warning")
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "List 3 countries."}], "max_tokens": 32}


@contextlib.contextmanager
def _router(*workers: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *workers, "--api-key", KEY, "--policy", "round_robin", "--log-level", "warn"]
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
