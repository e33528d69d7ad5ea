"""POST /v1/chat/completions/batch, as vLLM has it: several conversations, each with a choice of one answer."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import Response

from palladio.http.chat.chat_run import ChatAnswer, ChatRun
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.logprobs import prompt_logprobs
from palladio.http.generation.output_stream import check_samples, stop_patterns
from palladio.http.generation.params import request_name
from palladio.http.generation.prompts import check_num_prompts, numbered_ids
from palladio.http.generation.usage import Usage
from palladio.http.generation.whole import answer_size
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.routes.routes_chat import chat_choice
from palladio.http.wire.fields import MAX_WARNINGS, FieldMap, Warnings
from palladio.http.wire.protocol_chat import BatchChatRequest, ChatRequest
from palladio.runtime.interface.errors import InvalidRequestError

_OF_ALL = ("messages", "n", "stream", "rid", "request_id")  # fields that mean the whole request


async def _complete(context: Context, call: Call, body: BatchChatRequest) -> Response:
    received = time.time()
    for name, is_asked in (("stream", bool(body.stream)), ("n", body.n not in (None, 1))):
        if is_asked:
            message = f"{name} is not supported here: send the conversations one by one to /v1/chat/completions"
            raise InvalidRequestError(message, param=name, code="unsupported_parameter")
    check_num_prompts(len(body.messages), "messages")
    name = request_name(body, call.request_id)
    prepared = await _prepare(context, call.detached(), body, name)
    requests = [run.request for _, run in prepared]
    check_samples(requests)
    stop_patterns(requests)
    with context.running.track(name, requests) if len(requests) > 1 else contextlib.nullcontext():
        answers = await call.wait(_collect([run for _, run in prepared]))
    warnings = _joined([run.warnings for _, run in prepared])

    def write() -> Response:
        total, choices = Usage(1), []
        for position, ((asked, run), answer) in enumerate(zip(prepared, answers, strict=True)):
            (output,), (message,) = answer.outputs, answer.messages
            output.count_from(position)
            total.add(output)
            total.note_reasoning(position, answer.usage.as_dict()["reasoning_tokens"])
            choices.append(chat_choice(output, message, asked, run) | _of_prompt(asked, run, answer))
        fields: dict[str, Any] = {
            "id": name,
            "object": "chat.completion",
            "created": int(received),
            "model": context.names.answering(body.model),
            "system_fingerprint": context.facts.system_fingerprint,
            "choices": choices,
            "usage": total.as_dict(),
        }
        fields |= context.metadata() | warnings.fields()
        if body.return_timings:
            fields["timings"] = total.timings()
        return Response(orjson.dumps(fields), media_type="application/json")

    return await run_encoding(write, sum(answer_size(answer.outputs) for answer in answers))


async def _prepare(
    context: Context, call: Call, body: BatchChatRequest, name: str
) -> list[tuple[ChatRequest, ChatRun]]:
    """The request of each conversation, up to the engine.

    Raises:
        PalladioError: one is wrong; `param` names its message.
    """
    fields = {field: value for field, value in body if field not in _OF_ALL}
    prepared: list[tuple[ChatRequest, ChatRun]] = []
    for position, rid in enumerate(numbered_ids(name, len(body.messages))):
        names = FieldMap(paths={"messages": f"messages.{position}"})
        asked = ChatRequest(**fields, messages=body.messages[position], rid=rid)
        prepared.append((asked, await ChatRun.prepare(context, call, asked, names)))
    return prepared


async def _collect(runs: Sequence[ChatRun]) -> list[ChatAnswer]:
    """Waits for all answers; the first error ends the others."""
    tasks = [asyncio.create_task(run.collect()) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _of_prompt(asked: ChatRequest, run: ChatRun, answer: ChatAnswer) -> dict[str, Any]:
    """Fields of a choice about its conversation's prompt, which an answer to one conversation has at its top."""
    fields: dict[str, Any] = {}
    if asked.prompt_logprobs is not None:
        scores = answer.outputs[0].prompt_logprobs or []
        fields["prompt_logprobs"] = prompt_logprobs(run.tokenizer, scores, asked.prompt_logprobs)
    if asked.return_token_ids:
        fields["prompt_token_ids"] = run.request.prompt_ids
    return fields


def _joined(found: Sequence[Warnings]) -> Warnings:
    """The warnings of all conversations, each once."""
    entries = dict.fromkeys(entry for one in found for entry in one.entries)
    return Warnings(tuple(entries)[:MAX_WARNINGS], found[0].are_errors)


BATCH_CHAT = Endpoint("/v1/chat/completions/batch", BatchChatRequest, _complete)
