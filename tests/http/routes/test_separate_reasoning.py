"""POST /separate_reasoning."""

from typing import Any

import httpx

from palladio.http.wire.protocol import MAX_PARSED_TEXT
from tests.http.chat.test_chat_reasoning import ANSWER, REPLY, THOUGHT


def test_separate_reasoning(http: httpx.Client) -> None:
    def post(**body: Any) -> Any:
        return http.post("/separate_reasoning", json=body).json()

    expected = {"reasoning_text": THOUGHT, "text": ANSWER}
    assert post(text=REPLY, reasoning_parser="deepseek-r1") == expected
    assert post(text=REPLY) == expected  # the served model's: auto, by its template
    assert post(text=REPLY.removeprefix("<think>\n"), reasoning_parser="qwen3") == expected
    assert post(text="Yes.", reasoning_parser="qwen3") == {"reasoning_text": "", "text": "Yes."}
    assert post(text="Yes.", reasoning_parser="deepseek_r1") == {"reasoning_text": "Yes.", "text": ""}
    harmony = f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}"
    assert post(text=harmony, reasoning_parser="gpt-oss") == expected
    error = post(text="x", reasoning_parser="qwen")["error"]
    assert error["param"] == "reasoning_parser"
    assert "deepseek-r1" in error["message"]
    assert post(reasoning_parser="qwen3")["error"]["param"] == "text"
    too_long = post(text="x" * (MAX_PARSED_TEXT + 1), reasoning_parser="qwen3")["error"]
    assert (too_long["param"], str(MAX_PARSED_TEXT) in too_long["message"]) == ("text", True)
    assert len(post(text="x" * MAX_PARSED_TEXT, reasoning_parser="qwen3")["text"]) == MAX_PARSED_TEXT
