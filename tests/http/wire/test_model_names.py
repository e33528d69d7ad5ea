"""`default`, a name of whatever model is served."""

from typing import Any

import httpx
import pytest

from tests.fake_engine import MODEL
from tests.http.conftest import Serve

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", CHAT | {"max_tokens": 4}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/chat/completions/render", CHAT),
    ],
)
def test_default_is_a_name_of_the_served_model(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json=body | {"model": "default"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == MODEL


def test_default_on_routes_that_do_not_say_the_model(http: httpx.Client, serve: Serve) -> None:
    for path, body in (
        ("/generate", {"text": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [5]}),
    ):
        assert http.post(path, json=body | {"model": "default"}).status_code == 200
    assert http.get("/v1/models/default").json()["id"] == MODEL
    other = httpx.Client(base_url=serve(served_model_name=("a", "default")))
    assert other.post("/v1/chat/completions", json=CHAT | {"model": "default"}).json()["model"] == "default"
