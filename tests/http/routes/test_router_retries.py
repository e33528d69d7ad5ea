"""A router repeats a request while the first one still runs: with the same id in the body, and in the header."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine
from tests.http.conftest import wait_until

FIRST = {"text": "Hello", "rid": "same", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
REPEATS: dict[str, dict[str, Any]] = {
    "/generate": FIRST,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "rid": "same"},
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 2, "request_id": "same"},
}


def test_a_repeated_id_is_refused_and_the_first_request_goes_on(http: httpx.Client, engine: FakeEngine) -> None:
    alone = http.post("/generate", json=FIRST).json()["text"]
    engine.first_delay = 0.5
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(http.post, "/generate", json=FIRST)
        wait_until(lambda: len(engine.calls) == 2)
        for path, body in REPEATS.items():
            refused = http.post(path, json=body)
            assert refused.status_code == 400, path
            assert refused.json()["error"]["param"] == "rid", path
            assert "'same' is already running" in refused.json()["error"]["message"]
        answer = first.result(30)
    assert (answer.status_code, answer.json()["text"]) == (200, alone)
    assert len(engine.calls) == 2
    engine.first_delay = 0.0
    assert http.post("/generate", json=FIRST).status_code == 200


@pytest.mark.parametrize("path", REPEATS)
def test_requests_with_the_same_header_are_all_served(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    engine.first_delay = 0.2
    headers = {"X-Request-Id": "same"}
    body = {name: value for name, value in REPEATS[path].items() if name not in ("rid", "request_id")}
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(http.post, path, json=body, headers=headers) for _ in range(3)]
        answers = [one.result(30) for one in sent]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
    ids = {str(answer.json().get("id") or answer.json()["meta_info"]["id"]) for answer in answers}
    assert len(ids) == 3
