"""OpenAI's Agents SDK, on /v1/responses and on chat: runs, streams, tools, structured output, hints it sends."""

from typing import Any, Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import KEY, MODEL, URL, equal, raises, run_checks, true
from openai.types.shared import Reasoning
from pydantic import BaseModel

set_tracing_disabled(True)
MODELS: tuple[Any, ...] = (OpenAIResponsesModel, OpenAIChatCompletionsModel)
QUESTION = "List 3 countries and their capitals."


class Villa(BaseModel):
    style: Literal["palladian", "gothic"]
    floors: Literal[1, 2, 3, 4]


def _model(kind: Any, key: str = KEY) -> Any:
    return kind(model=MODEL, openai_client=openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0))


def _agent(kind: Any, **arguments: Any) -> Agent[Any]:
    settings = arguments.pop("settings", ModelSettings(max_tokens=64, temperature=0))
    return Agent(name="Guide", instructions="You are brief.", model=_model(kind), model_settings=settings, **arguments)


async def check_run() -> None:
    for kind in MODELS:
        result = await Runner.run(_agent(kind), QUESTION)
        true(result.final_output)
        true(result.context_wrapper.usage.output_tokens > 0)


async def check_stream() -> None:
    for kind in MODELS:
        result = Runner.run_streamed(_agent(kind), QUESTION)
        deltas = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        equal("".join(deltas), result.final_output)


async def check_structured_output() -> None:
    for kind in MODELS:
        true(isinstance((await Runner.run(_agent(kind, output_type=Villa), QUESTION)).final_output, Villa))


async def check_tools() -> None:
    """Check tools: the first turn must call one; the second may not, because the runner resets the choice."""
    for kind in MODELS:
        seen: list[str] = []

        @function_tool
        def get_weather(city: Literal["Vicenza", "Venice"]) -> str:
            """The weather in a city."""
            seen.append(city)  # noqa: B023 - it is called before the next one is made
            return "sunny"

        settings = ModelSettings(tool_choice="get_weather", parallel_tool_calls=False, max_tokens=128)
        agent = _agent(kind, tools=[get_weather], settings=settings, tool_use_behavior="stop_on_first_tool")
        result = await Runner.run(agent, "What is the weather in Venice?")
        equal((len(seen), result.final_output), (1, "sunny"))


async def check_a_second_turn() -> None:
    for kind in MODELS:
        first = await Runner.run(_agent(kind), QUESTION)
        turns = [*first.to_input_list(), {"role": "user", "content": "And 2 more?"}]
        true((await Runner.run(_agent(kind), turns)).final_output)
    first = await Runner.run(_agent(OpenAIResponsesModel), QUESTION)
    second = await Runner.run(_agent(OpenAIResponsesModel), "And 2 more?", previous_response_id=first.last_response_id)
    true(second.final_output)


async def check_hints() -> None:
    """Settings that a server may not know must not end a run."""
    hints: Any = {"truncation": "auto", "verbosity": "low", "metadata": {"a": "b"}, "store": False, "temperature": 0}
    for kind in MODELS:
        true((await Runner.run(_agent(kind, settings=ModelSettings(**hints)), QUESTION)).final_output)
    reasoning = ModelSettings(reasoning=Reasoning(effort="low", summary="auto"), temperature=0)
    true((await Runner.run(_agent(OpenAIResponsesModel, settings=reasoning), QUESTION)).final_output is not None)


async def check_errors() -> None:
    for kind in MODELS:
        with raises(openai.AuthenticationError):
            await Runner.run(Agent(name="Guide", model=_model(kind, "wrong")), QUESTION)
        with raises(openai.BadRequestError, "temperature"):
            await Runner.run(_agent(kind, settings=ModelSettings(temperature=-1)), QUESTION)


if __name__ == "__main__":
    run_checks()
