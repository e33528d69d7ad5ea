"""The server is told to end, or its engine dies."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from palladio.utils import _descendants
from tests.integration.serving import BODIES, COMPLETIONS, MODEL, error_of


@pytest.mark.slow
def test_sigterm_lets_a_stream_finish(launch):
    """New requests are refused meanwhile; then both processes end."""
    server = launch("--served-model-name *")
    for name in ("anything", "a/b", MODEL):
        assert server.post(COMPLETIONS, BODIES[COMPLETIONS] | {"model": name}).json()["model"] == name
    engine = _descendants(server.process.pid)
    assert engine
    body = {"prompt": "Hello", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", COMPLETIONS, json=body) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        server.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=server.url, timeout=20) as other:
            answer = other.post(COMPLETIONS, json=BODIES[COMPLETIONS])
            while answer.status_code == 200:  # the signal is on its way
                answer = other.post(COMPLETIONS, json=BODIES[COMPLETIONS])
            assert error_of(answer, 503)["code"] == "engine_not_ready"
            assert other.get("/health").status_code == 503
        events = [line for line in [first, *lines] if line]
    assert events[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in events[-2]
    assert server.process.wait(20) == 0
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in engine)
    assert "Traceback" not in server.log()


@pytest.mark.slow
def test_the_engine_dies(launch):
    """/health says so, streams end with an error, and nothing hangs."""
    server = launch("--max-engine-restarts 0")
    (engine,) = [pid for pid in _descendants(server.process.pid) if b"engine" in _command(pid)]
    body = {"prompt": "Hello", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", COMPLETIONS, json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(engine, signal.SIGKILL)
        assert any('"error"' in line for line in lines)
    assert server.http.get("/health").status_code == 503
    assert error_of(server.post(COMPLETIONS, BODIES[COMPLETIONS]), 503)["code"] == "engine_dead"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) is not None


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
