"""Clients that are slow, large or many, on raw sockets."""

import json
import socket
import time

import httpx
import pytest

from palladio.http.security.connection import MAX_HEAD
from palladio.http.security.connection_limits import NUM_SPARE
from tests.fake_engine import FakeEngine
from tests.http.security.limited_server import limited_server

BODY = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
POST = HEAD + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def serve(engine: FakeEngine):
    return lambda **flags: limited_server(engine, **flags)


def read_all(sock: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    parts = []
    with sock:
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_answer(sock: socket.socket) -> bytes:
    """A whole answer of one JSON object: its head and its body may come apart."""
    raw = b""
    while not raw.endswith(b"}"):
        raw += sock.recv(65536)
    return raw


def receive_or_none(sock: socket.socket) -> bytes | None:
    """None: nothing yet."""
    try:
        return sock.recv(65536)
    except TimeoutError:
        return None
    except ConnectionResetError:
        return b""


def error_of(raw: bytes) -> tuple[int, str]:
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert head.lower().count(b"connection:") == 1
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=20)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /version HT", b"GET /version HTTP/1.1\r\nHost: localhost\r\nA: "])
def test_a_head_that_does_not_arrive(serve, sent: bytes) -> None:
    with serve(request_read_timeout=0.3) as address:
        sock = connect(address)
        sock.sendall(sent)
        begun = time.monotonic()
        raw = read_all(sock)
        assert 0.2 < time.monotonic() - begun < 5
        if len(sent) > 2:
            assert error_of(raw) == (408, "request_read_timeout")
        else:
            assert raw == b""  # there was no request to answer
        assert httpx.get(f"http://{address[0]}:{address[1]}/version", timeout=30).status_code == 200


def test_a_head_that_trickles_in_is_given_up_all_the_same(serve) -> None:
    with serve(request_read_timeout=0.5) as address:
        for first in (b"\r\n", b"GET /"):  # empty lines may stand before a request
            sock = connect(address)
            sock.settimeout(0.05)
            sock.sendall(first)
            begun = time.monotonic()
            while (raw := receive_or_none(sock)) is None:
                assert time.monotonic() - begun < 5
                sock.sendall(b"\r\n" if first == b"\r\n" else b"x")
            sock.close()
            if first != b"\r\n":
                assert error_of(raw) == (408, "request_read_timeout")


def test_a_second_head_on_the_same_connection(serve) -> None:
    with serve(request_read_timeout=0.3) as address:
        sock = connect(address)
        for _ in range(2):
            sock.sendall(GET)
            assert read_answer(sock).startswith(b"HTTP/1.1 200")
        time.sleep(0.5)  # idle is no request that does not arrive: that is the keep-alive's time
        sock.sendall(GET)
        assert read_answer(sock).startswith(b"HTTP/1.1 200")
        sock.sendall(GET[:20])
        assert error_of(read_all(sock)) == (408, "request_read_timeout")


def test_a_body_that_stands_still(serve, engine: FakeEngine) -> None:
    with serve(request_read_timeout=0.3) as address:
        for sent in (b"", BODY[:5]):
            sock = connect(address)
            sock.sendall(POST % len(BODY) + sent)
            begun = time.monotonic()
            assert error_of(read_all(sock)) == (408, "request_read_timeout")
            assert time.monotonic() - begun < 5
        assert engine.calls == []


def test_a_body_that_trickles_in_takes_no_longer_than_its_size_allows(serve) -> None:
    with serve(request_read_timeout=0.6) as address:
        sock = connect(address)
        sock.sendall(POST % 10_000)
        begun = time.monotonic()
        sock.settimeout(0.1)
        while (raw := receive_or_none(sock)) is None:
            assert time.monotonic() - begun < 5
            sock.sendall(b" ")
        assert error_of(raw) == (408, "request_read_timeout")
        sock.close()


def test_a_body_in_pieces_is_served(serve) -> None:
    with serve(request_read_timeout=1.0) as address:
        sock = connect(address)
        sock.sendall(POST % len(BODY))
        for byte in BODY:
            sock.sendall(bytes([byte]))
            time.sleep(0.002)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        sock.close()


def test_streams_may_last_longer_than_that(serve, engine: FakeEngine) -> None:
    engine.delay = 0.1
    with serve(request_read_timeout=0.2) as (host, port):
        body = {"prompt": "x", "max_tokens": 10, "stream": True}
        answer = httpx.post(f"http://{host}:{port}/v1/completions", json=body, timeout=20)
        assert answer.text.endswith("data: [DONE]\n\n")


def test_the_rest_of_a_body_whose_answer_has_gone_out(serve) -> None:
    with serve(request_read_timeout=0.3, api_key="k") as address:
        sock = connect(address)
        sock.sendall(POST % 1000 + b"x")
        assert read_answer(sock).startswith(b"HTTP/1.1 401")
        sock.sendall(b"x")
        begun = time.monotonic()
        assert read_all(sock) == b""
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("size", [MAX_HEAD + 1, pytest.param(40 * MAX_HEAD, marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["url", "header", "headers", "name"])
def test_large_heads(serve, where: str, size: int) -> None:
    line, name, value, count = b"/version", b"a", b"b", 1
    match where:
        case "url":
            line += b"?" + b"x" * size
        case "header":
            value = b"x" * size
        case "name":
            name = b"x" * size
        case "headers":
            count = size // 2
    with serve() as address:
        sock = connect(address)
        try:
            headers = b"Host: localhost\r\n" + b"%b: %b\r\n" % (name, value) * count
            sock.sendall(b"GET %b HTTP/1.1\r\n%b\r\n" % (line, headers))
            sock.shutdown(socket.SHUT_WR)
            raw = read_all(sock)
        except OSError:
            raw = b""  # it had closed before all was sent
        if raw or size == MAX_HEAD + 1:
            assert error_of(raw) == (431, "headers_too_large")
        assert httpx.get(f"http://{address[0]}:{address[1]}/version").status_code == 200


def test_heads_of_usual_size_pass(serve) -> None:
    with serve() as (host, port):
        answer = httpx.get(f"http://{host}:{port}/version", headers={"cookie": "x" * (MAX_HEAD // 2)})
        assert answer.status_code == 200


def test_what_is_no_http_gets_an_error_like_all_others(serve) -> None:
    with serve() as address:
        sock = connect(address)
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert error_of(read_all(sock)) == (400, "invalid_http")


def test_a_websocket_is_not_spoken(serve) -> None:
    upgrade = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    with serve(api_key="k") as address:
        sock = connect(address)
        sock.sendall(upgrade)
        assert sock.recv(65536).startswith(b"HTTP/1.1 401")
        sock.close()


def test_connections_over_the_limit_get_a_503_but_probes_pass(serve) -> None:
    with serve(max_connections=2, request_read_timeout=20) as address:
        held = [connect(address) for _ in range(2)]
        for sock in held:
            sock.sendall(GET)
            assert read_answer(sock).startswith(b"HTTP/1.1 200")
        over = connect(address)
        over.sendall(GET)  # a probe
        assert read_answer(over).startswith(b"HTTP/1.1 200")
        over.sendall(POST % len(BODY) + BODY)
        raw = read_all(over)
        assert error_of(raw) == (503, "overloaded")
        assert b"retry-after: 1" in raw.lower()
        held[0].sendall(POST % len(BODY) + BODY)  # the ones that came first go on
        assert held[0].recv(65536).startswith(b"HTTP/1.1 200")
        held.pop().close()
        deadline = time.monotonic() + 5
        while True:
            with connect(address) as sock:
                sock.sendall(POST % len(BODY) + BODY)
                if sock.recv(65536).startswith(b"HTTP/1.1 200"):
                    break
            assert time.monotonic() < deadline
        held.pop().close()


def test_far_more_connections_than_the_limit_are_cut(serve) -> None:
    with serve(max_connections=1, request_read_timeout=20) as address:
        held = [connect(address) for _ in range(1 + NUM_SPARE)]
        held[-1].sendall(GET)
        assert held[-1].recv(65536).startswith(b"HTTP/1.1 200")
        with connect(address) as more:
            try:
                more.sendall(GET)
                assert more.recv(65536) == b""
            except (ConnectionResetError, BrokenPipeError):
                pass
        for sock in held:
            sock.close()
