"""Requests that two readers could take for different ones, on raw sockets: each has one answer, or is refused."""

import gzip
import json
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from palladio.http.security.connection import MAX_FRAMING
from tests.fake_engine import FakeEngine
from tests.http.security.limited_server import limited_server
from tests.http.security.test_connection_limits import connect

Address = tuple[str, int]
BODY = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def address(tokenizer) -> Iterator[Address]:
    with limited_server(FakeEngine(tokenizer), max_request_bytes=100_000) as address:
        yield address


def post(lines: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    head = b"POST /v1/completions HTTP/" + version + b"\r\n" + HOST + b"Content-Type: application/json\r\n"
    return head + lines + b"\r\n" + body


def get(lines: bytes = HOST, target: bytes = b"/v1/models", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + target + b" " + version + b"\r\n" + lines + b"\r\n"


def chunk(size: bytes = b"%x" % len(BODY)) -> bytes:
    return size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"


def ask(address: Address, *parts: bytes, count: int = 1) -> list[tuple[int, str | None]]:
    """Status and error code of the first answers on one connection."""
    with connect(address) as sock:
        for part in parts:
            sock.sendall(part)
        answers = sock.makefile("rb")
        return [read_answer(answers) for _ in range(count)]


def read_answer(answers: BinaryIO) -> tuple[int, str | None]:
    status = int(answers.readline().split(b" ")[1])
    size = 0
    while line := answers.readline().strip().lower():
        if line.startswith(b"content-length:"):
            size = int(line[15:])
    body = answers.read(size)
    return status, json.loads(body)["error"]["code"] if status >= 400 else None


def coded(coding: bytes) -> bytes:
    return post(b"Transfer-Encoding: " + coding + b"\r\n", chunk())


def twice(name: bytes, first: bytes, second: bytes) -> bytes:
    return post(LENGTH + name + b": " + first + b"\r\n" + name + b": " + second + b"\r\n")


REFUSED = {
    "coding before chunked": (coded(b"gzip, chunked"), 501),
    "coding before chunked on another line": (coded(b"gzip\r\nTransfer-Encoding: chunked"), 501),
    "chunked is not the last": (coded(b"chunked, gzip"), 400),
    "chunked twice": (coded(b"chunked, chunked"), 400),
    "almost chunked": (coded(b"xchunked"), 400),
    "chunked with a parameter": (coded(b"chunked;q=1"), 400),
    "identity": (coded(b"identity"), 400),
    "chunks and a length": (post(CHUNKED + LENGTH, chunk()), 400),
    "chunks in HTTP/1.0": (post(CHUNKED, chunk(), b"1.0"), 400),
    **{f"chunk of {size!r}": (post(CHUNKED, chunk(size)), 400) for size in (b"-5", b"0x5", b"%x" % 2**70, b"", b"1_0")},
    "long chunk extensions": (post(CHUNKED, b"5;a=" + b"x" * 4 * MAX_FRAMING) + b"x" * 3 * MAX_FRAMING, 400),
    "long trailers": (post(CHUNKED, chunk()[:-2] + b"A: " + b"x" * 8 * MAX_FRAMING), 400),
    "two lengths": (post(LENGTH + LENGTH), 400),
    "folded line": (get(HOST + b"A: b\r\n c\r\n"), 400),
    "bare line feeds": (get().replace(b"\r", b""), 400),
    "space before the colon": (post(b"Content-Length : 5\r\n"), 400),
    "no host": (get(b""), 400),
    "two hosts": (get(HOST + HOST), 400),
    "host with a path": (get(b"Host: localhost/x\r\n"), 400),
    "host with a user": (get(b"Host: localhost@evil.example\r\n"), 400),
    "absolute target of another host": (get(target=b"http://evil.example/v1/models"), 403),
    "absolute target with a user": (get(target=b"http://localhost@evil.example/v1/models"), 400),
    "absolute target of another protocol": (get(target=b"ftp://localhost/v1/models"), 400),
    "target with a fragment": (get(target=b"/v1/models#x"), 400),
    "connect": (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "HTTP/2.0": (get(version=b"HTTP/2.0"), 505),
    "HTTP/0.9": (b"GET /v1/models\r\n\r\n", 505),
    "unknown expectation": (post(LENGTH + b"Expect: 200-foo\r\n"), 417),
    "an expectation too much": (post(LENGTH + b"Expect: 100-continue, 200-foo\r\n"), 417),
    "two origins": (twice(b"Origin", b"http://localhost", b"http://localhost"), 400),
    "two keys": (twice(b"Authorization", b"Bearer a", b"Bearer b"), 400),
    "two content types": (twice(b"Content-Type", b"application/json", b"text/plain"), 400),
    "two encodings": (twice(b"Content-Encoding", b"gzip", b"gzip"), 415),
    "two encodings, one of which is none": (twice(b"Content-Encoding", b"identity", b"gzip"), 415),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_with_two_readings_is_refused(address: Address, name: str) -> None:
    raw, status = REFUSED[name]
    [(found, code)] = ask(address, raw)
    assert (found, code is not None) == (status, True)


SERVED = {
    "chunks": post(CHUNKED, chunk()),
    "chunks in capitals, after an empty member": coded(b", CHUNKED"),
    "zeros before the size, an extension, a trailer": post(
        CHUNKED, b"000%x;a=b\r\n" % len(BODY) + BODY + b"\r\n0\r\nHost: evil.example\r\nContent-Type: x\r\n\r\n"
    ),
    "many small chunks": post(CHUNKED, b"1\r\n \r\n" * 90_000 + chunk()),
    "absolute target": get(b"Host: evil.example\r\n", b"http://localhost:1/v1/models"),
    "absolute target without a path": get(target=b"http://localhost"),
    "no host in HTTP/1.0": get(b"", version=b"HTTP/1.0"),
    "expectation in HTTP/1.0": post(LENGTH + b"Expect: 200-foo\r\n", version=b"1.0"),
    "the same content type twice": twice(b"Content-Type", b"application/json", b"application/json"),
    "offer of another protocol": post(LENGTH + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"),
}


@pytest.mark.parametrize("name", SERVED)
def test_what_the_standard_allows_is_served(address: Address, name: str) -> None:
    assert ask(address, SERVED[name]) == [(200, None)]


def test_a_body_after_an_offer_of_another_protocol_is_no_request(address: Address) -> None:
    raw = post(LENGTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"")
    assert ask(address, raw, BODY) == [(200, None)]
    inner = get()
    raw = post(b"Content-Length: %d\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" % len(inner), b"")
    assert ask(address, raw, inner) == [(400, "invalid_json")]
    assert ask(address, (raw + inner) * 3 + get(), count=4) == [(400, "invalid_json")] * 3 + [(200, None)]


def test_requests_before_a_broken_one_are_answered(address: Address) -> None:
    for broken in (get(HOST + b"A : b\r\n"), post(CHUNKED, chunk(b"-5"))):
        answers = ask(address, get() * 3 + broken + get(), count=4)
        assert answers == [(200, None)] * 3 + [(400, "invalid_http")]


@pytest.mark.parametrize("packed", [True, False])
def test_whoever_sends_far_too_much_reads_why_it_is_refused(address: Address, packed: bool) -> None:
    """A connection closed while bytes are unread is reset, and the answer lost with it."""
    body = gzip.compress(bytes(10_000_000)) * 200 if packed else bytes(8_000_000)
    line = b"Content-Encoding: gzip\r\n" if packed else b""
    for lines, sent in (
        (b"Content-Length: %d\r\n" % len(body), body),
        (CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)),
    ):
        assert ask(address, post(line + lines, sent)) == [(413, "request_too_large")]
