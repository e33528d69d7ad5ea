"""Fields that only the chat template can heed: passed on to it, or told of where it does not read them."""

from typing import Any

import httpx

from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve
from tests.http.wire.test_foreign_fields import BODIES

VERBOSE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if verbosity is defined %}VERBOSITY {{ verbosity }}{% endif %}{{ style or '' }}"
)


def test_verbosity_is_a_hint_to_the_template(
    serve: Serve, engine: FakeEngine, tokenizer: Tokenizer, tmp_path: Any
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(VERBOSE, encoding="utf-8")
    with httpx.Client(base_url=serve(chat_template=str(template)), timeout=20) as client:
        for path, fields in (
            ("/v1/chat/completions", {"verbosity": "low"}),
            ("/v1/responses", {"text": {"verbosity": "low"}}),
        ):
            answer = client.post(path, json=BODIES[path] | fields).raise_for_status().json()
            assert "VERBOSITY low" in tokenizer.decode(engine.calls[-1].prompt_ids)
            assert "warnings" not in answer
        assert answer["text"]["verbosity"] == "low"
        both = {"verbosity": "low", "chat_template_kwargs": {"verbosity": "high"}}
        error = client.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"] | both).json()["error"]
        assert error["param"] == "verbosity"


def test_verbosity_that_nobody_reads_is_told_of(http: httpx.Client) -> None:
    for path, name, fields in (
        ("/v1/chat/completions", "verbosity", lambda value: {"verbosity": value}),
        ("/v1/responses", "text.verbosity", lambda value: {"text": {"verbosity": value}}),
    ):
        assert "warnings" not in http.post(path, json=BODIES[path] | fields("medium")).raise_for_status().json()
        (warning,) = http.post(path, json=BODIES[path] | fields("high")).raise_for_status().json()["warnings"]
        assert (warning["param"], warning["code"]) == (name, "unsupported_parameter")
        assert warning["message"].startswith(f"{name} has no effect: the chat template does not read it")


def test_template_arguments_that_nobody_reads_are_told_of(http: httpx.Client, serve: Serve, tmp_path: Any) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"):
        body = BODIES[path] | {"chat_template_kwargs": {"xyzzy": 1}}
        (warning,) = http.post(path, json=body).raise_for_status().json()["warnings"]
        assert (warning["param"], warning["code"]) == ("chat_template_kwargs.xyzzy", "unknown_parameter")
    template = tmp_path / "template.jinja"
    template.write_text(VERBOSE, encoding="utf-8")
    with httpx.Client(base_url=serve(chat_template=str(template)), timeout=20) as client:
        body = BODIES["/v1/chat/completions"] | {"chat_template_kwargs": {"styel": "x"}}
        assert "did you mean style?" in client.post("/v1/chat/completions", json=body).json()["error"]["message"]


def test_thinking_is_switched_by_its_template_argument_too(serve: Serve, tmp_path: Any) -> None:
    """`enable_thinking` beside the messages, as users of Qwen's models send it."""
    path = "/v1/chat/completions"
    with httpx.Client(base_url=serve(reasoning_parser="none"), timeout=20) as client:
        assert "warnings" not in client.post(path, json=BODIES[path] | {"enable_thinking": False}).json()
        (warning,) = client.post(path, json=BODIES[path] | {"enable_thinking": True}).json()["warnings"]
        assert warning["param"] == "enable_thinking"
    template = tmp_path / "template.jinja"
    template.write_text(VERBOSE + "{% if enable_thinking is false %}<think></think>{% endif %}", encoding="utf-8")
    with httpx.Client(base_url=serve(chat_template=str(template), reasoning_parser="qwen3"), timeout=20) as client:
        for value in (True, False):
            assert client.post(path, json=BODIES[path] | {"enable_thinking": value}).status_code == 200
        both = {"enable_thinking": False, "thinking": True}
        assert "contradict" in client.post(path, json=BODIES[path] | both).text
