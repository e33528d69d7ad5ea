"""POST /generate: SGLang's native route."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from palladio.http.body import JsonBody, describe_body
from palladio.http.context import Context
from palladio.http.field_rules import screen
from palladio.http.generation import Job, OutputStream, check_abort, default_max_tokens, job_ids, until_disconnect
from palladio.http.prompts import encode_prompts, split_prompts
from palladio.http.protocol_generate import GenerateRequest
from palladio.http.sse import EventStream
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.outputs import RequestOutput
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.sglang_format import DEFAULT_MAX_TOKENS, GenerateJob, JobResult, SampleResult, expand_jobs
from palladio.runtime.tokenizer import Tokenizer

_SAMPLING_NAMES = frozenset(
    # log-probabilities are asked for by the request's own fields
    SamplingParams.__dataclass_fields__.keys() - {"logprobs", "prompt_logprobs"}
    | {"max_new_tokens", "min_new_tokens", "sampling_seed"}
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
    name, ids = _names(body.rid, request.state.request_id, len(prompts))
    described = _expand(context, body, await encode_prompts(context, prompts), ids)
    jobs = [_job(context, job) for job in described]
    stream = OutputStream(context, jobs, name=name, received=received)
    results = _Results(described, context.engine.tokenizer)
    is_list = prompts is given or stream.num_choices > 1
    if body.stream:
        await until_disconnect(request.receive, stream.start())
        interval = context.config.stream_interval
        return EventStream(stream, _CumulativeEvents(results, interval, is_list=is_list))
    await until_disconnect(request.receive, _collect(stream, results))
    answers = [sample.to_dict() for sample in results.samples]
    return Response(orjson.dumps(answers if is_list else answers[0]), media_type="application/json")


class _Results:
    """The results of all samples, by their index in the request."""

    def __init__(self, jobs: Sequence[GenerateJob], tokenizer: Tokenizer | None) -> None:
        results = [JobResult(job, tokenizer) for job in jobs]
        self.samples = [sample for result in results for sample in result.samples]
        self._siblings = [result.samples for result in results for _ in result.samples]

    def add(self, output: RequestOutput) -> SampleResult:
        if output.prompt_logprobs is not None:  # they come once, and hold for all samples of the prompt
            for sample in self._siblings[output.index]:
                sample.prompt_logprobs = output.prompt_logprobs
        self.samples[output.index].add(output)
        return self.samples[output.index]


async def _collect(stream: OutputStream, results: _Results) -> None:
    async with await stream.start():
        if stream.first is not None:
            results.add(stream.first)
        async for output in stream.rest:
            check_abort(output)
            results.add(output)


class _CumulativeEvents:
    """Each event holds all of its sample's text so far, as SGLang sends it; `index` says which sample of several."""

    def __init__(self, results: _Results, interval: int, *, is_list: bool) -> None:
        self._results = results
        self._interval = interval
        self._is_list = is_list
        self._waiting: dict[int, int] = {}

    def write(self, output: RequestOutput) -> bytes:
        index = output.index
        result = self._results.add(output)
        waiting = self._waiting.get(index, self._interval) + len(output.token_ids)
        if output.finish is None and waiting < self._interval:
            self._waiting[index] = waiting
            return b""
        self._waiting[index] = 0
        answer = result.to_dict() | ({"index": index} if self._is_list else {})
        return b"data: " + orjson.dumps(answer) + b"\n\n"

    def close(self) -> bytes:
        return b""


def _expand(context: Context, body: GenerateRequest, prompts: list[list[int]], ids: list[str]) -> list[GenerateJob]:
    given = body.sampling_params or {}
    sampling = [_screen(entry) for entry in given] if isinstance(given, list) else _screen(given)
    logprobs = {
        "return_logprob": False if body.return_logprob is None else body.return_logprob,
        "logprob_start_len": body.logprob_start_len,
        "top_logprobs_num": body.top_logprobs_num,
        "return_text_in_logprobs": bool(body.return_text_in_logprobs),
    }
    try:
        jobs, _ = expand_jobs(
            prompt=None,
            input_ids=prompts,
            sampling_params=sampling,
            rid=ids,
            logprobs=logprobs,
            defaults=context.sampling_defaults,
        )
    except InvalidRequestError as exc:
        if exc.param in _SAMPLING_NAMES:
            exc.param = f"sampling_params.{exc.param}"
        raise
    return jobs


def _screen(values: dict[str, Any]) -> dict[str, Any]:
    return screen(values, _SAMPLING_NAMES, where="sampling_params.")


def _job(context: Context, job: GenerateJob) -> Job:
    assert isinstance(job.prompt, list)  # tokenized by encode_prompts
    params = job.params
    if job.uses_default_length:
        params = default_max_tokens(params, DEFAULT_MAX_TOKENS, len(job.prompt), context.engine.info)
    return Job(job.prompt, params, job.request_id, job.first_index)


def _names(rid: str | list[str] | None, generated: str, count: int) -> tuple[str, list[str]]:
    """The request's name, and the engine's ids."""
    if isinstance(rid, list):
        if len(rid) != count or len(set(rid)) != count:
            raise InvalidRequestError(f"rid must be {count} different ids, one for each prompt", param="rid")
        return generated, rid
    name = rid or generated
    return name, job_ids(name, count)
