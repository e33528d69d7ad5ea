"""ChatPlan: a value that follows from the body and the facts about the model, whichever API the body came by."""

from typing import Any

import pytest

from palladio.http.anthropic.anthropic_chat import AnthropicChat
from palladio.http.anthropic.protocol_anthropic import MessagesRequest
from palladio.http.chat.chat_plan import ChatPlan, plan_chat
from palladio.http.chat.chat_run import join_chat
from palladio.http.generation.model_facts import FactsKeeper, ModelFacts
from palladio.http.ollama.ollama_chat import OllamaChat
from palladio.http.ollama.protocol_ollama import OllamaChatRequest
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import ChatPrompt, Conversation
from palladio.http.responses import response_chat
from palladio.http.responses.protocol_responses import ResponseRequest
from palladio.http.responses.response_items import input_items
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.fields import WarningList, Warnings
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import RequestOptions
from tests.fake_engine import MODEL, FakeEngine

NONE = Warnings(are_errors=False)
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "seed": 7}


def facts_of(engine: FakeEngine, **flags: Any) -> ModelFacts:
    config = HttpConfig(**flags)
    return FactsKeeper(engine, config, ChatTemplate(config)).facts()


def planned(body: ChatRequest, facts: ModelFacts) -> ChatPlan:
    return plan_chat(body, facts, facts.template, NONE)


def test_all_apis_make_the_same_plan(engine: FakeEngine) -> None:
    facts = facts_of(engine)
    chat = {"messages": [SYSTEM, USER], "max_tokens": 9, "stop": ["x"], "tools": [TOOL]}
    tool = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
    message = {"system": "Be brief.", "messages": [USER], "max_tokens": 9, "stop_sequences": ["x"], "tools": [tool]}
    response = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "stop": ["x"],
        "tools": [{"type": "function"} | FUNCTION],
    }
    options = SAMPLING | {"num_predict": 9, "stop": ["x"]}
    items = input_items("hi", {}, "resp_1", WarningList(NONE))
    bodies = [
        ChatRequest.parse(chat | SAMPLING),
        AnthropicChat(MessagesRequest.parse(message | SAMPLING), WarningList(NONE)).chat,
        response_chat.ResponseChat(
            ResponseRequest.parse(response | SAMPLING), response_chat.Conversation([], items), WarningList(NONE)
        ).chat,
        OllamaChat(
            OllamaChatRequest.parse({"model": MODEL, "messages": [SYSTEM, USER], "tools": [TOOL], "options": options}),
            MODEL,
            WarningList(NONE),
        ).chat,
    ]
    plans = [planned(body, facts) for body in bodies]
    for plan in plans[1:]:
        assert (plan.params, plan.tools, plan.prompt) == (plans[0].params, plans[0].tools, plans[0].prompt)
        assert (plan.reasoning, plan.write_grammar()) == (plans[0].reasoning, plans[0].write_grammar())
        assert plan.warnings == NONE
    assert [plan.names.name("max_tokens") for plan in plans] == [
        *("max_tokens", "max_tokens", "max_completion_tokens", "max_tokens")
    ]


def test_a_plan_is_a_value(engine: FakeEngine) -> None:
    """Made twice, it is the same; what came before stays as it is, and so does the body."""
    facts = facts_of(engine)
    fields = {"messages": [USER], "chat_template_kwargs": {"xyzzy": 1}, "verbosity": "low"}
    body = ChatRequest.parse(fields)
    plan = planned(body, facts)
    assert plan == planned(body, facts)
    assert [entry.param for entry in plan.warnings.entries] == ["chat_template_kwargs.xyzzy", "verbosity"]
    assert NONE.entries == ()
    assert body == ChatRequest.parse(fields)
    assert isinstance(plan.prompt, Conversation)
    assert plan.prompt.kwargs == {}
    with pytest.raises(InvalidRequestError, match="verbosity has no effect"):
        plan_chat(ChatRequest.parse({"messages": [USER], "verbosity": "low"}), facts, facts.template, Warnings())


def test_a_plan_and_a_prompt_make_the_request(engine: FakeEngine) -> None:
    facts = facts_of(engine)
    plan = planned(ChatRequest.parse({"messages": [USER], "regex": "a+", "max_tokens": 3}), facts)
    prompt, options = ChatPrompt("<user>hi", [5, 6], None), RequestOptions(priority=2)
    request, reader = join_chat(
        *(plan, prompt, plan.write_grammar(), facts.tokenizer, "r", options), received=4.0, lowers_length=False
    )
    assert (request.request_id, request.prompt_ids, request.received) == ("r", [5, 6], 4.0)
    assert (request.options, request.params.max_tokens) == (options, 3)
    assert request.params.grammar is not None
    assert request.params.grammar.text == "a+"
    assert (reader.end.text, reader.new_tools) == ("<user>hi", None)
