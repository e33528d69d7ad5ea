"""The openai SDK: what its users do, with the sync, the async and the aiohttp client."""

import asyncio
import io
import json
import time
from typing import Any, Literal

import openai
from checks import JSON_PROMPT, KEY, MODEL, URL, equal, get_json, raises, run_checks, true
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
    """The schema of the model's answer: bounded, since a random one does not end by itself."""

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
    asked: Any = [{"role": "user", "content": JSON_PROMPT}]
    answer = CLIENT.chat.completions.create(
        model=MODEL, messages=asked, response_format={"type": "json_object"}, temperature=0
    )
    true(isinstance(json.loads(answer.choices[0].message.content), dict))
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


def check_responses() -> None:
    first = CLIENT.responses.create(model=MODEL, input="Hello", max_output_tokens=16, truncation="auto")
    second = CLIENT.responses.create(
        model=MODEL, input="Again", previous_response_id=first.id, max_output_tokens=16, text={"verbosity": "low"}
    )
    equal(CLIENT.responses.retrieve(second.id).output_text, second.output_text)
    with CLIENT.responses.stream(model=MODEL, input="Hello", max_output_tokens=16) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    equal(text, stream.get_final_response().output_text)
    parsed = CLIENT.responses.parse(model=MODEL, input="A villa", text_format=Villa)
    true(isinstance(parsed.output_parsed, Villa))


def check_batches() -> None:
    """One that ends, with a line that fails, and one that is cancelled."""
    url: Any = "/v1/chat/completions"

    def start(lines: list[dict[str, Any]]) -> Any:
        rows = [{"custom_id": str(i), "method": "POST", "url": url, "body": line} for i, line in enumerate(lines)]
        file = CLIENT.files.create(file=io.BytesIO("\n".join(map(json.dumps, rows)).encode()), purpose="batch")
        return CLIENT.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")

    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
    batch = start([body, body, body | {"temperature": -1}])
    while batch.status not in ("completed", "failed", "expired"):
        time.sleep(0.1)
        batch = CLIENT.batches.retrieve(batch.id)
    counts = batch.request_counts
    equal((batch.status, counts.total, counts.completed, counts.failed), ("completed", 3, 2, 1))
    answers = [json.loads(line) for line in CLIENT.files.content(batch.output_file_id).text.splitlines()]
    equal(sorted(answer["custom_id"] for answer in answers), ["0", "1"])
    true("temperature" in CLIENT.files.content(batch.error_file_id).text)
    batch = CLIENT.batches.cancel(start([body | {"max_tokens": 500, "ignore_eos": True}] * 50).id)
    while batch.status == "cancelling":
        time.sleep(0.1)
        batch = CLIENT.batches.retrieve(batch.id)
    equal(batch.status, "cancelled")
    true(batch.id in [one.id for one in CLIENT.batches.list(limit=20)])


async def check_cancels() -> None:
    """Abandon streams and answers: nothing may keep running."""
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as client:
        create, long = client.chat.completions.create, {"max_tokens": 3000, "extra_body": {"ignore_eos": True}}

        async def give_up() -> None:
            stream = await create(model=MODEL, messages=MESSAGES, stream=True, **long)
            async for _ in stream:
                break
            await stream.close()

        await asyncio.gather(*(give_up() for _ in range(8)))
        waiting = [asyncio.create_task(create(model=MODEL, messages=MESSAGES, **long)) for _ in range(4)]
        await asyncio.sleep(0.3)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        for _ in range(50):
            loads = get_json("/get_load")
            if not any(load["num_reqs"] for load in loads):
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"requests run on: {loads}")


async def check_slow_readers() -> None:
    """Read slowly: the client gets every token, and delays no other."""
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as client:
        fields: Any = {"max_tokens": 400, "seed": 5, "extra_body": {"ignore_eos": True}}

        async def read(delay: float) -> str:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **fields)
            pieces = []
            async for chunk in stream:
                pieces += [choice.delta.content or "" for choice in chunk.choices]
                await asyncio.sleep(delay)
            return "".join(pieces)

        slow = [asyncio.create_task(read(0.02)) for _ in range(4)]
        quick = await asyncio.wait_for(read(0), 60)
        true(not any(task.done() for task in slow), "a slow reader was quicker")
        equal(await asyncio.gather(*slow), [quick] * 4)


async def check_aiohttp() -> None:
    http_client = openai.DefaultAioHttpClient()
    await _use(openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, http_client=http_client))


if __name__ == "__main__":
    run_checks()
