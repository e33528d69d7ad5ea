"""What browsers are told of other origins."""

import httpx
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError

ORIGIN = {"origin": "http://y.org"}


def preflight(url: str, method: str = "POST", header: str = "authorization", origin: str = "http://y.org"):
    asked = {"access-control-request-method": method, "access-control-request-headers": header}
    return httpx.options(url + "/v1/chat/completions", headers={"origin": origin} | asked)


def test_preflights_need_no_key(serve) -> None:
    answer = preflight(serve(api_key="k"))
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]


def test_methods_and_headers_can_be_named(serve) -> None:
    url = serve(allowed_methods=("GET", "POST"), allowed_headers=("x-mine", "authorization"), api_key="k")
    assert preflight(url).status_code == 200
    assert preflight(url, header="x-mine").status_code == 200
    assert preflight(url, header="x-other").status_code == 400
    assert preflight(url, method="DELETE").status_code == 400
    assert "DELETE" not in preflight(url).headers["access-control-allow-methods"]


def test_credentials(serve) -> None:
    url = serve(allowed_origins=("http://y.org",), allow_credentials=True, api_key="k")
    for answer in (preflight(url), httpx.get(url + "/v1/models", headers=ORIGIN)):
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["access-control-allow-origin"] == "http://y.org"
    assert preflight(url, origin="http://evil.org").status_code == 400
    evil = httpx.get(url + "/v1/models", headers={"origin": "http://evil.org"})
    assert "access-control-allow-origin" not in evil.headers
    plain = httpx.get(serve() + "/health", headers=ORIGIN)
    assert "access-control-allow-credentials" not in plain.headers


def test_headers_that_scripts_may_read(serve) -> None:
    shown = httpx.get(serve() + "/health", headers=ORIGIN).headers["access-control-expose-headers"]
    assert {"X-Request-Id", "Retry-After"} <= set(shown.split(", "))


@pytest.mark.parametrize("origins", [("*",), ("http://y.org", "*")])
def test_credentials_for_any_origin_are_refused(origins: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--allow-credentials needs --allowed-origins"):
        HttpConfig(allowed_origins=origins, allow_credentials=True)


def test_types_of_answers_are_not_to_be_guessed(serve) -> None:
    url = serve(api_key="k")
    for path in ("/health", "/v1/models", "/nothing"):
        headers = httpx.get(url + path).headers
        assert headers["x-content-type-options"] == "nosniff"
