"""gpt-oss's messages, as openai-harmony renders them and takes them apart (see make_harmony_cases): the built-in chat
template, the two parsers, and a server of a model that brings no template."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.chat.chat_output import MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.reasoning.family import PromptEnd
from palladio.http.reasoning.registry import find_family
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.registry import find_format
from palladio.runtime.front.requests.intake import RequestIntake
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.chat.test_chat_output import read
from tests.http.conftest import running_server
from tests.runtime.fake_core import make_ready
from tests.tiny_tokenizer import build_tiny_tokenizer

CASES = json.loads((Path(__file__).parent / "harmony_cases.json").read_text(encoding="utf-8"))
FUNCTIONS = {name: Function(name, {"type": "object"}) for name in ("look", "now")}


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("harmony"), is_harmony=True))


@pytest.mark.parametrize("name", CASES["conversations"])
def test_the_built_in_template(name: str, harmony: Tokenizer) -> None:
    case = CASES["conversations"][name]
    effort = {key: case[key] for key in ("reasoning_effort",) if key in case}
    found = ChatTemplate(HttpConfig()).render(harmony, case["messages"], kwargs=effort, tools=case.get("tools"))
    assert re.sub(r"(Current date:) \d{4}-\d\d-\d\d", r"\1 2025-06-28", found) == case["prompt"]


def test_the_log_of_each_server_tells_that_its_model_has_no_template(
    harmony: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a process's second one too; and once, however many requests there are."""
    with caplog.at_level(logging.INFO):
        for template in (ChatTemplate(HttpConfig()), ChatTemplate(HttpConfig())):
            assert template.source(harmony) == template.source(harmony)
    lines = [line for line in caplog.messages if "the built-in one is used: gpt-oss" in line]
    assert len(lines) == 2


@pytest.mark.parametrize("case", CASES["completions"], ids=lambda case: case["text"][:60])
def test_completions(case: dict[str, Any]) -> None:
    """What the library gives for each message, in the field that it belongs to."""
    expected: dict[str, list[str]] = {"analysis": [], "content": []}
    calls = {}
    for message in case["messages"]:
        recipient = message["recipient"] or ""
        if recipient.startswith("functions."):
            calls[len(calls)] = (recipient.removeprefix("functions."), message["text"])
        else:
            expected["analysis" if message["channel"] == "analysis" else "content"].append(message["text"])
    plan = MessagePlan(
        ReasoningPlan(find_family("gpt-oss")),
        PromptEnd("<|start|>user<|message|>hi<|end|><|start|>assistant"),
        lambda: find_format("openai").new_parser(FUNCTIONS),
    )
    wanted = ("\n".join(expected["analysis"]), "\n".join(expected["content"]), calls)
    assert read(plan.new_parser(), [case["text"]]) == wanted
    assert read(plan.new_parser(), list(case["text"])) == wanted


def test_tokens_that_end_an_answer(harmony: Tokenizer, tokenizer: Tokenizer) -> None:
    ends = {harmony.special_id(text) for text in ("<|return|>", "<|call|>")}
    assert set(harmony.end_ids) == ends
    assert tokenizer.end_ids == (tokenizer.eos_token_id,)
    request = GenerationRequest("r", [5], SamplingParams())
    (sample,) = RequestIntake(make_ready(eos_token_ids=[2]), harmony).resolve(request)
    assert set(sample.stop_token_ids) == {2, *ends}


def test_a_server_of_a_model_without_a_template(harmony: Tokenizer) -> None:
    """Parsers and template are chosen by the model; effort, channels and calls go through both APIs."""
    call = "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    engine = FakeEngine(harmony, reply=f"<|channel|>analysis<|message|>Hm.<|end|>{call}")
    tool = {"name": "now", "parameters": {"type": "object", "properties": {}}}
    with running_server(engine, HttpConfig()) as url:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "The time?"}], "reasoning_effort": "low"}
        body["tools"] = [{"type": "function", "function": tool}]
        answer = httpx.post(f"{url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        assert message["reasoning_content"] == "Hm."
        assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
        lines = httpx.post(f"{url}/v1/chat/completions", json=body | {"stream": True}).text.splitlines()
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
        assert not any(delta.get("content") for delta in deltas)
        functions = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
        assert [function["name"] for function in functions if function.get("name")] == ["now"]
        assert "".join(function["arguments"] for function in functions) == "{}"
        prompt = harmony.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)
        assert "\n\nReasoning: low\n\n" in prompt
        assert prompt.endswith(
            "type now = () => any;\n\n} // namespace functions<|end|>"
            "<|start|>user<|message|>The time?<|end|><|start|>assistant"
        )
        body = {"input": "The time?", "reasoning": {"effort": "high"}, "tools": [{"type": "function", **tool}]}
        items = httpx.post(f"{url}/v1/responses", json=body).json()["output"]
        assert [item["type"] for item in items] == ["reasoning", "function_call"]
        assert "Reasoning: high" in harmony.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)
