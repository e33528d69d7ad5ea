"""Compressed request bodies: read within the limits, or refused by name."""

import gzip
import io
import json
import time
import zlib

import httpx
import pytest

from palladio.http.wire.body import SLICE, Inflater
from palladio.http.wire.errors import HttpError
from tests.fake_engine import FakeEngine

BODY = json.dumps({"prompt": "Hello", "max_tokens": 4}).encode()
JSON = {"content-type": "application/json"}


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY[:10]) + gzip.compress(BODY[10:]),
    "GZIP": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    "Deflate": bare_deflate(BODY),
    "identity": BODY,
}


@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_compressed_body_is_read(http: httpx.Client, engine: FakeEngine, encoding: str, is_chunked: bool) -> None:
    packed = PACKED[encoding]
    content = (packed[i : i + 1] for i in range(len(packed))) if is_chunked else packed
    answer = http.post("/v1/completions", content=content, headers=JSON | {"content-encoding": encoding})
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 4)
    assert engine.calls[0].params.max_tokens == 4


def test_an_upload_may_be_compressed(http: httpx.Client) -> None:
    form = httpx.Request("POST", "http://x", files={"file": ("a.jsonl", b"x" * 5000)}, data={"purpose": "batch"})
    headers = {"content-type": form.headers["content-type"], "content-encoding": "gzip"}
    answer = http.post("/v1/files", content=gzip.compress(form.read()), headers=headers)
    assert (answer.status_code, answer.json()["bytes"]) == (200, 5000)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress", "x"])
def test_another_encoding_is_a_415_that_names_the_header(http: httpx.Client, encoding: str) -> None:
    answer = http.post("/v1/completions", content=BODY, headers=JSON | {"content-encoding": encoding})
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "gzip, deflate"
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_content_encoding", "Content-Encoding")
    assert error["message"].startswith(f"Content-Encoding {encoding!r} is not supported")


@pytest.mark.parametrize(
    "packed",
    [BODY, PACKED["gzip"][:-1], PACKED["gzip"] + b"rest", PACKED["gzip"][:-5] + b"wrong", b"\x1f", PACKED["deflate"]],
    ids=["plain", "cut off", "more behind it", "checksum", "one byte", "deflate"],
)
def test_what_is_not_gzip_is_a_400(http: httpx.Client, packed: bytes) -> None:
    answer = http.post("/v1/completions", content=packed, headers=JSON | {"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_content_encoding")


def test_no_body_is_no_compressed_body(http: httpx.Client) -> None:
    assert http.get("/v1/models", headers={"content-encoding": "gzip"}).status_code == 200
    assert http.post("/flush_cache", headers={"content-encoding": "gzip"}).status_code == 200


@pytest.mark.parametrize("layers", [1, 2])
def test_a_bomb_is_refused_after_what_the_limit_lets_through(serve, layers: int) -> None:
    """100 MiB of spaces in 100 KB: the limit is that of what comes out. Of a bomb within a bomb only one is opened."""
    packed = b" " * (100 << 20)
    for _ in range(layers):
        packed = gzip.compress(packed, 9)
    with httpx.Client(base_url=serve(max_request_bytes=1 << 20), timeout=20) as http:
        begun = time.process_time()
        answer = http.post("/v1/completions", content=packed, headers=JSON | {"content-encoding": "gzip"})
        assert time.process_time() - begun < 2
        code = {1: "request_too_large", 2: "invalid_json"}[layers]
        assert answer.json()["error"]["code"] == code
        assert answer.status_code == {1: 413, 2: 400}[layers]


def test_the_values_of_a_compressed_body_count(serve) -> None:
    packed = gzip.compress(json.dumps({"prompt": [1] * 50_000}).encode())
    with httpx.Client(base_url=serve(max_request_values=10_000), timeout=20) as http:
        answer = http.post("/v1/completions", content=packed, headers=JSON | {"content-encoding": "gzip"})
    assert answer.status_code == 413
    assert "--max-request-values" in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_slices_are_small_whatever_comes_in(encoding: str) -> None:
    data = b"a" * (5 * SLICE) + bytes(range(256)) * 100
    packed = gzip.compress(data) if encoding == "gzip" else zlib.compress(data)
    for step in (1, 7, len(packed)):
        inflater, found = Inflater(encoding), io.BytesIO()
        for begin in range(0, len(packed), step):
            inflater.feed(packed[begin : begin + step])
            is_last = begin + step >= len(packed)
            found.write(inflater.read(is_last=is_last))
            while inflater.is_waiting:
                piece = inflater.read(is_last=is_last)
                assert len(piece) <= SLICE
                found.write(piece)
        assert found.getvalue() == data
    inflater = Inflater(encoding)
    inflater.feed(packed[:-1])
    with pytest.raises(HttpError, match="it is cut off"):
        _ = [inflater.read(is_last=True) for _ in range(10)]
