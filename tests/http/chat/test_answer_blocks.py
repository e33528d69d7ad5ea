"""Answers as blocks: responses and Anthropic's messages are the same, however the sample's text is cut."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.http.anthropic.anthropic_events import AnthropicEvents
from palladio.http.chat.chat_output import MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.reasoning.family import PromptEnd
from palladio.http.reasoning.registry import find_family
from palladio.http.responses.response_events import ResponseEvents
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.registry import find_format
from palladio.http.wire.errors import ErrorBody
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.properties import examples

FUNCTIONS = {"look": Function("look", {"type": "object", "properties": {"city": {"type": "string"}}})}
HERMES = '<tool_call>\n{"name": "look", "arguments": {"city": "Paris"}}\n</tool_call>'
HARMONY = (
    '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
)
ANALYSIS = "<|channel|>analysis<|message|>I must look.<|end|>"
FRAGMENTS = ["<think>", "</think>", "\n", " ", "a", "b c", "<", HERMES, "<tool_call>", HARMONY, ANALYSIS, "<|channel|>"]


def run(tokenizer: Tokenizer, family: str | None, tools: str | None, **params: Any) -> Any:
    """As much of a ChatRun as a BlockWriter needs."""
    new_tools = None if tools is None else lambda: find_format(tools).new_parser(FUNCTIONS)
    reasoning = ReasoningPlan(None if family is None else find_family(family))
    plan = MessagePlan(reasoning, PromptEnd(""), new_tools)
    return SimpleNamespace(
        tokenizer=tokenizer, plan=plan, request=GenerationRequest("r", [5], SamplingParams(**params))
    )


STOP = FinishReason("stop", 2)


def outputs(pieces: list[str], finish: FinishReason = STOP) -> list[RequestOutput]:
    made = [RequestOutput("r", 0, text, [], None, None, None, 7, 5, 3) for text in pieces]
    return [*made, RequestOutput("r", 0, "", [], None, None, finish, 7, 5, 3)]


def response_of(chat: Any, made: list[RequestOutput]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The response without what differs from time to time, and the events."""
    events = ResponseEvents(chat, {"id": "resp_1", "status": "queued", "output": []})
    sent = b"".join(events.write(output) for output in made) + events.close()
    read = [json.loads(line.removeprefix("data: ")) for line in sent.decode().splitlines() if line.startswith("data")]
    names = [line.removeprefix("event: ") for line in sent.decode().splitlines() if line.startswith("event")]
    assert names == [event["type"] for event in read]
    assert [event["sequence_number"] for event in read] == list(range(len(read)))
    assert read[-1]["response"] == events.response
    return json.loads(re.sub(r"call_\w+", "call_", json.dumps(events.response | {"completed_at": 0}))), read


def message_of(chat: Any, made: list[RequestOutput]) -> dict[str, Any]:
    events = AnthropicEvents(chat, "msg_1", "m")
    for output in made:
        events.write(output)
    return json.loads(re.sub(r"call_\w+", "call_", json.dumps(events.message)))


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client puts them together from the smallest pieces."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "content_part.added":
                items[-1]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                items[-1]["content"][-1]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[-1]["arguments"] += event["delta"]
            case "output_item.done":
                told = {key: value for key, value in event["item"].items() if key != "status"}
                assert {key: value for key, value in items[-1].items() if key != "status"} == told
                items[-1] = event["item"]
    return items


@examples(200)
@given(data=st.data())
def test_how_the_text_is_cut_makes_no_difference(tokenizer: Tokenizer, data: st.DataObject) -> None:
    pairs = [("qwen3", "hermes"), ("gpt-oss", "gpt-oss"), ("qwen3", None), (None, "hermes"), (None, None)]
    family, tools = data.draw(st.sampled_from(pairs))
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=8)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    finish = data.draw(st.sampled_from([FinishReason("stop", 2), FinishReason("length"), FinishReason("abort")]))
    chat = run(tokenizer, family, tools)
    whole, _ = response_of(chat, outputs([text], finish))
    cut, events = response_of(chat, outputs(pieces, finish))
    assert cut == whole == response_of(chat, outputs(list(text), finish))[0]
    assert json.loads(re.sub(r"call_\w+", "call_", json.dumps(added_up(events)))) == whole["output"]
    assert message_of(chat, outputs(pieces, finish)) == message_of(chat, outputs([text], finish))


def test_blocks_are_in_the_order_of_the_text(tokenizer: Tokenizer) -> None:
    text = f"<think>\nHm.\n</think>\nI look.\n{HERMES}\nDone?\n{HERMES}"
    response, _ = response_of(run(tokenizer, "qwen3", "hermes"), outputs([text]))
    kinds = ["reasoning", "message", "function_call", "message", "function_call"]
    assert [item["type"] for item in response["output"]] == kinds
    assert [item["id"] for item in response["output"]] == [
        f"{p}_1_{n}" for n, p in enumerate(("rs", "msg", "fc", "msg", "fc"))
    ]
    content = message_of(run(tokenizer, "qwen3", "hermes"), outputs([text]))["content"]
    assert [block["type"] for block in content] == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert content[2] == {"type": "tool_use", "id": "call_", "name": "look", "input": {"city": "Paris"}}


def test_nothing_at_all(tokenizer: Tokenizer) -> None:
    response, _ = response_of(run(tokenizer, None, None), outputs([]))
    assert [(item["type"], item["content"][0]["text"]) for item in response["output"]] == [("message", "")]
    assert message_of(run(tokenizer, None, None), outputs([]))["content"] == []


@pytest.mark.parametrize(
    ("finish", "status", "item"),
    [
        (FinishReason("stop", 2), "completed", "completed"),
        (FinishReason("length"), "incomplete", "incomplete"),
        (FinishReason("abort"), "cancelled", "incomplete"),
    ],
)
def test_how_it_ended(tokenizer: Tokenizer, finish: FinishReason, status: str, item: str) -> None:
    response, events = response_of(run(tokenizer, None, None), outputs(["Hi"], finish))
    assert (response["status"], response["output"][0]["status"]) == (status, item)
    assert events[-1]["type"] == ("response.completed" if status == "completed" else "response.incomplete")
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }


def test_a_failure_before_and_after_the_first_output(tokenizer: Tokenizer) -> None:
    error = ErrorBody(503, "too many", code="overloaded")
    for made in ([], outputs(["Hi"])[:1]):
        events = ResponseEvents(run(tokenizer, None, None), {"id": "resp_1", "status": "queued", "output": []})
        sent = b"".join(events.write(output) for output in made) + events.fail(error)
        read = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith(b"data")]
        assert [event["sequence_number"] for event in read] == list(range(len(read)))
        assert [read[0]["type"], read[-2]["type"], read[-1]["type"]] == ["response.created", "error", "response.failed"]
        assert read[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "too many"}
    failed = AnthropicEvents(run(tokenizer, None, None), "msg_1", "m").fail(error)
    assert json.loads(failed.split(b"data: ")[1])["error"] == {"type": "overloaded_error", "message": "too many"}


@examples(60)
@given(data=st.data())
def test_logprobs_are_those_of_the_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Each token belongs to what its text came out as, whatever was sent together."""
    text = f"<think>\nHm, ö.\n</think>\nI löök 🎉.\n{HERMES}\nDone."
    ids = [*tokenizer.encode(text, add_special_tokens=False), 2]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=8)))
    stream = tokenizer.new_stream(skip_special_tokens=True)
    made = []
    for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        logprobs = [TokenLogprob(token_id, -1.0, ()) for token_id in ids[a:b]]
        finish = FinishReason("stop", 2) if b == len(ids) else None
        pushed = "".join(stream.push(token_id) for token_id in ids[a:b])
        made.append(RequestOutput("r", 0, pushed, ids[a:b], logprobs, None, finish, 7, b))
    response, events = response_of(run(tokenizer, "qwen3", "hermes", logprobs=0), made)
    texts = [item["content"][0] for item in response["output"] if item["type"] == "message"]
    assert [part["text"] for part in texts] == ["I löök 🎉.", "Done."]
    joined = [b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() for part in texts]
    assert [name.strip() for name in joined] == ["I löök 🎉.", "Done."]
    done = [event for event in events if event["type"] == "response.output_text.done"]
    assert [event["logprobs"] for event in done] == [part["logprobs"] for part in texts]
