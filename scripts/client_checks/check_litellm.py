"""LiteLLM with a server of the openai kind: completion, streams, structured output, tools, text completion, errors."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # without it, importing LiteLLM downloads a price list

import json
from typing import Any, Literal

import litellm
from checks import KEY, MODEL, URL, equal, raises, run_checks, true
from pydantic import BaseModel, ConfigDict, Field

ARGUMENTS: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": KEY, "model": f"openai/{MODEL}", "num_retries": 0}
MESSAGES = [
    {"role": "system", "content": [{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": "Hello"},
]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Vicenza", "Venice"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}}
]


class Villa(BaseModel):
    model_config = ConfigDict(extra="forbid")  # a random model would write more properties, on and on

    name: str = Field(max_length=8)
    style: Literal["palladian", "gothic"]
    floors: int = Field(ge=1, le=4)


def _complete(**arguments: Any) -> Any:
    return litellm.completion(**{**ARGUMENTS, "messages": MESSAGES, **arguments})


def check_completion() -> None:
    answer = _complete(max_tokens=5, top_k=20, seed=1, user="someone")
    true(answer.choices[0].message.content)
    equal((answer.usage.completion_tokens, answer.choices[0].finish_reason), (5, "length"))


def check_stream() -> None:
    chunks = list(_complete(max_tokens=5, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks)
    true(whole.choices[0].message.content)
    equal(whole.usage.completion_tokens, 5)


def check_structured_output() -> None:
    Villa.model_validate_json(_complete(response_format=Villa).choices[0].message.content)
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "villa", "strict": True, "schema": Villa.model_json_schema()},
    }
    Villa.model_validate_json(_complete(response_format=schema).choices[0].message.content)


def check_tools() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = _complete(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        equal(answer.choices[0].finish_reason, "tool_calls")
        (call,) = answer.choices[0].message.tool_calls
        equal((call.function.name, set(json.loads(call.function.arguments))), ("get_weather", {"city"}))
    turns = [*MESSAGES, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    true(_complete(messages=turns, tools=TOOLS, tool_choice="none", max_tokens=4).choices[0].message.content)


def check_streamed_tools() -> None:
    chunks = list(_complete(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=True))
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    equal(set(json.loads(call.function.arguments)), {"city"})


def check_extra_fields() -> None:
    answer = _complete(
        max_tokens=8, extra_body={"regex": "(yes|no)", "chat_template_kwargs": {"enable_thinking": False}}
    )
    true(answer.choices[0].message.content in ("yes", "no"))


def check_text_completion() -> None:
    arguments = {**ARGUMENTS, "model": f"text-completion-openai/{MODEL}", "prompt": "Hello", "max_tokens": 4}
    true(litellm.text_completion(**arguments).choices[0].text)
    true("".join(chunk.choices[0].text or "" for chunk in litellm.text_completion(**arguments, stream=True)))


async def check_async() -> None:
    answer = await litellm.acompletion(**ARGUMENTS, messages=MESSAGES, max_tokens=4)
    true(answer.choices[0].message.content)
    stream = await litellm.acompletion(**ARGUMENTS, messages=MESSAGES, max_tokens=4, stream=True)
    true("".join([chunk.choices[0].delta.content or "" async for chunk in stream]))


def check_errors() -> None:
    with raises(litellm.NotFoundError, "model"):
        _complete(model="openai/another")
    with raises(litellm.AuthenticationError):
        _complete(api_key="wrong")
    with raises(litellm.BadRequestError, "temperature"):
        _complete(temperature=-1)
    with raises(litellm.ContextWindowExceededError):
        _complete(messages=[{"role": "user", "content": "Hello " * 9000}])


if __name__ == "__main__":
    run_checks()
