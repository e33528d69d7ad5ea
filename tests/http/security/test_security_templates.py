"""A chat template that takes very long: it is given up, and the server serves others meanwhile."""

import concurrent.futures
import time
from pathlib import Path

import httpx
import pytest

from palladio.http.prompts import text_encoding

HOSTILE = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "messages": (
        "{% for m in messages %}{% for n in messages %}{% for o in messages %}{% endfor %}{% endfor %}{% endfor %}"
    ),
    "the client's values": (
        "{% for i in range(n | default(1)) %}{% for j in range(n | default(1)) %}{% endfor %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_others_are_served_meanwhile(serve, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoding, "MAX_SECONDS", 0.4)
    template = tmp_path / "hostile.jinja"
    template.write_text(HOSTILE[name])
    messages = [{"role": "user", "content": "x"}] * (2000 if name == "messages" else 1)
    body = {"messages": messages, "chat_template_kwargs": {"n": 99999} if name == "the client's values" else {}}
    with httpx.Client(base_url=serve(chat_template=str(template)), timeout=60) as client:
        assert client.get("/v1/models").status_code == 200
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            chats = [pool.submit(client.post, "/v1/chat/completions", json=body) for _ in range(4)]
            slowest, num_served = 0.0, 0
            while not all(chat.done() for chat in chats):
                begun = time.monotonic()
                answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
                assert answer.status_code == 200
                slowest, num_served = max(slowest, time.monotonic() - begun), num_served + 1
                time.sleep(0.02)
        for chat in chats:
            answer = chat.result()
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "messages"
            assert "takes longer than 0.4 seconds" in answer.json()["error"]["message"]
        assert num_served >= 3
        assert slowest < 4, "as long as all of them one after the other"


def test_what_one_call_does_keeps_nobody_waiting(serve, tmp_path: Path) -> None:
    """A short conversation is rendered on the event loop."""
    template = tmp_path / "hostile.jinja"
    template.write_text("{{ ('a' * 3000000) | unique | list | length }}")
    body = {"messages": [{"role": "user", "content": "x"}]}
    with httpx.Client(base_url=serve(chat_template=str(template)), timeout=60) as client:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            chat = pool.submit(httpx.post, f"{client.base_url}/v1/chat/completions", json=body, timeout=60)
            slowest = 0.0
            while not chat.done():
                begun = time.monotonic()
                assert client.get("/health").status_code == 200
                slowest = max(slowest, time.monotonic() - begun)
                time.sleep(0.02)
        assert chat.result().status_code in (200, 400)
        assert slowest < 2


def test_a_client_cannot_bring_a_template(serve) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"}
    answer = httpx.post(serve() + "/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template"
    for name in ("template", "messages", "tools", "seconds", "self"):
        body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {name: "{{ 1 }}"}}
        answer = httpx.post(serve() + "/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("chat_template_kwargs")
    plain = httpx.post(serve() + "/v1/chat/completions", json={"messages": body["messages"]}).json()
    for name in ("chat_template", "tokenize", "documents"):  # not read, so without effect, which the answer says
        body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {name: "{{ 1 }}"}}
        answer = httpx.post(serve() + "/v1/chat/completions", json=body)
        assert [warning["param"] for warning in answer.json()["warnings"]] == [f"chat_template_kwargs.{name}"]
        assert answer.json()["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
