"""allowed_token_ids and stop_regex reach the engine from every route that has them."""

from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine

RULES = {"allowed_token_ids": [9, 5], "stop_regex": r"\\d+x"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | RULES),
        ("/v1/completions", {"prompt": "hi"} | RULES),
        ("/generate", {"text": "hi", "sampling_params": RULES}),
    ],
)
def test_they_reach_the_engine(http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]) -> None:
    assert http.post(path, json=body).status_code == 200
    params = engine.calls[-1].params
    assert (params.allowed_token_ids, params.stop_regex) == ((5, 9), (RULES["stop_regex"],))


@pytest.mark.parametrize(("field", "value"), [("allowed_token_ids", []), ("stop_regex", ["a"] * 9)])
def test_errors_name_them(http: httpx.Client, field: str, value: Any) -> None:
    answer = http.post("/v1/chat/completions", json=CHAT | {field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    answer = http.post("/generate", json={"text": "a", "sampling_params": {field: value}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"sampling_params.{field}")
