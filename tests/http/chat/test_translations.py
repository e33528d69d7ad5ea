"""Responses and Anthropic's messages ↔ chat requests: no field is dropped, and conversations stay what they are."""

import itertools
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.http.anthropic import anthropic_chat, anthropic_messages, routes_messages
from palladio.http.anthropic.anthropic_messages import AnthropicConversation
from palladio.http.anthropic.protocol_anthropic import CountTokensRequest, MessagesRequest
from palladio.http.responses import response_chat, response_object, response_run, routes_responses
from palladio.http.responses.protocol_responses import InputTokensRequest, ResponseRequest
from palladio.http.responses.response_chat import Conversation, ResponseChat
from palladio.http.responses.response_items import chat_messages, input_items
from palladio.http.wire.fields import NONE_PASS, WarningList
from palladio.http.wire.protocol import WireModel
from palladio.http.wire.protocol_chat import ChatRequest
from tests.http.generation.test_sampling import attributes_read

OF_RESPONSES = (response_chat, response_object, response_run, routes_responses)
OF_MESSAGES = (anthropic_chat, anthropic_messages, routes_messages)


@pytest.mark.parametrize(
    ("model", "same", "modules"),
    [
        (ResponseRequest, response_chat.SAME_NAME, OF_RESPONSES),
        (MessagesRequest, anthropic_chat.SAME_NAME, OF_MESSAGES),
        (InputTokensRequest, ("model", "parallel_tool_calls"), OF_RESPONSES),
        (CountTokensRequest, ("model", "chat_template_kwargs"), OF_MESSAGES),
    ],
)
def test_every_field_is_handled(model: type[WireModel], same: tuple[str, ...], modules: tuple[ModuleType, ...]) -> None:
    read = model.model_fields.keys() - set(same) - {"truncation"}  # which has one value
    assert read <= attributes_read(modules, "body")
    ours, chats = (each.model_json_schema()["properties"] for each in (model, ChatRequest))
    for name in set(same) - {"max_tokens"}:
        assert ours[name] == chats[name]


texts = st.text(max_size=9)
turns = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["user", "system", "developer", "assistant", "reasoning"]), texts),
        st.tuples(st.just("call"), st.sampled_from(["f", "g"])),
        st.tuples(st.just("output"), texts),
    ),
    min_size=1,
    max_size=9,
)


def item_of(kind: str, text: str) -> dict[str, Any]:
    match kind:
        case "reasoning":
            return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
        case "call":
            return {"type": "function_call", "call_id": "c", "name": text, "arguments": "{}"}
        case "output":
            return {"type": "function_call_output", "call_id": "c", "output": text}
        case _:
            return {"role": kind, "content": text}


def told(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What messages say, in the order in which it is said."""
    said: list[tuple[str, str]] = []
    for message in messages:
        if "reasoning_content" in message:
            said.append(("reasoning", message["reasoning_content"]))
        if "content" in message:
            said.append(("output" if message["role"] == "tool" else message["role"], message["content"]))
        said += [("call", call["function"]["name"]) for call in message.get("tool_calls", ())]
    return said


@given(turns)
def test_items_are_the_conversation(said: list[tuple[str, str]]) -> None:
    """Nothing is lost, nothing changes places; reasoning in several items is joined."""
    items = input_items([item_of(kind, text) for kind, text in said], {}, "resp_1", WarningList(NONE_PASS))
    messages, paths = chat_messages((f"input.{n}", item) for n, item in enumerate(items))
    joined: list[tuple[str, str]] = []
    for kind, text in said:
        if joined and kind == "reasoning" == joined[-1][0]:
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    assert told(messages) == joined
    assert len(paths) == len(messages)
    assert all(message.keys() - {"role"} for message in messages)
    again = input_items(items, {}, "resp_2", WarningList(NONE_PASS))  # as they are listed, so they can be sent
    assert again == items
    assert len({item["id"] for item in items}) == len(items)


@given(turns)
def test_items_after_others_are_the_same_conversation(said: list[tuple[str, str]]) -> None:
    items = input_items([item_of(kind, text) for kind, text in said], {}, "resp_1", WarningList(NONE_PASS))
    body = ResponseRequest.parse({"input": "x", "instructions": "Be brief."})
    whole = ResponseChat(body, Conversation([], items), WarningList(NONE_PASS)).chat.messages
    for cut in range(len(items)):
        assert ResponseChat(body, Conversation(items[:cut], items[cut:]), WarningList(NONE_PASS)).chat.messages == whole


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.lists(texts.filter(bool), min_size=1, max_size=3)))
)
def test_texts_of_anthropics_messages(said: list[tuple[str, list[str]]]) -> None:
    """Turns of one side are joined, blocks too: the words stay."""
    given_messages = [
        {"role": role, "content": [{"type": "text", "text": text} for text in blocks]} for role, blocks in said
    ]
    body = CountTokensRequest.parse({"messages": [*given_messages, {"role": "user", "content": "end"}]})
    conversation = AnthropicConversation(body, WarningList(NONE_PASS))
    roles = [message["role"] for message in conversation.messages]
    assert all(first != second for first, second in itertools.pairwise(roles))
    for role in ("user", "assistant"):
        words = "\n".join(m["content"] for m in conversation.messages if m["role"] == role)
        expected = [text for who, blocks in said if who == role for text in blocks]
        assert words == "\n".join([*expected, "end"] if role == "user" else expected)
