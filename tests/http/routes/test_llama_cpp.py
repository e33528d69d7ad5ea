"""llama.cpp's GET /props and POST /apply-template."""

from typing import Any

import httpx

from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def test_props(http: httpx.Client, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.sampling_defaults = {"temperature": 0.3}
    props: dict[str, Any] = http.get("/props").json()
    assert props["default_generation_settings"] == {"n_ctx": 2048, "params": {"temperature": 0.3}}
    assert (props["total_slots"], props["model_alias"], props["is_sleeping"]) == (64, MODEL, False)
    assert props["chat_template"] == tokenizer.chat_template
    assert props["eos_token"] == tokenizer.token_text(engine.info.eos_token_ids[0])
    engine.state = "starting"
    assert http.get("/props").status_code == 503


def test_apply_template_gives_the_text_that_a_chat_would_be(
    http: httpx.Client, serve: Serve, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    body = {"messages": TURNS, "chat_template_kwargs": {"enable_thinking": False}}
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    http.post("/v1/chat/completions", json=body)
    assert tokenizer.encode(prompt, add_special_tokens=False) == engine.calls[0].prompt_ids
    assert http.post("/apply-template", json={"messages": []}).status_code == 400
    assert http.post("/apply-template", json={"input_ids": [5]}).json()["error"]["param"] == "input_ids"
    assert http.post("/apply-template", json=body | {"model": "other"}).status_code == 404
    words = "You are short. " * 2000  # no prompt that fits, but it is not to be answered
    assert (
        words.strip()
        in http.post("/apply-template", json={"messages": [{"role": "user", "content": words}]}).json()["prompt"]
    )
