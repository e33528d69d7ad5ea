"""Keys: which are taken, from where, for which routes."""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import RouteContext, iter_route_contexts

from palladio.http.app import create_app
from palladio.http.security.callers import CONTROL_PATHS, OPEN_PATHS, ApiKeys
from palladio.http.security.watched_files import INTERVAL
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import FakeEngine
from tests.http.conftest import wait_until


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def status(url: str, path: str = "/v1/models", method: str = "GET", **headers: str | bytes) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, url + path, headers=named, timeout=20).status_code


@pytest.mark.parametrize("given", ["one, two", ("one", "two"), ("one,two",), ("one", "x", " two ")])
def test_several_keys(serve, given: object) -> None:
    url = serve(api_key=given)
    for key in ("one", "two"):
        assert status(url, authorization=f"Bearer {key}") == status(url, x_api_key=key) == 200
    for key in ("on", "one,two", "one, two", "three", "ONE"):
        assert status(url, authorization=f"Bearer {key}") == status(url, x_api_key=key) == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "one"},
        {"authorization": "Basic one"},
        {"authorization": b"Bearer \xff"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer one two"},
        {"x-api-key": "Bearer one"},
        {"api-key": "one"},
        {"cookie": "api_key=one; authorization=Bearer one"},
    ],
)
def test_what_is_no_key(serve, headers: dict) -> None:
    url = serve(api_key="one")
    answer = httpx.get(url + "/v1/models?api_key=one&key=one&access_token=one", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_schemes_and_keys_that_are_unusual(serve) -> None:
    url = serve(api_key="schlüssel")
    assert status(url, authorization="bearer schlüssel".encode()) == 200
    assert status(url, x_api_key="schlüssel".encode()) == 200
    assert status(url, authorization="Bearer wrong", x_api_key="schlüssel".encode()) == 200  # one of two will do


@pytest.mark.parametrize("key", ["passà", "voilà passé Å", "\u3045", "\u0440\u0405"])  # with bytes 0xA0 and 0x85
def test_keys_whose_last_bytes_latin_1_would_call_spaces(serve, key: str) -> None:
    url = serve(api_key=key)
    assert status(url, authorization=b"Bearer   " + key.encode()) == status(url, x_api_key=key.encode()) == 200
    assert status(url, x_api_key=key.encode()[:-1]) == 401


def all_routes(engine: FakeEngine) -> Iterator[tuple[str, str]]:
    for path, methods in create_app(engine, HttpConfig()).openapi()["paths"].items():
        yield from ((method.upper(), path) for method in methods)
    yield from (("GET", path) for path in ("/docs", "/redoc", "/openapi.json", "/no/such/route"))


def test_every_route_but_the_open_ones_needs_a_key(serve, engine: FakeEngine) -> None:
    routes = list(all_routes(engine))
    assert len(routes) > 20
    with httpx.Client(base_url=serve(api_key="k"), timeout=20) as client:
        for method, path in routes:
            for written in (path, path + "/", "/" + path, path.replace("e", "%65", 1), path + "?api_key=k"):
                answer = client.request(method, written)
                is_open = answer.request.url.path in OPEN_PATHS | {"/"}  # "//version" is / of a host
                assert (answer.status_code != 401) == is_open, (method, written)


def test_a_route_that_reads_its_body_itself_has_no_dependency_and_needs_a_key(serve, engine: FakeEngine) -> None:
    """FastAPI would run no dependency of it; keys are asked for before any route is looked up."""
    routes = [route for route in iter_route_contexts(create_app(engine, HttpConfig()).routes) if is_direct(route)]
    assert {("/v1/chat/completions", "POST"), ("/v1/messages", "POST"), ("/encode", "PUT")} <= {
        (route.path, method) for route in routes for method in route.methods or ()
    }
    url = serve(api_key="k")
    for route in routes:
        assert (list(route.dependencies), route.dependant.dependencies) == ([], []), route.path
        assert [status(url, str(route.path), method) for method in route.methods or ()] == [401], route.path


def is_direct(route: RouteContext) -> bool:
    return type(route.original_route).__name__ == "DirectRoute"


def test_the_open_and_the_control_paths_are_routes(engine: FakeEngine) -> None:
    paths = {path for _, path in all_routes(engine)}
    assert paths >= OPEN_PATHS | CONTROL_PATHS
    assert not OPEN_PATHS & CONTROL_PATHS


@pytest.mark.parametrize("root_path", ["", "/llm", "/flush"])
def test_control_routes_need_the_admin_key(serve, root_path: str) -> None:
    url = serve(api_key="user", admin_api_key="admin", root_path=root_path)
    for prefix in {"", root_path}:
        flush = prefix + "/flush_cache"
        for method in ("GET", "POST"):
            assert status(url, flush, method) == status(url, flush, method, **bearer("user")) == 401
            assert status(url, flush, method, x_api_key="user") == 401
            assert status(url, flush, method, **bearer("admin")) == 200
        assert status(url, prefix + "/v1/models", **bearer("user")) == 200
        assert status(url, prefix + "/v1/models", **bearer("admin")) == 200
        assert status(url, prefix + "/v1/models") == 401
    with httpx.Client(base_url=url) as client:
        for path in sorted(CONTROL_PATHS):
            answer = client.post(path, headers=bearer("user"), json={})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert "--admin-api-key" in answer.json()["error"]["message"]
            assert client.post(path, headers=bearer("admin"), json={}).status_code != 401


def test_an_admin_key_alone_leaves_the_other_routes_open(serve) -> None:
    url = serve(admin_api_key="admin")
    assert status(url) == 200
    assert status(url, "/flush_cache", "POST") == 401
    assert status(url, "/flush_cache", "POST", **bearer("admin")) == 200


def test_without_an_admin_key_control_routes_are_like_others(serve) -> None:
    url = serve(api_key="user")
    assert status(url, "/flush_cache", "POST", **bearer("user")) == 200
    assert status(serve(), "/flush_cache", "POST") == 200


def test_anthropics_routes_get_its_errors(serve) -> None:
    answer = httpx.post(serve(api_key="k") + "/v1/messages", json={}, headers={"x-api-key": "wrong"})
    assert answer.status_code == 401
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
    assert "x-api-key" in body["error"]["message"]


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_a_file_of_keys_is_read_again_when_it_changes(serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\n\n  first  \nsecond\n")
    url = serve(api_key="fixed", api_key_file=str(file))
    for key in ("first", "second", "fixed"):
        assert status(url, **bearer(key)) == 200
    assert status(url, **bearer("# of the team")) == 401
    replace(file, "second\nthird\n")
    wait_until(lambda: status(url, **bearer("third")) == 200)
    assert status(url, **bearer("first")) == 401
    assert status(url, **bearer("second")) == status(url, **bearer("fixed")) == 200
    file.unlink()
    time.sleep(INTERVAL + 0.1)
    assert status(url, **bearer("third")) == 200  # what cannot be read changes nothing
    assert "the previous keys stay active" in caplog.text
    replace(file, "fourth\n")
    wait_until(lambda: status(url, **bearer("fourth")) == 200)
    assert status(url, **bearer("third")) == 401
    assert "third" not in caplog.text
    assert "fourth" not in caplog.text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, ": No such file or directory"),
        (b"", " is empty: write one key per line"),
        (b"\n# only a comment\n", " is empty: write one key per line"),
        (b"\xff\xfe", ": it is not UTF-8 text"),
    ],
)
def test_a_file_without_keys_is_a_config_error(tmp_path: Path, content: bytes | None, told: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^(cannot read )?--api-key-file .*keys{told}$"):
        ApiKeys((), str(file))


def test_keys_are_not_kept() -> None:
    keys = ApiKeys(["hunter2hunter2"])
    assert "hunter2" not in repr(vars(keys))
    assert keys.owner_of(b"hunter2hunter2") == "key:" + hashlib.sha256(b"hunter2hunter2").hexdigest()[:16]
    config = HttpConfig(api_key="hunter2", admin_api_key="hunter3", ssl_certfile="c", ssl_keyfile_password="hunter4")
    assert "hunter" not in repr(config)
    assert "hunter" not in repr(config.public())


@pytest.mark.parametrize("flag", ["api_key", "admin_api_key"])
@pytest.mark.parametrize("value", ["", " , ", (), ("", ",")])
def test_empty_keys_are_refused(flag: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^--{flag.replace('_', '-')} must not be empty"):
        HttpConfig(**{flag: value})
