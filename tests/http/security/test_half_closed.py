"""Clients that shut down their sending side after the request, as `nc -N` and some proxies do, and clients that go."""

import http.client
import json
import socket
import struct
import threading

import pytest

from tests.fake_engine import FakeEngine
from tests.http.conftest import wait_until
from tests.http.security.limited_server import limited_server
from tests.pairwise import pairwise

PATHS = {
    "/v1/completions": {"prompt": "x", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
}


def send(address: tuple[str, int], path: str, version: str = "1.1", **fields: object) -> socket.socket:
    raw = json.dumps(PATHS[path] | fields).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock = socket.create_connection(address, timeout=20)
    sock.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return sock


def read_all(sock: socket.socket) -> bytes:
    with sock:
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize(("path", "stream", "version"), pairwise(list(PATHS), [False, True], ["1.0", "1.1"]))
def test_a_half_closed_client_gets_its_answer(engine: FakeEngine, path: str, stream: bool, version: str) -> None:
    engine.reply, engine.first_delay, engine.delay = "word " * 20, 0.3, 0.01
    with limited_server(engine) as address:
        sock = send(address, path, version, stream=stream)
        sock.shutdown(socket.SHUT_WR)
        raw = read_all(sock)  # the server closes it after the answer
    while version == "1.1" and raw.startswith(b"HTTP/1.1 100 "):  # clients ignore these
        raw = raw.partition(b"\r\n\r\n")[2]
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head.lower()
    assert b"data: [DONE]" in body if stream else json.loads(body)["choices"][0]["finish_reason"] == "length"
    assert not engine.calls[0].aborted


def test_a_stream_that_has_begun_goes_on_when_the_client_stops_sending(engine: FakeEngine) -> None:
    engine.reply, engine.delay = "word " * 20, 0.02
    with limited_server(engine) as address:
        sock = send(address, "/v1/completions", stream=True, max_tokens=20)
        first = sock.recv(65536)
        sock.shutdown(socket.SHUT_WR)
        assert (first + read_all(sock)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_gone_is_noticed_before_its_answer_begins(engine: FakeEngine, stream: bool) -> None:
    engine.first_delay = 30
    with limited_server(engine) as address:
        sock = send(address, "/v1/completions", stream=stream)
        wait_until(lambda: len(engine.calls) == 1)
        sock.close()
        wait_until(lambda: engine.calls[0].aborted and not engine._running)


def test_a_client_of_http_1_0_that_has_gone_is_noticed_when_the_system_knows(engine: FakeEngine) -> None:
    """It knows by its probes, in a minute; at once where the client's system refuses what it has not read."""
    engine.first_delay = 30
    with limited_server(engine) as address:
        sock = send(address, "/v1/completions", "1.0")
        wait_until(lambda: len(engine.calls) == 1)
        sock.shutdown(socket.SHUT_WR)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        wait_until(lambda: engine.calls[0].aborted and not engine._running)


def test_a_stream_for_a_client_of_http_1_0_has_no_chunks(engine: FakeEngine) -> None:
    """It ends with the connection: such a client would take the lengths of chunks for text."""
    engine.reply = "word " * 20
    with limited_server(engine) as address:
        raw = read_all(send(address, "/v1/completions", "1.0", stream=True, max_tokens=20))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    lines = [line for line in body.decode().split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["choices"] for line in lines)


def test_a_client_that_leaves_a_stream_is_noticed(engine: FakeEngine) -> None:
    engine.reply, engine.delay = "x" * 5000, 0.02
    with limited_server(engine) as address:
        sock = send(address, "/v1/completions", stream=True, max_tokens=400)
        sock.recv(65536)
        sock.close()
        wait_until(lambda: engine.calls[0].aborted and not engine._running)


def test_a_request_that_is_cut_off_has_no_answer(engine: FakeEngine) -> None:
    with limited_server(engine) as address:
        sock = socket.create_connection(address, timeout=20)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
        sock = socket.create_connection(address, timeout=20)
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: loc")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    assert not engine.calls


def test_python_s_own_client_reads_past_the_signs_of_life(engine: FakeEngine) -> None:
    engine.first_delay = 0.4
    with limited_server(engine) as address:
        client = http.client.HTTPConnection(*address, timeout=20)
        threading.Timer(0.1, lambda: client.sock.shutdown(socket.SHUT_WR)).start()
        body = json.dumps(PATHS["/v1/completions"])
        client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert client.getresponse().status == 200
        client.close()
