"""The openai SDK: what its users do, with the sync, the async and the aiohttp client."""

import json
from typing import Any, Literal

import openai
from checks import KEY, MODEL, URL, bias_to, equal, raises, run_checks, true
from pydantic import BaseModel, Field

CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
MESSAGES: Any = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Hello"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Vicenza", "Venice"]},
        "days": {"type": "integer", "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
FORCED: Any = {"type": "function", "function": {"name": "get_weather"}}


class Villa(BaseModel):
    """What the model has to write: bounded, since a random one does not end by itself."""

    name: str = Field(max_length=8)
    style: Literal["palladian", "gothic"]
    floors: int = Field(ge=1, le=4)
    rooms: list[Literal["hall", "loggia"]] = Field(max_length=3)


class GetWeather(BaseModel):
    city: Literal["Vicenza", "Venice"]


def check_chat() -> None:
    answer = CLIENT.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=5, n=2, seed=1)
    equal([choice.index for choice in answer.choices], [0, 1])
    equal(answer.choices[0].message.role, "assistant")
    true(answer.choices[0].message.content)
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
    true(answer._request_id)


def check_stream() -> None:
    stream = CLIENT.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    equal(chunks[0].choices[0].delta.role, "assistant")
    true("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    equal([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1], "length")
    equal((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 5))


def check_stream_helper() -> None:
    with CLIENT.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Villa) as stream:
        kinds = {event.type for event in stream}
    true(kinds >= {"chunk", "content.delta", "content.done"}, kinds)
    true(isinstance(stream.get_final_completion().choices[0].message.parsed, Villa))


def check_structured_output() -> None:
    answer = CLIENT.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Villa)
    true(isinstance(answer.choices[0].message.parsed, Villa))
    answer = CLIENT.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, logit_bias=bias_to("}")
    )
    equal(json.loads(answer.choices[0].message.content), {})
    with raises(openai.LengthFinishReasonError):
        CLIENT.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Villa, max_tokens=1)


def check_tool_calls() -> None:
    for choice in ("required", FORCED):
        answer = CLIENT.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False
        )
        equal(answer.choices[0].finish_reason, "tool_calls")
        (call,) = answer.choices[0].message.tool_calls
        equal((call.function.name, set(json.loads(call.function.arguments))), ("get_weather", {"city", "days"}))
    turns = [*MESSAGES, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = CLIENT.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS, tool_choice="none", max_tokens=4)
    true(answer.choices[0].message.content)


def check_tool_calls_of_pydantic_models() -> None:
    tool = openai.pydantic_function_tool(GetWeather)
    answer = CLIENT.chat.completions.parse(
        model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = answer.choices[0].message.tool_calls
    true(isinstance(call.function.parsed_arguments, GetWeather))


def check_streamed_tool_calls() -> None:
    with CLIENT.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=FORCED, parallel_tool_calls=False
    ) as stream:
        kinds = {event.type for event in stream}
    true("tool_calls.function.arguments.done" in kinds, kinds)
    (call,) = stream.get_final_completion().choices[0].message.tool_calls
    equal(set(json.loads(call.function.arguments)), {"city", "days"})


def check_logprobs() -> None:
    answer = CLIENT.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2, temperature=0
    )
    entries = answer.choices[0].logprobs.content
    equal([len(entry.top_logprobs) for entry in entries], [2, 2, 2])
    true(all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries))


def check_completions() -> None:
    answer = CLIENT.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=3, echo=True, logprobs=1)
    equal([choice.text[:3] for choice in answer.choices], ["One", "Two"])
    equal(answer.choices[0].logprobs.token_logprobs[0], None)
    chunks = list(CLIENT.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=3, stream=True))
    equal(chunks[-1].choices[0].finish_reason, "length")


def check_models() -> None:
    equal([model.id for model in CLIENT.models.list()], [MODEL])
    equal(CLIENT.models.retrieve(MODEL).id, MODEL)


def check_errors() -> None:
    create = CLIENT.chat.completions.create
    with raises(openai.BadRequestError, "temperature"):
        create(model=MODEL, messages=MESSAGES, temperature=-1)
    with raises(openai.BadRequestError, "did you mean temperature"):
        create(model=MODEL, messages=MESSAGES, extra_body={"temprature": 1})
    answer = create(model=MODEL, messages=MESSAGES, max_tokens=1, extra_body={"xyzzy": 1})
    assert [warning["param"] for warning in (answer.model_extra or {})["warnings"]] == ["xyzzy"]
    with raises(openai.BadRequestError, "context_length_exceeded"):
        create(model=MODEL, messages=[{"role": "user", "content": "Hello " * 9000}])
    with raises(openai.NotFoundError, "model_not_found"):
        create(model="another", messages=MESSAGES)
    with raises(openai.AuthenticationError, "invalid_api_key"):
        CLIENT.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=MESSAGES)
    with raises(openai.BadRequestError, "temperature"):
        create(model=MODEL, messages=MESSAGES, temperature=-1, stream=True)


async def _use(client: openai.AsyncOpenAI) -> None:
    async with client:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
        true(answer.choices[0].message.content)
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, stream=True)
        chunks = [chunk async for chunk in stream]
        equal(chunks[-1].choices[0].finish_reason, "length")
        parsed = await client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Villa)
        true(isinstance(parsed.choices[0].message.parsed, Villa))
        with raises(openai.NotFoundError):
            await client.chat.completions.create(model="another", messages=MESSAGES)


async def check_async() -> None:
    await _use(openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0))


async def check_aiohttp() -> None:
    http_client = openai.DefaultAioHttpClient()
    await _use(openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, http_client=http_client))


if __name__ == "__main__":
    run_checks()
