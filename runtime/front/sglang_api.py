"""SGLang's native interface: the arguments and results of `Engine.generate` and of the HTTP /generate route."""

import asyncio
import contextlib
import dataclasses
import operator
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from palladio.runtime.front.engine_protocol import EngineClient
from palladio.runtime.front.request_intake import LONG_TEXT, LengthLimit
from palladio.runtime.interface.embeddings import EMBEDDING_PARAMS
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages import EngineReady
from palladio.runtime.interface.outputs import FinishReason, RequestOutput, TokenLogprob
from palladio.runtime.interface.request_options import RequestOptions
from palladio.runtime.interface.request_timings import RequestTimings
from palladio.runtime.interface.sampling_params import SamplingParams
from palladio.runtime.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 128  # SGLang's

Sampling = SamplingParams | Mapping[str, Any]
LogprobTuple = tuple[float | None, int, str | None]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogprobOptions:
    """SGLang's log-probability fields of one request.

    Attributes:
        return_logprob: report log-probabilities at all.
        logprob_start_len: first prompt position to report; -1 (or None): only the output.
        top_logprobs_num: how many likeliest tokens to report at each position.
        return_text_in_logprobs: the third entry of each tuple is the token's text instead of None.
    """

    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool = False

    @property
    def wants_prompt(self) -> bool:
        return self.return_logprob and self.logprob_start_len is not None and self.logprob_start_len >= 0

    def apply(self, params: SamplingParams) -> SamplingParams:
        """The sampling parameters that make the engine report what is asked for.

        Raises:
            InvalidRequestError: a value is out of range, or `top_logprobs_num` comes without `return_logprob`.
        """
        top = self.top_logprobs_num or 0
        if not self.return_logprob:
            if top > 0:
                raise InvalidRequestError("top_logprobs_num needs return_logprob=true", param="top_logprobs_num")
            return params
        if self.logprob_start_len is not None and self.logprob_start_len < -1:
            raise InvalidRequestError("logprob_start_len must be -1 or more", param="logprob_start_len")
        try:
            return dataclasses.replace(params, logprobs=top, prompt_logprobs=top if self.wants_prompt else None)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                str(error).replace("logprobs", "top_logprobs_num", 1), param="top_logprobs_num"
            ) from None


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One prompt of a call.

    Attributes:
        first_index: of its samples among the call's results.
        default_length: max_tokens where the caller gave none, and the prompt leaves room for as many; None: as params
            say.
    """

    request_id: str
    prompt: str | list[int]
    params: SamplingParams
    first_index: int = 0
    default_length: int | None = None
    options: RequestOptions = RequestOptions()

    def fitted_params(self, info: EngineReady, num_prompt_tokens: int) -> SamplingParams:
        """The parameters with max_tokens settled, where `default_length` says so."""
        if self.default_length is None:
            return self.params
        return LengthLimit.of(info).fit(self.params, num_prompt_tokens, self.default_length)


@dataclasses.dataclass(frozen=True, slots=True)
class GenerateJob(Job):
    """A job whose result is SGLang's."""

    logprobs: LogprobOptions = LogprobOptions()


def expand_jobs(
    *,
    prompt: str | Sequence[str] | None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    sampling_params: Sampling | Sequence[Sampling] | None,
    rid: str | Sequence[str] | None,
    logprobs: Mapping[str, Any],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> tuple[list[GenerateJob], bool]:
    """The prompts of a call, each with its own parameters, and whether the result is a list (prompts were, or n > 1).

    Args:
        prompt: a text or a list of them; or else `input_ids`.
        input_ids: one prompt's ids, or a list of those.
        sampling_params: for all prompts, or one a prompt.
        rid: the request's id, or one a prompt; None: random.
        logprobs: fields of LogprobOptions by name, each for all prompts or a list.
        options: arguments of RequestOptions.of, likewise.
        defaults: of sampling parameters that are not given; max_tokens makes way for a long prompt.

    Raises:
        InvalidRequestError: a value is wrong, or a list has not one entry a prompt.
    """
    prompts, is_list = _prompts(prompt, input_ids)
    count = len(prompts)
    samplings = _spread("sampling_params", {} if sampling_params is None else sampling_params, count)
    rids = _rids(rid, count)
    logprob_rows, option_rows = _rows(logprobs, count), _rows(options, count)
    jobs: list[GenerateJob] = []
    first_index = 0
    for i in range(count):
        params, default_length = _sampling_params(samplings[i], defaults)
        shown = LogprobOptions(**logprob_rows[i])
        params = shown.apply(params)
        job_options = RequestOptions.of(**option_rows[i])
        jobs.append(GenerateJob(rids[i], prompts[i], params, first_index, default_length, job_options, shown))
        first_index += params.n
    return jobs, is_list or first_index > count


def expand_encode_jobs(
    *,
    prompt: str | Sequence[str] | None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    rid: str | Sequence[str] | None,
    options: Mapping[str, Any],
) -> tuple[list[Job], bool]:
    """As expand_jobs, of prompts to make embeddings of."""
    prompts, is_list = _prompts(prompt, input_ids)
    rids, rows = _rids(rid, len(prompts)), _rows(options, len(prompts))
    jobs = [
        Job(name, text, EMBEDDING_PARAMS, index, options=RequestOptions.of(**row))
        for index, (name, text, row) in enumerate(zip(rids, prompts, rows, strict=True))
    ]
    return jobs, is_list


def encode_results(
    names: Sequence[str], outputs: Sequence[RequestOutput], vectors: Sequence[Any]
) -> list[dict[str, Any]]:
    """[{"embedding", "meta_info"}] of these prompts. Args: names: the callers' ids; vectors: the embeddings."""
    return [
        {"embedding": vector, "meta_info": _meta_info(name, output)}
        for name, output, vector in zip(names, outputs, vectors, strict=True)
    ]


def _meta_info(name: str, last: RequestOutput) -> dict[str, Any]:
    """What every result tells of its request. Args: name: the caller's id, which the engine may know as another."""
    meta = {
        "id": name,
        "finish_reason": None if last.finish is None else finish_reason(last.finish, last.completion_tokens),
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": last.completion_tokens,
        "cached_tokens": last.cached_tokens,
        "num_retractions": last.num_retractions,
    }
    return meta | time_info(last) if last.finish is not None and last.times is not None else meta


async def generate_job(engine: EngineClient, job: GenerateJob) -> AsyncGenerator[RequestOutput, None]:
    """`engine.generate` for a job; a default length needs the prompt's, so the prompt is tokenized here then."""
    received, prompt = time.time(), job.prompt
    if job.default_length is not None and isinstance(prompt, str) and engine.tokenizer is not None:
        encode = engine.tokenizer.encode
        prompt = await asyncio.to_thread(encode, prompt) if len(prompt) > LONG_TEXT else encode(prompt)
    params = job.fitted_params(engine.info, len(prompt))
    source = engine.generate(prompt, params, request_id=job.request_id, received=received, options=job.options)
    async with contextlib.aclosing(source) as outputs:
        async for output in outputs:
            yield output


class SampleResult:
    """Gathers one sample's outputs into SGLang's result.

    Attributes:
        prompt_logprobs: of the prompt's tokens, once they are known.

    Args:
        name: the caller's id of the prompt.
        options: which log-probabilities to show.
        tokenizer: for the text of tokens; None leaves it out.
    """

    def __init__(self, name: str, options: LogprobOptions, tokenizer: Tokenizer | None) -> None:
        self._name = name
        self._options = options
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._num_taken_logprobs = 0
        self.prompt_logprobs: Sequence[TokenLogprob] = ()
        self._last: RequestOutput | None = None

    def add(self, output: RequestOutput) -> None:
        self._texts.append(output.text)
        self._token_ids.extend(output.token_ids)
        self._logprobs.extend(output.logprobs or ())
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self._last = output

    def to_dict(self) -> dict[str, Any]:
        """Everything so far, or since the last `take`: {"text", "output_ids", "meta_info"}. At least one output was
        added."""
        last = self._last
        assert last is not None
        self._texts = ["".join(self._texts)]
        meta = _meta_info(self._name, last)
        if self._options.return_logprob:
            meta |= self._logprob_info()
        return {"text": self._texts[0], "output_ids": list(self._token_ids), "meta_info": meta}

    def take(self) -> dict[str, Any]:
        """As to_dict, with the text, ids and log-probabilities of the output that have come since the last call."""
        result = self.to_dict()
        self._num_taken_logprobs += len(self._logprobs)
        self._texts, self._token_ids, self._logprobs = [], [], []
        return result

    def _logprob_info(self) -> dict[str, Any]:
        start = max(self._options.logprob_start_len or 0, 0)
        prompt = self.prompt_logprobs[start:] if self._options.wants_prompt else []
        info: dict[str, Any] = {
            "input_token_logprobs": self._chosen(prompt),
            "output_token_logprobs": self._chosen(self._logprobs),
            "output_token_logprobs_length": self._num_taken_logprobs + len(self._logprobs),
        }
        if self._options.top_logprobs_num:
            info["input_top_logprobs"] = self._likeliest(prompt)
            info["output_top_logprobs"] = self._likeliest(self._logprobs)
        return info

    def _chosen(self, logprobs: Sequence[TokenLogprob]) -> list[LogprobTuple]:
        return [(entry.logprob, entry.token_id, self._text(entry.token_id)) for entry in logprobs]

    def _likeliest(self, logprobs: Sequence[TokenLogprob]) -> list[list[LogprobTuple] | None]:
        return [
            [(value, token_id, self._text(token_id)) for token_id, value in entry.top] if entry.top else None
            for entry in logprobs
        ]

    def _text(self, token_id: int) -> str | None:
        if self._tokenizer is None or not self._options.return_text_in_logprobs:
            return None
        return self._tokenizer.token_text(token_id)


class JobResult:
    """Gathers a job's outputs: one SampleResult for each of its n samples.

    Args:
        first_index: the index of the first sample, in the outputs that come.
    """

    def __init__(self, job: GenerateJob, tokenizer: Tokenizer | None, *, first_index: int = 0) -> None:
        self.samples = [SampleResult(job.request_id, job.logprobs, tokenizer) for _ in range(job.params.n)]
        self._first_index = first_index

    def add(self, output: RequestOutput) -> SampleResult:
        """Takes the next output; returns the sample that it belongs to."""
        if output.prompt_logprobs is not None:  # they come once, and hold for all samples
            for sample in self.samples:
                sample.prompt_logprobs = output.prompt_logprobs
        sample = self.samples[output.index - self._first_index]
        sample.add(output)
        return sample


def finish_reason(finish: FinishReason, completion_tokens: int) -> dict[str, Any]:
    match finish.type:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": completion_tokens}
        case "abort":
            reason = {"type": "abort", "message": finish.message or "aborted"}
            return reason | ({"status_code": finish.status} if finish.status else {})


def time_info(end: RequestOutput) -> dict[str, float]:
    """The fields of meta_info that come from the times of a sample's last output; what is not known is left out."""
    times = end.times
    assert times is not None
    timings = RequestTimings.of_output(end)
    latency = None if times.first_token is None else times.first_token - times.received
    info = {
        "request_received_ts": times.received,
        "forward_entry_time": times.scheduled,
        "prefill_finished_time": times.first_token,
        "request_finished_ts": times.finished,
        "queue_time": timings.queue,
        "compile_wait_time": timings.compile_wait,
        "prefill_time": timings.prefill,
        "decode_time": timings.decode,
        "detokenize_time": timings.detokenize,
        "first_token_latency": latency,
        "e2e_latency": timings.total,
    }
    if timings.decode and end.completion_tokens > 1:
        info["decode_throughput"] = (end.completion_tokens - 1) / timings.decode
    return {name: value for name, value in info.items() if value is not None}


def _prompts(prompt: str | Sequence[str] | None, input_ids: Any) -> tuple[list[str | list[int]], bool]:
    if (prompt is None) == (input_ids is None):
        raise InvalidRequestError("give either the text of the prompt or its input_ids", param="prompt")
    if isinstance(prompt, str):
        return [prompt], False
    if prompt is not None:
        if not all(isinstance(text, str) for text in prompt):
            raise InvalidRequestError("prompt must be a text or a list of texts; ids go to input_ids", param="prompt")
        return list(prompt), True
    try:
        if len(input_ids) > 0 and all(isinstance(row, Sequence) or hasattr(row, "tolist") for row in input_ids):
            return [[operator.index(token_id) for token_id in row] for row in input_ids], True
        return [[operator.index(token_id) for token_id in input_ids]], False
    except TypeError:
        raise InvalidRequestError(
            "input_ids must be a list of token ids, or a list of those", param="input_ids"
        ) from None


def _rids(rid: str | Sequence[str] | None, count: int) -> list[str]:
    rids = [uuid.uuid4().hex for _ in range(count)] if rid is None else _spread("rid", rid, count)
    if len(set(rids)) != count:
        raise InvalidRequestError("rid must be different for each prompt", param="rid")
    return rids


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """One value for each prompt: a list is one already."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise InvalidRequestError(f"{name} has {len(value)} entries for {count} prompts", param=name)
    return list(value)


def _rows(fields: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The fields of each prompt."""
    columns = {name: _spread(name, value, count) for name, value in fields.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _sampling_params(sampling: Sampling, defaults: Mapping[str, Any]) -> tuple[SamplingParams, int | None]:
    """The parameters and the default length, if that counts. A SamplingParams is taken as it stands."""
    if isinstance(sampling, SamplingParams):
        return sampling, None
    if not isinstance(sampling, Mapping):
        raise InvalidRequestError("sampling_params must be an object", param="sampling_params")
    others = {name: value for name, value in defaults.items() if name != "max_tokens"}
    params = SamplingParams.from_dict(sampling, defaults=others)
    return params, defaults.get("max_tokens", DEFAULT_MAX_TOKENS) if params.max_tokens is None else None
