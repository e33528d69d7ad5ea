"""Clients that read slowly, or not at all, on raw sockets."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import FakeEngine
from tests.http.conftest import wait_until
from tests.http.security.limited_server import limited_server
from tests.http.security.test_connection_limits import read_answer
from tests.http.security.test_tls import Files

FIELDS = "Host: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
HEAD = "POST {} HTTP/1.1\r\n" + FIELDS + "Content-Length: {}\r\n\r\n"
LONG = {"prompt": ["x"] * 16, "max_tokens": 1500, "n": 4, "logprobs": 5}  # some 20 MB as a stream


@pytest.fixture
def engine(engine: FakeEngine) -> FakeEngine:
    engine.reply = "x" * 4000
    return engine


def ask(address: tuple[str, int], path: str, body: dict) -> socket.socket:
    """Sends a request; its answer is there to be read."""
    sock = connect(address)
    send(sock, path, body)
    return sock


def connect(address: tuple[str, int]) -> socket.socket:
    """A client that keeps little for itself."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    sock.connect(address)
    return sock


def send(sock: socket.socket, path: str, body: dict) -> None:
    raw = json.dumps(body).encode()
    sock.sendall(HEAD.format(path, len(raw)).encode() + raw)


def pieces(sock: socket.socket, size: int, pause: float) -> Iterator[bytes]:
    with sock:
        while part := sock.recv(size):
            yield part
            time.sleep(pause)


def read_all(sock: socket.socket) -> bytes:
    return b"".join(pieces(sock, 65536, 0))


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_that_never_reads_is_cut_and_its_request_aborted(engine: FakeEngine, caplog, stream: bool) -> None:
    with (
        limited_server(engine, response_write_timeout=0.8) as address,
        ask(address, "/v1/completions", LONG | {"stream": stream}) as sock,
    ):
        if stream:
            wait_until(lambda: len(engine.calls) == 16)
            wait_until(lambda: all(call.aborted for call in engine.calls) and not engine._running, 20)
            assert engine.num_tokens < 16 * 4 * 1500 / 4, "what nobody reads is not made"
        wait_until(lambda: "(--response-write-timeout); closing the connection" in caplog.text, 20)
        with pytest.raises(ConnectionResetError):
            read_all(sock)


def test_for_one_that_never_reads_no_stream_is_made(engine: FakeEngine) -> None:
    engine.delay = 1e-4
    body = {"prompt": "x", "max_tokens": 1500, "n": 4, "logprobs": 5, "stream": True}
    with limited_server(engine, response_write_timeout=0.4) as address, ask(address, "/v1/completions", body):
        wait_until(lambda: bool(engine.calls) and engine.calls[0].aborted and not engine._running, 20)
    assert 4 < engine.num_tokens < 4 * 1500 / 2


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_that_reads_slowly_gets_it_all(engine: FakeEngine, stream: bool) -> None:
    body = {"prompt": "x", "max_tokens": 1200, "logprobs": 5, "stream": stream, "n": 1 if stream else 8}
    with limited_server(engine, response_write_timeout=0.5) as address:
        begun = time.monotonic()
        raw = b"".join(pieces(ask(address, "/v1/completions", body), 4096, 0.02))
        assert time.monotonic() - begun > 1.0, "it took longer than the timeout"
    if stream:
        assert raw.count(b'"tokens":[') == 1200
        assert b"data: [DONE]\n\n" in raw
    else:
        choices = json.loads(raw.partition(b"\r\n\r\n")[2])["choices"]
        assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [1200] * 8


def test_tls_is_watched_as_well(engine: FakeEngine, caplog, tmp_path: Path) -> None:
    files = Files(tmp_path)
    flags = {"ssl_certfile": files.cert, "ssl_keyfile": files.key}
    with limited_server(engine, response_write_timeout=0.8, **flags) as address:
        plain = connect(address)
        with files.client().wrap_socket(plain, server_hostname="localhost") as sock:
            send(sock, "/v1/completions", LONG | {"stream": True})
            wait_until(lambda: len(engine.calls) == 16)
            wait_until(lambda: all(call.aborted for call in engine.calls) and not engine._running, 20)
            assert "(--response-write-timeout); closing the connection" in caplog.text


def test_one_that_has_its_answer_may_rest(engine: FakeEngine) -> None:
    with limited_server(engine, response_write_timeout=0.2) as address:
        sock = socket.create_connection(address, timeout=20)
        for _ in range(2):
            sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(sock).startswith(b"HTTP/1.1 200")
            time.sleep(0.6)
        sock.close()


def test_one_that_waits_for_tokens_is_left_alone(engine: FakeEngine) -> None:
    engine.delay = 0.5
    with limited_server(engine, response_write_timeout=0.2) as address:
        sock = ask(address, "/v1/completions", {"prompt": "x", "max_tokens": 4, "stream": True})
        assert b"data: [DONE]\n\n" in read_all(sock)


def test_the_last_bytes_are_watched_too(engine: FakeEngine, caplog) -> None:
    """Those that are too few to make the server wait, and that stand there when the answer is over."""
    with limited_server(engine, response_write_timeout=0.5) as address:
        body = {"prompt": "x", "max_tokens": 200, "logprobs": 5, "stream": True}
        size = len(read_all(ask(address, "/v1/completions", body))) / 200
        socks = []
        for kilobytes in range(100, 191, 10):  # the system takes more than 128 KiB, and 64 more do not make it wait
            more = {"max_tokens": int(1000 * kilobytes / size)}
            socks.append(ask(address, "/v1/completions", body | more))
        wait_until(lambda: len(engine.calls) == 1 + len(socks) and not engine._running, 20)
        assert all(call.finished for call in engine.calls)
        wait_until(lambda: "closing the connection" in caplog.text, 20)
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("value", [0, -1.0, float("inf")])
def test_the_flag_is_checked(value: float) -> None:
    with pytest.raises(ConfigError, match="--response-write-timeout must be > 0 and finite"):
        HttpConfig(response_write_timeout=value)
