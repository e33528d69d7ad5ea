"""LangChain's ChatOpenAI and OpenAI: invoke, stream, batch, structured output by every method, tools, errors."""

from typing import Any, Literal

import openai
from checks import JSON_PROMPT, KEY, MODEL, URL, equal, raises, run_checks, true
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

QUESTION = "List 3 countries and their capitals."
MESSAGES = [SystemMessage("You are brief."), HumanMessage([{"type": "text", "text": "Hello"}])]


class Villa(BaseModel):
    """A house of Palladio's."""

    model_config = ConfigDict(extra="forbid")  # a random model would write more properties, on and on

    name: str = Field(max_length=8)
    style: Literal["palladian", "gothic"]
    floors: int = Field(ge=1, le=4)


@tool
def get_weather(city: Literal["Vicenza", "Venice"]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def _chat(**arguments: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"base_url": f"{URL}/v1", "api_key": KEY, "model": MODEL, "max_retries": 0, **arguments})


def check_invoke() -> None:
    answer = _chat(max_tokens=5).invoke(MESSAGES)
    true(answer.content)
    equal(answer.usage_metadata["output_tokens"], 5)
    equal(answer.response_metadata["finish_reason"], "length")


def check_stream() -> None:
    chunks = list(_chat(max_tokens=5, stream_usage=True).stream(MESSAGES))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    true(total.content)
    equal(total.usage_metadata["output_tokens"], 5)


def check_batch() -> None:
    equal(len(_chat(max_tokens=2).batch(["One", "Two", "Three"])), 3)


def check_structured_output() -> None:
    for method in ("json_schema", "function_calling"):
        result = _chat().with_structured_output(Villa, method=method, include_raw=True).invoke(MESSAGES)
        equal((result["parsing_error"], type(result["parsed"])), (None, Villa))
    true(isinstance(_chat().with_structured_output(Villa, method="json_schema", strict=True).invoke("A villa"), Villa))


def check_json_mode() -> None:
    chat = _chat(temperature=0).with_structured_output({"title": "any", "type": "object"}, method="json_mode")
    true(isinstance(chat.invoke(JSON_PROMPT), dict))


def check_responses() -> None:
    """The same through /v1/responses, with hints that a server may not know."""
    chat = _chat(use_responses_api=True, temperature=0, verbosity="low", truncation="auto")
    answer = chat.invoke(QUESTION)
    true(answer.text)
    true(answer.usage_metadata["output_tokens"] > 0)
    true("".join(chunk.text for chunk in chat.stream(QUESTION)) == answer.text)
    true(isinstance(chat.with_structured_output(Villa).invoke(MESSAGES), Villa))
    answer = chat.bind_tools([get_weather], tool_choice="get_weather").invoke(MESSAGES)
    equal([call["name"] for call in answer.tool_calls], ["get_weather"] * len(answer.tool_calls))
    turns = [*MESSAGES, answer, *(get_weather.invoke(call) for call in answer.tool_calls)]
    true(chat.bind_tools([get_weather], tool_choice="none").invoke(turns).text)


def check_tools() -> None:
    for choice in ("get_weather", "required", "any"):
        answer = _chat().bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False).invoke(MESSAGES)
        (call,) = answer.tool_calls
        equal((call["name"], answer.invalid_tool_calls), ("get_weather", []))
    result = get_weather.invoke(call)
    true(isinstance(result, ToolMessage))
    true(_chat(max_tokens=4).bind_tools([get_weather], tool_choice="none").invoke([*MESSAGES, answer, result]).content)


def check_streamed_tools() -> None:
    chat = _chat().bind_tools([get_weather], tool_choice="get_weather", strict=True, parallel_tool_calls=False)
    chunks = list(chat.stream(MESSAGES))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    (call,) = total.tool_calls
    equal((call["name"], set(call["args"])), ("get_weather", {"city"}))


def check_logprobs() -> None:
    answer = _chat(max_tokens=2, temperature=0).bind(logprobs=True, top_logprobs=3).invoke(MESSAGES)
    equal([len(one["top_logprobs"]) for one in answer.response_metadata["logprobs"]["content"]], [3, 3])


def check_completions() -> None:
    model = OpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_tokens=4, max_retries=0)
    true(model.invoke("Hello"))
    true("".join(model.stream("Hello")))
    equal(len(model.generate(["One", "Two"]).generations), 2)


async def check_async() -> None:
    true((await _chat(max_tokens=4).ainvoke(MESSAGES)).content)
    true("".join([chunk.content async for chunk in _chat(max_tokens=4).astream(MESSAGES)]))
    true(isinstance(await _chat().with_structured_output(Villa).ainvoke(MESSAGES), Villa))


def check_errors() -> None:
    with raises(openai.NotFoundError, "model_not_found"):
        _chat(model="another").invoke(MESSAGES)
    with raises(openai.AuthenticationError):
        _chat(api_key="wrong").invoke(MESSAGES)
    with raises(openai.BadRequestError, "temperature"):
        _chat(temperature=-1).invoke(MESSAGES)


if __name__ == "__main__":
    run_checks()
