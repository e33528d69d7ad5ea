"""POST /generate: SGLang's native route."""

import asyncio
import functools
import time
from typing import Any

import orjson
from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.event_stream import DoneWriter, EventStream, with_warnings
from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.prompts import (
    check_num_prompts,
    check_num_samples,
    encode_prompts,
    given_prompts,
    prompt_names,
    split_prompts,
)
from palladio.http.generation.whole import answer_size, feed
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.fields import FieldMap, WarningList
from palladio.http.wire.protocol import screen, with_whole_numbers
from palladio.http.wire.protocol_generate import GenerateRequest
from palladio.runtime.front.requests.sglang_requests import LogprobOptions, expand_requests
from palladio.runtime.front.requests.sglang_results import Results
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.grammar_spec import GRAMMAR_NAMES
from palladio.runtime.interface.request.input_embeds import PARAM, EmbeddedPrompts, read_embeds
from palladio.runtime.interface.request.sampling_params import SamplingParams

PROMPT_SIZE = 200  # characters that a prompt's parameters count for
_ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}  # SGLang's names
# log-probabilities are asked for by the request's own fields; the others are what parsers and grammars come to
_NOT_HERE = {"logprobs", "prompt_logprobs", "logprob_token_ids", "grammar", "thinking", "visible_special_ids"}
_INTEGERS = frozenset({"n", "top_k", *_ALIASES, *_ALIASES.values()})
SAMPLING_NAMES = frozenset(
    (SamplingParams.__dataclass_fields__.keys() - _NOT_HERE) | {*_ALIASES.values(), *GRAMMAR_NAMES}
)


async def _generate(context: Context, call: Call, body: GenerateRequest) -> Response:
    context.require_generation()
    received = time.time()
    context.names.answering(body.model)
    origin = call.origin(no_logs=body.no_logs, log_metrics=body.log_metrics)
    embeds = await _read_embeds(context, body)
    prompts: list[str] | list[list[int]] = []
    if embeds is None:
        given, param = given_prompts(body.text, body.input_ids)
        prompts = split_prompts(given, param)
        is_list, count = prompts is given, len(prompts)
    else:
        param, is_list, count = PARAM, embeds.is_list, len(embeds.media)
    name, ids = prompt_names(body.rid, call.request_id, count)
    if isinstance(body.sampling_params, list) and len(body.sampling_params) != count:
        message = f"sampling_params has {len(body.sampling_params)} entries for {count} prompts"
        raise InvalidRequestError(message, param="sampling_params")
    warnings = WarningList(call.warnings)
    sampling = await run_encoding(lambda: _sampling(body, warnings), PROMPT_SIZE * count)
    names = _names(sampling, param)
    with names.renaming():
        prompt_ids = await encode_prompts(context.encoder, prompts, truncation=context.facts.truncation(None, 1))
        expand = functools.partial(_expand, context, call, body, sampling, prompt_ids, embeds, ids, received)
        requests, shown = await run_encoding(expand, PROMPT_SIZE * count)
    warnings.found.note_since(call.warnings, context.note_warning)
    stream = OutputStream(context, requests, name=name, origin=origin, names=names)
    results = Results(requests, shown, context.engine.tokenizer, context.engine.model)
    is_list = is_list or stream.num_choices > 1
    if body.stream:
        await call.wait(stream.start())
        events = _ResultEvents(results, context.config, is_list=is_list)
        return EventStream(stream, with_warnings(events, warnings.found))
    await call.wait(feed(stream, lambda output: results.add(output.index, output)))

    def write() -> Response:
        answers = results.to_dicts()
        answers[0] |= warnings.found.fields()
        return Response(orjson.dumps(answers if is_list else answers[0]), media_type="application/json")

    return await run_encoding(write, answer_size(results.outputs))


async def _read_embeds(context: Context, body: GenerateRequest) -> EmbeddedPrompts | None:
    """None: the prompts are texts or token ids."""
    if body.input_embeds is None:
        return None
    spec, max_rows = context.engine.info.embeds, context.facts.max_model_len
    if spec is not None and (body.text is not None or body.input_ids is not None):
        raise InvalidRequestError("give one of text, input_ids and input_embeds", param=PARAM)
    found = await asyncio.to_thread(read_embeds, body.input_embeds, spec, max_rows)
    check_num_prompts(len(found.media), PARAM)
    return found


class _ResultEvents(DoneWriter):
    """Each event holds all of its sample's output so far, as SGLang sends it, or with --stream-output what is new of
    it; `index` says which sample of several."""

    def __init__(self, results: Results, config: HttpConfig, *, is_list: bool) -> None:
        self._results = results
        self._interval = config.stream_interval
        self._is_delta = config.stream_output
        self._is_list = is_list
        self._waiting: dict[int, int] = {}

    def write(self, output: RequestOutput) -> bytes:
        index, results = output.index, self._results
        results.add(index, output)
        waiting = self._waiting.get(index, self._interval) + len(output.token_ids)
        if output.finish is None and waiting < self._interval:
            self._waiting[index] = waiting
            return b""
        self._waiting[index] = 0
        answer = (results.take(index) if self._is_delta else results.to_dict(index)) | (
            {"index": index} if self._is_list else {}
        )
        return b"data: " + orjson.dumps(answer) + b"\n\n"


def _sampling(body: GenerateRequest, warnings: WarningList) -> dict[str, Any] | list[dict[str, Any]]:
    """The sampling parameters: for all prompts, or a list with one entry each."""

    def screened(entry: dict[str, Any]) -> dict[str, Any]:
        return with_whole_numbers(screen(entry, SAMPLING_NAMES, where="sampling_params.", warnings=warnings), _INTEGERS)

    given = body.sampling_params or {}
    return [screened(entry) for entry in given] if isinstance(given, list) else screened(given)


def _names(sampling: dict[str, Any] | list[dict[str, Any]], prompt_field: str) -> FieldMap:
    """What the engine's fields are in this request: messages say a sampling parameter's bare name."""
    entries = sampling if isinstance(sampling, list) else [sampling]
    names = {ours: name for ours, name in _ALIASES.items() if not any(ours in entry for entry in entries)}
    grammars = [name for name in GRAMMAR_NAMES if any(entry.get(name) is not None for entry in entries)]
    names |= {"grammar": grammars[0]} if grammars else {}
    names["logprob_token_ids"] = "token_ids_logprob"
    params = {name: f"sampling_params.{name}" for name in SAMPLING_NAMES}
    return FieldMap(paths=names | {"prompt": prompt_field}, params=params)


def _expand(
    context: Context,
    call: Call,
    body: GenerateRequest,
    sampling: dict[str, Any] | list[dict[str, Any]],
    prompts: list[list[int]],
    embeds: EmbeddedPrompts | None,
    ids: list[str],
    received: float,
) -> tuple[list[GenerationRequest], list[LogprobOptions]]:
    logprobs = {
        "return_logprob": False if body.return_logprob is None else body.return_logprob,
        "logprob_start_len": body.logprob_start_len,
        "top_logprobs_num": body.top_logprobs_num,
        "token_ids_logprob": body.token_ids_logprob,
        "return_text_in_logprobs": bool(body.return_text_in_logprobs),
    }
    options = {
        "cache_salt": body.cache_salt,
        "extra_key": body.extra_key,
        "priority": body.priority,
        "timeout": body.timeout,
        "routed_dp_rank": body.routed_dp_rank,
        "owner": call.caller.owner,
        "timeline": body.record_timeline,
    }
    requests, shown, _ = expand_requests(
        input_ids=prompts if embeds is None else None,
        input_embeds=embeds,
        sampling_params=sampling,
        rid=ids,
        logprobs=logprobs,
        options=options,
        defaults=context.facts.sampling_defaults,
        received=received,
        lowers_length=context.config.allow_auto_truncate,
    )
    check_num_samples(len(requests), sum(request.params.n for request in requests))
    return requests, shown


GENERATE = Endpoint("/generate", GenerateRequest, _generate)
