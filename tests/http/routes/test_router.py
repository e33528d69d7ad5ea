"""What sglang-router sends to a server and reads there: bodies as the router 0.3.2 wrote them of the simplest ones."""

from typing import Any

import httpx
import pytest

from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve

SENT: dict[str, dict[str, Any]] = {
    "/generate": {
        "text": "hi",
        "model": None,
        "sampling_params": {"max_new_tokens": 3},
        "return_text_in_logprobs": False,
        "stream": False,
        "log_metrics": True,
        "return_hidden_states": False,
        "background": False,
        "no_logs": False,
        "return_bytes": False,
        "return_entropy": False,
    },
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "x"}],
        "model": MODEL,
        "logprobs": False,
        "stream": False,
        "no_stop_trim": False,
        "ignore_eos": False,
        "continue_final_message": False,
        "skip_special_tokens": True,
        "separate_reasoning": True,
        "stream_reasoning": True,
        "return_hidden_states": False,
    },
    "/v1/completions": {
        "model": MODEL,
        "prompt": "x",
        "stream": False,
        "echo": False,
        "no_stop_trim": False,
        "ignore_eos": False,
        "skip_special_tokens": True,
        "return_hidden_states": False,
    },
    "/v1/responses": {
        "input": "x",
        "model": MODEL,
        "store": True,
        "stream": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "priority": 0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    },
}


@pytest.mark.parametrize("path", SENT)
def test_what_the_router_sends(http: httpx.Client, path: str) -> None:
    answer = http.post(path, json=SENT[path])
    assert answer.status_code == 200, answer.text
    assert "warnings" not in answer.json()


def test_what_the_router_reads(http: httpx.Client, serve: Serve, engine: FakeEngine) -> None:
    for path in ("/server_info", "/get_server_info"):
        info = http.get(path).raise_for_status().json()
        assert (info["served_model_name"], info["tokenizer_path"], info["model_path"]) == (MODEL, MODEL, MODEL)
        assert info["max_total_num_tokens"] == engine.info.max_total_tokens
        assert info["max_req_input_len"] == min(engine.info.context_length, engine.info.max_total_tokens) - 1
    named = httpx.get(serve(served_model_name=("a", "b", "*")) + "/server_info", timeout=20).json()
    assert named["served_model_name"] == "a"


def test_the_longest_input_is_as_told(http: httpx.Client) -> None:
    most = http.get("/server_info").json()["max_req_input_len"]
    for count, status in ((most, 200), (most + 1, 400)):
        body = {"input_ids": [5] * count, "sampling_params": {"max_new_tokens": 1}}
        assert http.post("/generate", json=body).status_code == status
