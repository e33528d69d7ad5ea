"""A hub of a few small repositories on 127.0.0.1, with the HTTP that Hugging Face's has: ETags, ranges, 401, 404."""

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants, snapshot_download

from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.text.hub import hub_download
from palladio.runtime.text.hub.hub_download import Listing, OnProgress, Repository
from palladio.runtime.text.hub.hub_worker import Silent

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclasses.dataclass
class FakeHub:
    """
    Attributes:
        repositories: name → file → contents; gated: names that need a token.
        break_after: bytes of a body over that size after which its first connection breaks.
        requests: method, path and Range of each, in order.
        hold: a file that is not sent until `release`; `held` is set when it is asked for.
    """

    url: str
    repositories: dict[str, Mapping[str, bytes]] = dataclasses.field(default_factory=dict)
    gated: set[str] = dataclasses.field(default_factory=set)
    break_after: int | None = None
    requests: list[tuple[str, str, str | None]] = dataclasses.field(default_factory=list)
    hold: str | None = None
    held: threading.Event = dataclasses.field(default_factory=threading.Event)
    release: threading.Event = dataclasses.field(default_factory=threading.Event)

    def fetched(self) -> list[str]:
        """Names of the files whose contents were asked for."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def answer(self, method: str, path: str, range_header: str | None, token: str | None) -> "Answer":
        self.requests.append((method, path, range_header))
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        name, rest = "/".join(parts[2:4] if is_api else parts[:2]), parts[4:] if is_api else parts[2:]
        if name not in self.repositories:
            return Answer(404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        if name in self.gated and token is None:
            return Answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {name} is restricted"})
        files = self.repositories[name]
        if is_api and rest[:1] == ["tree"]:
            entries = [_entry(file, content) for file, content in files.items()]
            return Answer(200, {}, json.dumps(entries).encode())
        if is_api and rest[1:2] not in ([], ["main"], [COMMIT]):
            return Answer(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        if is_api:
            siblings = [{"rfilename": file} for file in files]
            return Answer(200, {}, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())
        content = files.get("/".join(rest[2:]))
        if content is None:
            return Answer(404, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if range_header is not None:
            begin = int(range_header.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            return Answer(206, headers, content[begin:])
        return Answer(200, headers, content)


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _entry(file: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer("HEAD")

        def do_GET(self) -> None:
            self._answer("GET")

        def _answer(self, method: str) -> None:
            answer = hub.answer(method, self.path, self.headers.get("Range"), self.headers.get("Authorization"))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if method == "HEAD":
                return
            if hub.hold is not None and self.path.endswith(hub.hold):
                hub.held.set()
                hub.release.wait(60)
            limit = hub.break_after
            if limit is not None and answer.status == 200 and len(answer.body) > limit:
                hub.break_after = None
                self.wfile.write(answer.body[:limit])
                self.wfile.flush()
                self.close_connection = True
                return
            with contextlib.suppress(OSError):  # its reader was killed
                self.wfile.write(answer.body)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def running_hub() -> Iterator[FakeHub]:
    hub = FakeHub("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _fetch_here(repository: Repository, listing: Listing, on_progress: OnProgress, stop: threading.Event) -> Path:
    on_progress(LoadProgress("download", listing.total - listing.missing, listing.total))
    folder = snapshot_download(**hub_download._arguments(repository), tqdm_class=Silent)
    on_progress(LoadProgress("download", listing.total, listing.total))
    return Path(folder)


def use_hub(hub: FakeHub, cache: str, monkeypatch: pytest.MonkeyPatch, *, child: bool = False) -> None:
    """In this process, which has read its environment already.

    Args:
        child: download in a process of its own, as users do; it takes half a second to start.
    """
    if not child:
        monkeypatch.setattr(hub_download, "fetch", _fetch_here)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # of the child; whatever tests of servers have set
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
