"""POST /generate: SGLang's native route."""

import time
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, Request, Response

from palladio.http.body import JsonBody, describe_body
from palladio.http.context import Context
from palladio.http.field_rules import screen
from palladio.http.generation import (
    Job,
    OutputStream,
    check_abort,
    default_max_tokens,
    job_ids,
    until_disconnect,
)
from palladio.http.prompts import encode_prompts, split_prompts
from palladio.http.protocol_generate import GenerateRequest
from palladio.http.sse import EventStream
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.outputs import RequestOutput
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.sglang_format import DEFAULT_MAX_TOKENS, LogprobOptions, SampleResult, sample_result

T = TypeVar("T")

_LIMITS = ("max_new_tokens", "max_tokens")
_SAMPLING_NAMES = (
    *SamplingParams.__dataclass_fields__.keys() - {"logprobs", "prompt_logprobs"},  # the request's own fields say these
    *("max_new_tokens", "min_new_tokens", "sampling_seed"),
)


def generate_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.put("/generate", include_in_schema=False, response_model=None)
    @router.post("/generate", openapi_extra=describe_body(GenerateRequest), response_model=None)
    async def generate(
        request: Request, body: Annotated[GenerateRequest, Depends(JsonBody(GenerateRequest))]
    ) -> Response:
        context.require_ready()
        return await _generate(context, request, body)

    return router


async def _generate(context: Context, request: Request, body: GenerateRequest) -> Response:
    received = time.time()
    context.model_name(body.model)
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequestError("give one of text and input_ids", param="text")
    given, param = (body.text, "text") if body.text is not None else (body.input_ids, "input_ids")
    assert given is not None
    prompts = split_prompts(given, param)
    is_batch = prompts is given
    options = _options(body, len(prompts))
    prompt_ids = await encode_prompts(context, prompts)
    params = _params(context, body, prompt_ids, options)
    n = params[0].n
    if any(other.n != n for other in params):
        raise InvalidRequestError("sampling_params must have the same n for all prompts", param="sampling_params.n")
    name, ids = _names(body.rid, request.state.request_id, len(prompts))
    jobs = [Job(*job) for job in zip(prompt_ids, params, ids, strict=True)]
    stream = OutputStream(context, jobs, name=name, received=received)
    is_list = is_batch or n > 1
    if body.stream:
        await until_disconnect(request.receive, stream.start())
        return EventStream(stream, _CumulativeEvents(context, options, n, is_list=is_list))
    outputs = await until_disconnect(request.receive, _collect(stream))
    answers = []
    for index, sample in enumerate(outputs):
        if sample:
            sample[0].prompt_logprobs = outputs[index - index % n][0].prompt_logprobs  # the first sample has them
        answers.append(sample_result(sample, options[index // n], context.engine.tokenizer))
    return Response(orjson.dumps(answers if is_list else answers[0]), media_type="application/json")


async def _collect(stream: OutputStream) -> list[list[RequestOutput]]:
    async with await stream.start():
        outputs: list[list[RequestOutput]] = [[] for _ in range(stream.num_choices)]
        if stream.first is not None:
            outputs[stream.first.index].append(stream.first)
        async for output in stream.rest:
            check_abort(output)
            outputs[output.index].append(output)
    return outputs


class _CumulativeEvents:
    """Each event holds all of its sample's text so far, as SGLang sends it; `index` says which sample of several."""

    def __init__(self, context: Context, options: list[LogprobOptions], n: int, *, is_list: bool) -> None:
        self._options = options
        self._tokenizer = context.engine.tokenizer
        self._interval = context.config.stream_interval
        self._n = n
        self._is_list = is_list
        self._results: dict[int, SampleResult] = {}
        self._waiting: dict[int, int] = {}

    def write(self, output: RequestOutput) -> bytes:
        index = output.index
        result = self._results.get(index)
        waiting = self._waiting.get(index, self._interval) + len(output.token_ids)
        if result is None:
            result = self._results[index] = SampleResult(self._options[index // self._n], self._tokenizer)
        result.add(output)
        if output.finish is None and waiting < self._interval:
            self._waiting[index] = waiting
            return b""
        self._waiting[index] = 0
        answer = result.to_dict() | ({"index": index} if self._is_list else {})
        return b"data: " + orjson.dumps(answer) + b"\n\n"

    def close(self) -> bytes:
        return b""


def _per_prompt(value: T | list[T] | None, count: int, param: str) -> list[T | None]:
    """A list has one entry a prompt; anything else is for all prompts."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise InvalidRequestError(f"{param} has {len(value)} entries for {count} prompts", param=param)
    return [*value]


def _options(body: GenerateRequest, count: int) -> list[LogprobOptions]:
    columns = (
        _per_prompt(body.return_logprob, count, "return_logprob"),
        _per_prompt(body.logprob_start_len, count, "logprob_start_len"),
        _per_prompt(body.top_logprobs_num, count, "top_logprobs_num"),
    )
    return [
        LogprobOptions(
            return_logprob=bool(wanted),
            logprob_start_len=start,
            top_logprobs_num=top,
            return_text_in_logprobs=bool(body.return_text_in_logprobs),
        )
        for wanted, start, top in zip(*columns, strict=True)
    ]


def _params(
    context: Context, body: GenerateRequest, prompts: list[list[int]], options: list[LogprobOptions]
) -> list[SamplingParams]:
    given: list[dict[str, Any] | None] = _per_prompt(body.sampling_params, len(prompts), "sampling_params")
    result: list[SamplingParams] = []
    for values, ids, logprobs in zip(given, prompts, options, strict=True):
        kept = screen(values or {}, _SAMPLING_NAMES, where="sampling_params.")
        try:
            params = SamplingParams.from_dict(kept, defaults=context.sampling_defaults)
        except InvalidRequestError as exc:
            raise InvalidRequestError(str(exc), param=f"sampling_params.{exc.param}", code=exc.code) from None
        if not any(name in kept for name in _LIMITS):
            params = default_max_tokens(params, DEFAULT_MAX_TOKENS, len(ids), context.engine.info)
        result.append(logprobs.apply(params))
    return result


def _names(rid: str | list[str] | None, generated: str, count: int) -> tuple[str, list[str]]:
    """The request's name, and the engine's ids."""
    if isinstance(rid, list):
        if len(rid) != count or len(set(rid)) != count:
            raise InvalidRequestError(f"rid must be {count} different ids, one for each prompt", param="rid")
        return generated, rid
    name = rid or generated
    return name, job_ids(name, count)
