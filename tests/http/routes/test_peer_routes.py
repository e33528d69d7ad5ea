"""Every route of SGLang and vLLM is here, or is a 404 that says what to use; docs/limitations.md says the same."""

import json
import re
from pathlib import Path

import httpx
import pytest

from palladio.http.app import create_app
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.missing_routes import INSTEAD, MISSING
from scripts.peers.peer_routes import routes_of
from tests.fake_engine import FakeEngine

PEERS: dict[str, list[str]] = json.loads(Path(__file__).with_name("peer_routes.json").read_text(encoding="utf-8"))
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "limitations.md").read_text(encoding="utf-8")
OF_LLAMA_CPP = {"/completion", "/completions", "/infill", "/embedding", "/embeddings", "/slots"}


def shape(path: str) -> str:
    """A path whose parameters have no names."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_none_is_forgotten() -> None:
    here = {shape(path) for path in create_app(FakeEngine(None), HttpConfig()).openapi()["paths"]}
    assert set(PEERS) == {"sglang 0.5.23", "vllm 0.32.0"}
    theirs = {path for paths in PEERS.values() for path in paths}
    assert len(theirs) > 100
    missing = {path for path in theirs if shape(path) not in here}
    assert missing == INSTEAD.keys() - OF_LLAMA_CPP
    assert not {shape(path) for path in INSTEAD} & here


def test_what_to_use_is_on_the_page() -> None:
    table = PAGE.split("<!-- missing routes -->\n")[1].split("\n\n")[0].splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in table]
    assert {tuple(re.findall(r"`([^`]+)`", paths)): instead for paths, instead in cells} == MISSING


def test_they_are_404s(http: httpx.Client) -> None:
    for path, instead in INSTEAD.items():
        for method in ("GET", "POST"):
            answer = http.request(method, path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "unknown_url"), path
            if "{" not in path:
                assert instead in error["message"]


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ('@app.get("/a")\n@app.post("/b", x=1)\ndef f(): ...', ["/a", "/b"]),
        ('@app.api_route("/c", methods=["GET"])\nasync def f(): ...', ["/c"]),
        ('import os\n@app.post(os.environ.get("X", "/d"))\ndef f(): ...', ["/d"]),
        ('router.add_api_route("/e", f, methods=["POST"])', ["/e"]),
        ('app.routes.append(Mount("/g", make_app()))', ["/g"]),
        ('@app.get(name)\ndef f(): ...\nx.get("key")\n@app.websocket("/f")\nasync def g(): ...', ["/f"]),
    ],
)
def test_reading_their_sources(source: str, paths: list[str]) -> None:
    assert sorted(routes_of(source)) == paths
