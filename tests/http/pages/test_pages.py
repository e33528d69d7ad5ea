"""The chat page as it is served: who gets it, with which headers, under which addresses."""

import gzip
import re

import httpx
import pytest

from palladio.http.middleware import DATA_POLICY
from palladio.http.pages.page_files import DOCS_POLICY, POLICY, page_files
from palladio.http.pages.routes_pages import DOCS_FILES, PREFIX
from tests.http.conftest import Serve

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
SCRIPT = PREFIX + "chat/main.js"


def ask(url: str, path: str = "/", method: str = "GET", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, url + path, headers={"accept-encoding": "identity"} | named, timeout=20, verify=False)


def test_browsers_get_the_page_and_other_clients_a_line(serve: Serve) -> None:
    url = serve()
    page = ask(url, **BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.content == page_files()["chat.html"].content
    assert ask(url).text == "Palladio is running"
    assert {ask(url, **accept).headers["vary"].split(",")[0] for accept in ({}, BROWSER)} == {"Accept"}
    head = ask(url, method="HEAD", **BROWSER)
    assert (head.status_code, head.headers["etag"], head.content) == (200, page.headers["etag"], b"")
    assert ask(url, SCRIPT, "HEAD").headers["etag"] == ask(url, SCRIPT).headers["etag"]


def test_nothing_inline_foreign_or_framed_is_allowed(serve: Serve) -> None:
    url = serve()
    for path in ("/", SCRIPT):
        headers = ask(url, path, **BROWSER).headers
        assert headers["content-security-policy"] == POLICY
        assert (headers["x-frame-options"], headers["referrer-policy"]) == ("DENY", "no-referrer")
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert (rules["trusted-types"], rules.get("require-trusted-types-for")) == ("'none'", "'script'")
    assert rules["frame-ancestors"] == rules["form-action"] == "'none'"
    assert not re.search(r"unsafe|data:|\*|https?:", POLICY)


def test_no_other_answer_is_a_page_that_may_load_or_run_anything(serve: Serve) -> None:
    url = serve(root_path="/base")
    for path, status in (("/v1/models", 200), ("/v1/nothing", 404), ("/v1/responses/docs", 404)):
        answer = ask(url, path, **BROWSER)
        assert (answer.status_code, answer.headers["content-security-policy"]) == (status, DATA_POLICY)


def test_the_docs_load_only_what_the_package_has(serve: Serve) -> None:
    url = serve(root_path="/base", ui=False)
    for path in ("/docs", "/base/docs"):
        page = ask(url, path, **BROWSER)
        assert page.headers["content-security-policy"] == DOCS_POLICY
        for address in re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text):
            found = ask(url, str(httpx.URL(path).join(address)))
            assert found.status_code == 200, address
            assert found.headers["content-security-policy"] in (POLICY, DATA_POLICY)
    assert not re.search(r"unsafe|\*|https?:", DOCS_POLICY)
    assert ask(url, "/redoc").headers["location"] == "docs"
    for name in ("none.js", "page_files.py", "swagger-ui-bundle.js/x"):
        assert ask(url, f"/docs/{name}").status_code == 404


def test_a_browser_asks_again_and_loads_only_what_has_changed(serve: Serve) -> None:
    url = serve()
    for path in ("/", SCRIPT):
        first = ask(url, path, **BROWSER)
        assert first.headers["cache-control"] == "no-cache"
        for tag in (first.headers["etag"], f'"x", W/{first.headers["etag"]}', "*"):
            again = ask(url, path, if_none_match=tag, **BROWSER)
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
            assert again.headers["content-security-policy"] == POLICY
        assert ask(url, path, if_none_match='"other"', **BROWSER).status_code == 200
    files = page_files().values()
    assert len({file.tag for file in files}) == len({file.content for file in files})
    packed = httpx.Client(base_url=url, headers={"accept-encoding": "gzip"}, verify=False).stream("GET", SCRIPT)
    with packed as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(answer.iter_raw())) == page_files()["chat/main.js"].content


def test_without_the_page(serve: Serve) -> None:
    url = serve(ui=False, api_key="k")
    assert ask(url, **BROWSER).status_code == ask(url, SCRIPT).status_code == 401
    assert ask(url, x_api_key="k", **BROWSER).text == "Palladio is running"
    assert ask(url, SCRIPT, x_api_key="k").status_code == 404


def test_pages_need_no_key_and_nothing_else_is_open(serve: Serve) -> None:
    url = serve(api_key="k")
    for path in ("/", SCRIPT):
        assert ask(url, path, **BROWSER).status_code == 200
    for path in ("/ui/none.js", "/ui/chat.html", "/ui/../v1/models", "/ui/%2e%2e/routes_pages.py", "/v1/models"):
        assert ask(url, path).status_code == 401, path
        if path != "/v1/models":
            assert ask(url, path, x_api_key="k").status_code in (200, 404)


@pytest.mark.parametrize("name", ["none.js", "chat.html", "%2e%2e/page_files.py", "/etc/passwd", "chat/"])
def test_only_files_of_the_pages_are_served(serve: Serve, name: str) -> None:
    assert ask(serve(), PREFIX + name).status_code == 404


def test_behind_a_prefix_the_page_says_where_it_is(serve: Serve) -> None:
    url = serve(root_path="/llm/", api_key="k")
    for path in ("/", "/llm/", "/llm"):
        assert '<base href="/llm/">' in ask(url, path, **BROWSER).text
    assert ask(url, "/llm" + SCRIPT).content == ask(url, SCRIPT).content == page_files()["chat/main.js"].content
    assert "<base" not in page_files()["chat.html"].content.decode()


def test_pages_hold_nothing_inline_and_load_nothing_from_elsewhere() -> None:
    files = {name: file.content.decode() for name, file in page_files().items()}
    for name, text in files.items():
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", text), name
            addresses = re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
            assert addresses, name
            for address in addresses:
                assert (
                    address.startswith("#")
                    or address.removeprefix("ui/") in {*files, "./", "dashboard", "openapi.json"}
                    or (address.removeprefix("docs/") in DOCS_FILES)
                ), address
        elif name.endswith((".js", ".css")) and not name.startswith("vendor/"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
            assert not re.search(r"(?:from|import\()\s*[\"'](?!\.{1,2}/)", text), name
            assert not re.search(r"@import|url\((?!#)", text), name


@pytest.mark.parametrize(("page", "other"), [("chat", "dashboard"), ("dashboard", "chat")])
def test_a_page_is_small(page: str, other: str) -> None:
    own = {
        name: len(file.content)
        for name, file in page_files().items()
        if not name.startswith((other, "docs", "vendor/swagger-ui"))
    }
    assert any(name.startswith(page) for name in own)
    assert sum(own.values()) <= 500_000
