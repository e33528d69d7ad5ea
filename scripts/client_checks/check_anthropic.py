"""Anthropic's SDK: messages and their streams, tools and the tool runner, JSON, counting, models, exception classes."""

import json
from typing import Any, Literal

import anthropic
from anthropic import beta_tool
from checks import KEY, MODEL, URL, equal, own_server, raises, run_checks, true
from pydantic import BaseModel

GREEDY: Any = {"temperature": 0}  # the newest versions have no argument for it
CLIENT = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
MESSAGES: Any = [{"role": "user", "content": "List 3 countries and their capitals."}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Vicenza", "Venice"]}},
    "required": ["city"],
}
TOOLS: Any = [{"name": "get_weather", "description": "The weather in a city.", "input_schema": SCHEMA}]


class Villa(BaseModel):
    style: Literal["palladian", "gothic"]
    floors: Literal[1, 2, 3, 4]


def check_messages() -> None:
    answer = CLIENT.messages.create(model=MODEL, max_tokens=8, system="You are brief.", messages=MESSAGES)
    equal((answer.role, answer.stop_reason, answer.usage.output_tokens), ("assistant", "max_tokens", 8))
    true(answer.content[0].text)
    blocks: Any = [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]
    answer = CLIENT.messages.create(
        model=MODEL, max_tokens=64, messages=[{"role": "user", "content": blocks}], extra_body=GREEDY, metadata={}
    )
    equal(answer.stop_reason, "end_turn")


def check_stream() -> None:
    with CLIENT.messages.stream(model=MODEL, max_tokens=8, messages=MESSAGES, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
    final = stream.get_final_message()
    equal((final.content[0].text, final.stop_reason, final.usage.output_tokens), (text, "max_tokens", 8))


def check_progress_and_comments() -> None:
    """While one request runs, the next one waits long enough for comments."""
    with own_server("--sse-keep-alive-interval", "0.01", "--max-running-requests", "1") as (url, _):
        client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
        progress: Any = GREEDY | {"return_progress": True}
        with client.messages.stream(model=MODEL, max_tokens=200, messages=MESSAGES) as first:
            next(iter(first))
            with client.messages.stream(model=MODEL, max_tokens=8, messages=MESSAGES, extra_body=progress) as stream:
                text = "".join(stream.text_stream)
    answer = CLIENT.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES, extra_body=GREEDY)
    equal(text, answer.content[0].text)


def check_stop_sequence() -> None:
    answer = CLIENT.messages.create(
        model=MODEL, max_tokens=64, messages=MESSAGES, extra_body=GREEDY, stop_sequences=["\n", ":"]
    )
    equal(answer.stop_reason, "stop_sequence")
    true(answer.stop_sequence in ("\n", ":"))


def check_tools() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        answer = CLIENT.messages.create(model=MODEL, max_tokens=256, messages=MESSAGES, tools=TOOLS, tool_choice=choice)
        equal(answer.stop_reason, "tool_use")
        call = answer.content[-1]
        equal((call.name, set(call.input)), ("get_weather", {"city"}))
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    answer = CLIENT.messages.create(
        model=MODEL, max_tokens=16, messages=turns, tools=TOOLS, tool_choice={"type": "none"}
    )
    true(answer.content[0].text)


def check_streamed_tools() -> None:
    with CLIENT.messages.stream(
        model=MODEL, max_tokens=256, messages=MESSAGES, tools=TOOLS, tool_choice={"type": "any"}
    ) as stream:
        kinds = {event.type for event in stream}
    true("input_json" in kinds, kinds)
    equal(set(stream.get_final_message().content[-1].input), {"city"})


def check_tool_runner() -> None:
    """Its newest versions ask for a thread first, and go on without where a server says that it has none."""
    seen: list[str] = []

    @beta_tool
    def get_weather(city: Literal["Vicenza", "Venice"]) -> str:
        """The weather in a city.

        Args:
            city: which one.
        """
        seen.append(city)
        return "sunny"

    runner = CLIENT.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=256,
        messages=MESSAGES,
        tools=[get_weather],
        tool_choice={"type": "any"},
        max_iterations=2,
    )
    final = runner.until_done()
    true(seen)
    true(final.content)


def check_json() -> None:
    answer = CLIENT.messages.parse(model=MODEL, max_tokens=256, messages=MESSAGES, output_format=Villa)
    true(isinstance(answer.parsed_output, Villa))
    text = "".join(block.text for block in answer.content)
    Villa.model_validate(json.loads(text))


def check_count_and_models() -> None:
    count = CLIENT.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    equal(count, CLIENT.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES).usage.input_tokens)
    equal([model.id for model in CLIENT.models.list()], [MODEL])
    equal(CLIENT.models.retrieve(MODEL).id, MODEL)


def check_errors() -> None:
    create = CLIENT.messages.create
    with raises(anthropic.BadRequestError, "temperature"):
        create(model=MODEL, max_tokens=8, messages=MESSAGES, extra_body={"temperature": -1})
    with raises(anthropic.NotFoundError):
        create(model="another", max_tokens=8, messages=MESSAGES)
    with raises(anthropic.AuthenticationError):
        CLIENT.with_options(api_key="wrong").messages.create(model=MODEL, max_tokens=8, messages=MESSAGES)


async def check_async() -> None:
    client = anthropic.AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0)
    async with client, client.messages.stream(model=MODEL, max_tokens=8, messages=MESSAGES) as stream:
        true("".join([piece async for piece in stream.text_stream]))


if __name__ == "__main__":
    run_checks()
