"""Pydantic AI: agents with text, tool, native and prompted output, with tools, in streams."""

from typing import Literal

from checks import KEY, MODEL, URL, bias_to, equal, raises, run_checks, true
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import (
    Agent,
    NativeOutput,
    PromptedOutput,
    RunContext,
    ToolDefinition,
    ToolOutput,
    UnexpectedModelBehavior,
)
from pydantic_ai.exceptions import ModelAuthenticationError, ModelHTTPError, ModelNotFoundError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings


class Villa(BaseModel):
    """A house of Palladio's."""

    model_config = ConfigDict(extra="forbid")  # a random model would write more properties, on and on

    name: str = Field(max_length=8)
    style: Literal["palladian", "gothic"]
    floors: int = Field(ge=1, le=4)


def _model(name: str = MODEL, key: str = KEY) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=key))


SHORT = ModelSettings(max_tokens=8)


def check_text() -> None:
    result = Agent(_model(), instructions="You are brief.", model_settings=SHORT).run_sync("Hello")
    true(result.output)
    equal(result.usage.output_tokens, 8)


def check_tool_output() -> None:
    true(isinstance(Agent(_model(), output_type=ToolOutput(Villa)).run_sync("A villa").output, Villa))


def check_native_output() -> None:
    true(isinstance(Agent(_model(), output_type=NativeOutput(Villa)).run_sync("A villa").output, Villa))


def check_prompted_output() -> None:
    """An empty object does not fit, so this sends the failed answer and its errors back."""
    settings = ModelSettings(logit_bias=bias_to("}", against=('{"',)))
    agent = Agent(_model(), output_type=PromptedOutput(Villa), retries=1, model_settings=settings)
    with raises(UnexpectedModelBehavior, "retries"):
        agent.run_sync("A villa")


def check_tools() -> None:
    """Either tool may be called until the one that ends the run is; the weather once, or a model may never end."""
    cities: list[str] = []
    agent = Agent(_model(), output_type=ToolOutput(Villa), retries=3)

    async def offer_once(_: RunContext[None], definition: ToolDefinition) -> ToolDefinition | None:
        return None if cities else definition

    @agent.tool_plain(prepare=offer_once)
    def get_weather(city: Literal["Vicenza", "Venice"]) -> str:
        cities.append(city)
        return "sunny"

    for _ in range(8):
        true(isinstance(agent.run_sync("A villa, and the weather there").output, Villa))
        if cities:
            return
    raise AssertionError("get_weather was never called")


async def check_stream() -> None:
    async with Agent(_model(), model_settings=SHORT).run_stream("Hello") as result:
        pieces = [piece async for piece in result.stream_text(delta=True)]
        true("".join(pieces))
        equal(result.usage.output_tokens, 8)


async def check_streamed_output() -> None:
    async with Agent(_model(), output_type=ToolOutput(Villa)).run_stream("A villa") as result:
        villas = [villa async for villa in result.stream_output(debounce_by=None)]
    true(isinstance(villas[-1], Villa))


def check_errors() -> None:
    with raises(ModelNotFoundError, "404", "model_not_found"):
        Agent(_model("another")).run_sync("Hello")
    with raises(ModelAuthenticationError, "401"):
        Agent(_model(key="wrong")).run_sync("Hello")
    with raises(ModelHTTPError, "400", "temperature"):
        Agent(_model(), model_settings=ModelSettings(temperature=-1)).run_sync("Hello")


if __name__ == "__main__":
    run_checks()
