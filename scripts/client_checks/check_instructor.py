"""Instructor: pydantic models through tools, a JSON schema and JSON mode; streams of partial objects."""

from collections.abc import Iterable
from typing import Any, Literal

import instructor
import openai
from checks import KEY, MODEL, URL, bias_to, equal, raises, run_checks, true
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field

ARGUMENTS = {"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0}
MESSAGES: Any = [{"role": "user", "content": "Describe a villa."}]


class Villa(BaseModel):
    """A house of Palladio's."""

    model_config = ConfigDict(extra="forbid")  # a random model would write more properties, on and on

    name: str = Field(max_length=8)
    style: Literal["palladian", "gothic"]
    floors: int = Field(ge=1, le=4)


def _create(mode: instructor.Mode, **arguments: Any) -> Any:
    client = instructor.from_openai(openai.OpenAI(**ARGUMENTS), mode=mode)
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, max_retries=0, **arguments)


def check_tools() -> None:
    villa = _create(instructor.Mode.TOOLS, response_model=Villa)
    true(isinstance(villa, Villa))
    equal(villa._raw_response.choices[0].message.tool_calls[0].function.name, "Villa")


def check_strict_tools() -> None:
    true(isinstance(_create(instructor.Mode.TOOLS_STRICT, response_model=Villa), Villa))


def check_json_schema() -> None:
    true(isinstance(_create(instructor.Mode.JSON_SCHEMA, response_model=Villa), Villa))


def check_parallel_tools() -> None:
    """This mode leaves the choice to the model, and a random one calls nothing: Instructor finds that out."""
    client = instructor.from_openai(openai.OpenAI(**ARGUMENTS), mode=instructor.Mode.PARALLEL_TOOLS)
    with raises(InstructorRetryException, "No tool calls"):
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            response_model=Iterable[Villa],
            max_retries=0,
            logit_bias=bias_to("<|im_end|>"),
        )


def check_json_mode_retries() -> None:
    """An empty object does not fit, so this sends the failed answers and their errors back."""
    bias = bias_to("}", against=('{"',))
    client = instructor.from_openai(openai.OpenAI(**ARGUMENTS), mode=instructor.Mode.JSON)
    with raises(InstructorRetryException):
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, response_model=Villa, max_retries=2, logit_bias=bias
        )


def check_partial_stream() -> None:
    client = instructor.from_openai(openai.OpenAI(**ARGUMENTS), mode=instructor.Mode.TOOLS)
    partial = list(client.chat.completions.create_partial(model=MODEL, messages=MESSAGES, response_model=Villa))
    true(len(partial) > 1)
    Villa.model_validate(partial[-1].model_dump())


def check_usage() -> None:
    client = instructor.from_openai(openai.OpenAI(**ARGUMENTS))
    villa, answer = client.chat.completions.create_with_completion(model=MODEL, messages=MESSAGES, response_model=Villa)
    true(isinstance(villa, Villa))
    true(answer.usage.completion_tokens > 0)


def check_errors() -> None:
    with raises(InstructorRetryException, "model_not_found"):
        client = instructor.from_openai(openai.OpenAI(**ARGUMENTS))
        client.chat.completions.create(model="another", messages=MESSAGES, response_model=Villa, max_retries=0)


async def check_async() -> None:
    client = instructor.from_openai(openai.AsyncOpenAI(**ARGUMENTS))
    villa = await client.chat.completions.create(model=MODEL, messages=MESSAGES, response_model=Villa)
    true(isinstance(villa, Villa))


if __name__ == "__main__":
    run_checks()
