"""A server with OpenAI's API that answers a given text, on 127.0.0.1: for tests of clients."""

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclasses.dataclass
class FakeServer:
    """
    Attributes:
        deltas: of each answer, as chat's events have them; delay: seconds before each.
        status, body: of a refusal, if status is not 200.
        break_after: deltas after which it breaks off.
        asked: bodies of requests for answers. paths: of all requests. connections: how many there were.
        most_at_once: requests that it had at a time. left: an answer's reader went away.
    """

    url: str = ""
    deltas: list[dict[str, Any]] = dataclasses.field(default_factory=lambda: [{"content": "Hel"}, {"content": "lo"}])
    delay: float = 0.0
    status: int = 200
    body: Any = None
    break_after: int | None = None
    asked: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    paths: list[str] = dataclasses.field(default_factory=list)
    keys: set[str | None] = dataclasses.field(default_factory=set)
    connections: int = 0
    most_at_once: int = 0
    left: threading.Event = dataclasses.field(default_factory=threading.Event)
    _at_once: int = 0
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def events(self, is_chat: bool) -> Iterator[dict[str, Any]]:
        for delta in self.deltas:
            choice = {"index": 0, "finish_reason": None}
            yield {"choices": [{**choice, "delta": delta} if is_chat else {**choice, "text": delta.get("content", "")}]}
        yield {"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]}
        usage = {"prompt_tokens": 7, "completion_tokens": len(self.deltas), "total_tokens": 7 + len(self.deltas)}
        yield {"choices": [], "usage": usage}


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            server.connections += 1

        def do_GET(self) -> None:
            server.paths.append(self.path)
            self._whole(200, {"data": [{"id": "fake-model"}]})

        def do_POST(self) -> None:
            server.paths.append(self.path)
            server.keys.add(self.headers.get("Authorization"))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                self._whole(200, {"count": 2 * len(body["prompt"].split())})
                return
            server.asked.append(body)
            with server.busy():
                if server.status != 200:
                    self._whole(server.status, server.body)
                else:
                    self._stream("chat" in self.path)

        def _whole(self, status: int, content: Any) -> None:
            text = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _stream(self, is_chat: bool) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for number, event in enumerate(server.events(is_chat)):
                    time.sleep(server.delay)
                    if number == server.break_after:
                        self.close_connection = True
                        return
                    self._chunk(f"data: {json.dumps(event)}\n\n")
                self._chunk("data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                server.left.set()
                self.close_connection = True

        def _chunk(self, text: str) -> None:
            self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
            self.wfile.flush()

        def log_message(self, *args: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # of 5 some wait a second for their connections


@contextlib.contextmanager
def fake_server() -> Iterator[FakeServer]:
    found = FakeServer()
    server = _Server(("127.0.0.1", 0), _handler(found))
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
