"""POST /v1/completions."""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import Response

from palladio.http.generation.chunks import CompletionChunks, StreamSettings
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.event_stream import EventStream, with_warnings
from palladio.http.generation.logprobs import LegacyLogprobs, join_arrays, prompt_logprobs
from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.params import (
    check_scoring_only,
    default_length,
    request_name,
    sampling_params,
    structured_output,
)
from palladio.http.generation.prompts import check_num_samples, encode_prompts, numbered_ids, split_prompts
from palladio.http.generation.usage import finish_fields
from palladio.http.generation.whole import TOKEN_SIZE, answer_size, collect
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.wire.fields import FieldMap, WarningList, Warnings
from palladio.http.wire.protocol_completions import CompletionRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.interface.request.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionInput:
    """The prompts and parameters for the engine.

    Attributes:
        prompts: as they were given. prompt_ids: as token ids.
        params: sampling parameters of each of them.
        truncation: what became of long ones.
        names: what the client calls the engine's fields.
        warnings: warnings of the whole request.
    """

    name: str
    requests: list[GenerationRequest]
    prompts: Sequence[str | list[int]]
    prompt_ids: list[list[int]]
    params: SamplingParams
    truncation: Truncation | None
    names: FieldMap
    warnings: Warnings


async def read_completion(context: Context, call: Call, body: CompletionRequest) -> CompletionInput:
    """
    Raises:
        InvalidRequestError: a field is wrong, or has no effect with this model.
    """
    received, warnings = time.time(), WarningList(call.warnings)
    grammar, grammar_field = structured_output(body, warnings)
    names = FieldMap(paths={"grammar": grammar_field})
    with names.renaming():
        params, options = _params(body, context, grammar), call.options(body)
        name = request_name(body, call.request_id)
        prompts = split_prompts(body.prompt, "prompt")
        check_num_samples(len(prompts), len(prompts) * params.n)
        length = default_length(params, context.facts.sampling_defaults, DEFAULT_MAX_TOKENS)
        reserved = params.max_tokens if length is None else length
        truncation = context.facts.truncation(body.truncate_prompt_tokens, reserved)
        prompt_ids = await encode_prompts(
            context.encoder, prompts, add_special_tokens=body.add_special_tokens is not False, truncation=truncation
        )
    warnings.found.note_since(call.warnings, context.note_warning)
    requests = [
        GenerationRequest(
            *(request_id, ids, params),
            received=received,
            options=options,
            default_length=length,
            lowers_length=context.config.allow_auto_truncate,
            first_index=position * params.n,
        )
        for position, (request_id, ids) in enumerate(zip(numbered_ids(name, len(prompts)), prompt_ids, strict=True))
    ]
    return CompletionInput(name, requests, prompts, prompt_ids, params, truncation, names, warnings.found)


async def complete_text(context: Context, call: Call, body: CompletionRequest) -> Response:
    """
    Raises:
        PalladioError: what went wrong before the status was sent.
        HttpError: the client went away.
    """
    context.require_generation()
    received = time.time()
    origin = call.origin(no_logs=body.no_logs, log_metrics=body.log_metrics)
    model = context.names.answering(body.model)
    read = await read_completion(context, call, body)
    name, requests, params, prompt_ids = read.name, read.requests, read.params, read.prompt_ids
    echoes = await _echoes(context, _shown(read.prompts, prompt_ids, read.truncation), params) if body.echo else None
    stream = OutputStream(context, requests, name=name, origin=origin, names=read.names)
    head = {
        "id": name,
        "object": "text_completion",
        "created": int(received),
        "model": model,
        "system_fingerprint": context.facts.system_fingerprint,
    }
    if body.stream:
        settings = StreamSettings.of(body, head, context.config.stream_interval, stream)
        await call.wait(stream.start())
        new_legacy = functools.partial(_legacy, context, body, params, prompt_ids, echoes)
        return EventStream(stream, with_warnings(CompletionChunks(settings, new_legacy, echoes), read.warnings))
    outputs, usage = await call.wait(collect(stream))

    def write() -> Response:
        answers = [_answer(context, body, read, outputs, output, echoes) for output in outputs]
        answer = head | {"choices": answers, "usage": usage.as_dict()} | context.metadata() | read.warnings.fields()
        if body.return_timings:
            answer["timings"] = usage.timings()
        return Response(orjson.dumps(answer), media_type="application/json")

    return await run_encoding(write, answer_size(outputs, prompts=prompt_ids if body.return_token_ids else ()))


def _answer(
    context: Context,
    body: CompletionRequest,
    read: CompletionInput,
    outputs: list[RequestOutput],
    output: RequestOutput,
    echoes: list[str] | None,
) -> dict[str, Any]:
    """Make a whole choice.

    Args:
        outputs: the outputs of all samples.
    """
    params, prompt_ids, position = read.params, read.prompt_ids, output.index // read.params.n
    scores = outputs[position * params.n].prompt_logprobs or []  # the first sample has them
    answer = _choice(body, output, prompt_ids[position], echoes[position] if echoes else None)
    if body.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(context.facts.tokenizer, scores, body.prompt_logprobs)
    if body.logprobs is not None:
        legacy = _legacy(context, body, params, prompt_ids, echoes, position)
        arrays = legacy.of_output(output.logprobs or [])
        answer["logprobs"] = join_arrays(legacy.of_prompt(scores), arrays) if echoes is not None else arrays
    return answer


def _params(body: CompletionRequest, context: Context, grammar: Grammar | None) -> SamplingParams:
    check_scoring_only(body, body.max_tokens, "max_tokens", echo=bool(body.echo))
    if body.logprob_token_ids and body.logprobs is None:
        raise InvalidRequestError("logprob_token_ids needs logprobs, such as 0", param="logprob_token_ids")
    if body.logprobs is not None:
        _ = context.facts.tokenizer  # the legacy arrays hold texts
    params = sampling_params(
        body, context.facts.sampling_defaults, max_tokens=body.max_tokens, logprobs=body.logprobs, grammar=grammar
    )
    if body.echo and params.logprobs is not None:
        if body.stream and params.n > 1:
            raise InvalidRequestError("in a stream, echo with logprobs needs n: 1", param="n")
        return dataclasses.replace(params, prompt_logprobs=max(params.logprobs, params.prompt_logprobs or 0))
    return params


def _shown(
    prompts: Sequence[str | list[int]], prompt_ids: list[list[int]], truncation: Truncation | None
) -> Sequence[str | list[int]]:
    """The prompts as they are echoed: of what was cut, or may have been, the tokens that are there."""
    if truncation is None:
        return prompts
    pairs = zip(prompts, prompt_ids, strict=True)
    return [prompt if len(ids) < truncation.limit else ids for prompt, ids in pairs]


async def _echoes(context: Context, prompts: Sequence[str | list[int]], params: SamplingParams) -> list[str]:
    if context.engine.tokenizer is None:
        raise InvalidRequestError("echo needs a tokenizer; the server runs without one", param="echo")
    tokenizer = context.engine.tokenizer

    def echo(prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return tokenizer.decode(prompt, params.skip_special_tokens, params.spaces_between_special_tokens)

    size = sum(TOKEN_SIZE * len(prompt) for prompt in prompts if isinstance(prompt, list))
    return await run_encoding(lambda: [echo(prompt) for prompt in prompts], size)


def _legacy(
    context: Context,
    body: CompletionRequest,
    params: SamplingParams,
    prompt_ids: list[list[int]],
    echoes: list[str] | None,
    position: int,
) -> LegacyLogprobs:
    """Return the arrays of log-probabilities of a prompt's choice.

    Args:
        position: the prompt's.
    """
    return LegacyLogprobs(
        context.facts.tokenizer,
        params,
        prompt_ids[position],
        echo=None if echoes is None else echoes[position],
        as_ids=bool(body.return_tokens_as_token_ids),
    )


def _choice(body: CompletionRequest, output: RequestOutput, prompt_ids: list[int], echo: str | None) -> dict[str, Any]:
    answer = {"index": output.index, "text": (echo or "") + output.text, "logprobs": None}
    answer |= finish_fields(output.finish)
    if body.return_token_ids:
        answer |= {"prompt_token_ids": prompt_ids, "token_ids": output.token_ids}
    return answer


COMPLETIONS = Endpoint("/v1/completions", CompletionRequest, complete_text)
