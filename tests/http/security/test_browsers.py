"""What web pages can do to a server without keys, by themselves and with a name of theirs that points to it."""

import socket

import httpx
import pytest

from palladio.http.app import create_app
from palladio.http.security import browsers
from palladio.http.security.browsers import CHANGING_GETS, UPLOADS, HostRules
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.errors import route_path
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import FakeEngine

EVIL = "http://evil.example"
LOCAL = (
    "http://localhost:3000",
    "https://localhost",
    "http://127.0.0.1:8080",
    "http://[::1]:5173",
    "http://a.localhost:1",
)
FOREIGN = (EVIL, "null", "http://localhost.evil.example", "http://127.0.0.1.evil.example", "http://10.0.0.7", "")
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")


def code(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"] if answer.status_code >= 400 else None


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_of_others_read_nothing_and_do_nothing(http: httpx.Client, engine: FakeEngine, origin: str) -> None:
    headers = {"origin": origin}
    for method, path in (
        ("GET", "/v1/files"),
        ("POST", "/stop_profile"),
        ("DELETE", "/v1/files/x"),
        ("PUT", "/generate"),
    ):
        answer = http.request(method, path, headers=headers)
        assert code(answer) == (403, "origin_not_allowed"), (method, path)
        assert "access-control-allow-origin" not in answer.headers
        assert "--allowed-origins" in answer.text
    abort = http.post("/abort_request", content=b'{"abort_all": true}', headers=headers)
    assert code(abort) == (403, "origin_not_allowed")
    asked = headers | {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert "access-control-allow-origin" not in http.options("/v1/files", headers=asked).headers
    assert "access-control-allow-origin" not in http.get("/metrics", headers=headers).headers


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_may_call(http: httpx.Client, origin: str) -> None:
    headers = {"origin": origin, "sec-fetch-site": "same-site"}
    for answer in (
        http.get("/v1/files", headers=headers),
        http.post("/abort_request", json={"abort_all": True}, headers=headers),
        http.options("/v1/files", headers=headers | {"access-control-request-method": "DELETE"}),
    ):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert "origin" in answer.headers["vary"].lower()


def test_the_servers_own_pages_may_call(http: httpx.Client) -> None:
    for host in (http.base_url.netloc.decode(), "192.168.7.7:30000"):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert http.post("/v1/tokenize", json={"prompt": "a"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"referer": f"{EVIL}/a"}, {"sec-fetch-site": "cross-site"}, {"referer": "http://["}, {"referer": ""}]
)
def test_what_browsers_that_send_no_origin_tell(http: httpx.Client, headers: dict[str, str]) -> None:
    assert code(http.post("/abort_request", json={"abort_all": True}, headers=headers)) == (403, "origin_not_allowed")
    assert http.get("/docs", headers=headers).status_code == 200  # a link to it


@pytest.mark.parametrize("kind", [None, *FORMS])
@pytest.mark.parametrize("headers", [{"origin": LOCAL[0]}, {"referer": LOCAL[0]}, {"sec-fetch-site": "same-origin"}])
def test_a_browsers_body_says_that_it_is_json(http: httpx.Client, kind: str | None, headers: dict[str, str]) -> None:
    given = headers | ({} if kind is None else {"content-type": kind})
    for path in ("/abort_request", "/start_profile", "/v1/completions", "/flush_cache"):
        answer = http.post(path, content=b'{"abort_all": true}', headers=given)
        assert code(answer) == (415, "unsupported_media_type"), path
    plain = http.post("/abort_request", content=b'{"abort_all": true}')
    assert plain.status_code == 200  # no browser
    assert http.post("/flush_cache", headers=headers).status_code == 200  # no body
    form = http.post("/v1/files", data={"purpose": "batch"}, files={"file": b"{}"}, headers=headers)
    assert form.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": LOCAL[0]}, {"referer": EVIL}, {"sec-fetch-site": "none"}, {"user-agent": "Mozilla/5.0 (X11)"}],
)
def test_an_image_of_a_page_changes_nothing(http: httpx.Client, engine: FakeEngine, headers: dict[str, str]) -> None:
    assert code(http.get("/flush_cache", headers=headers)) == (403, "origin_not_allowed")
    assert engine.num_flushes == 0
    assert http.get("/flush_cache").status_code == 200


def test_all_gets_that_change_something_are_known(engine: FakeEngine) -> None:
    paths = create_app(engine, HttpConfig()).openapi()["paths"]
    both = {path for path, methods in paths.items() if {"get", "post"} <= methods.keys()}
    assert {path for path in both if not path.startswith("/v1/")} == CHANGING_GETS  # those of /v1 are lists and objects
    forms = {path for path, methods in paths.items() if "multipart/form-data" in str(methods)}
    assert forms == UPLOADS


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:30000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "x",
        "a@localhost",
        "[x",
    ],
)
def test_a_name_that_points_here_is_refused(http: httpx.Client, host: str) -> None:
    """As after DNS rebinding: of one origin with the server, and with nothing else that a browser would tell."""
    for method, path in (
        ("GET", "/v1/files"),
        ("POST", "/abort_request"),
        ("GET", "/flush_cache"),
        ("GET", "/nothing"),
    ):
        answer = http.request(method, path, headers={"host": host})
        assert code(answer) == (403, "host_not_allowed"), (method, path)
        assert "--allowed-hosts" in answer.text
    assert http.get("/health", headers={"host": host}).status_code == 200  # probes and collectors
    error = http.post("/v1/messages", json={}, headers={"host": host}).json()
    assert (error["type"], error["error"]["type"]) == ("error", "permission_error")


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.:1", "a.localhost:30000", "127.9.9.9", "[::1]:30000", "10.0.0.5:30000", "[fe80::1]", ""],
)
def test_names_of_this_machine_and_addresses(http: httpx.Client, host: str) -> None:
    assert http.get("/v1/files", headers={"host": host}).status_code == 200


def test_names_are_for_flags_to_widen(serve) -> None:
    url = serve(allowed_hosts=("LLM.example.com", "*.corp.example"), allowed_origins=("https://app.example",))
    for host in ("llm.example.com:443", "a.corp.example", "a.b.corp.example", "localhost"):
        assert httpx.get(f"{url}/v1/files", headers={"host": host}).status_code == 200
    for host in ("example.com", "corp.example", "evilcorp.example", "a.llm.example.com"):
        assert httpx.get(f"{url}/v1/files", headers={"host": host}).status_code == 403
    allowed = httpx.get(f"{url}/v1/files", headers={"origin": "https://app.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    for origin in (EVIL, LOCAL[0]):
        assert httpx.get(f"{url}/v1/files", headers={"origin": origin}).status_code == 403
    anything = serve(allowed_hosts=("*",), allowed_origins=("*",))
    answer = httpx.get(f"{anything}/v1/files", headers={"host": "evil.example", "origin": EVIL})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


def test_an_admin_key_alone_is_no_key_for_the_other_routes(serve) -> None:
    url = serve(admin_api_key="admin")
    assert httpx.get(f"{url}/v1/files", headers={"origin": EVIL}).status_code == 403
    assert httpx.get(f"{url}/v1/files", headers={"host": "evil.example"}).status_code == 403


def test_with_keys_browsers_and_names_are_free(serve) -> None:
    """A browser adds no key by itself."""
    key = {"authorization": "Bearer k"}
    answer = httpx.get(serve(api_key="k") + "/v1/files", headers=key | {"origin": EVIL, "host": "llm.example"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
    named = serve(api_key="k", allowed_hosts=("llm.example",))
    assert httpx.get(f"{named}/v1/files", headers=key | {"host": "llm.example", "origin": EVIL}).status_code == 200
    assert httpx.get(f"{named}/v1/files", headers=key | {"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("bound_to", "private"), [("0.0.0.0", True), ("::", True), ("10.1.2.3", True), ("127.0.0.1", False), ("::1", False)]
)
def test_on_an_address_that_others_reach_names_of_local_networks_are_good(
    bound_to: str, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsers, "_full_name", lambda: "gpu1.corp.example")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu1")
    rules = HostRules.of(bound_to, None)
    for host in ("my-service:30000", "svc.team.svc.cluster.local", "svc.team.svc", "gpu.internal", "gpu1.corp.example"):
        assert rules.allow(host) == private, host
    for host in ("localhost:1", "gpu1:30000", "10.0.0.5:30000"):
        assert rules.allow(host), host
    for host in ("evil.example", "my-service.dev", "evil.local.example", "xlocal.example", "gpu1.evil.example"):
        assert not rules.allow(host), host


def test_the_log_says_who_may(engine: FakeEngine) -> None:
    def told(**config: object) -> str:
        return create_app(engine, HttpConfig(**config)).state.access

    assert told() == (
        "No --api-key: anyone who can reach --host 127.0.0.1 can use this server. Allowed web page origins: localhost "
        "(--allowed-origins). Allowed host names: localhost, addresses (--allowed-hosts)"
    )
    wide = told(host="::", allowed_hosts=("a.example",), allowed_origins=("http://b.example",), admin_api_key="secret")
    assert "localhost, addresses, local network names, a.example (--allowed-hosts)" in wide
    assert "origins: http://b.example" in wide
    assert "only the admin key" in wide
    assert "secret" not in wide


def test_a_json_list_of_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="--allowed-hosts takes words"):
        HttpConfig(allowed_hosts=('["a"]',))


def test_a_path_behind_a_prefix_is_the_same_path(serve) -> None:
    url = serve(root_path="/llm")
    assert httpx.get(f"{url}/llm/flush_cache", headers={"user-agent": "Mozilla/5.0"}).status_code == 403
    assert httpx.get(f"{url}/llm/health", headers={"host": "evil.example"}).status_code == 200
    assert route_path({"path": "/llm/health", "root_path": "/llm"}) == "/health"
