"""SGLang's native interface: the arguments and results of `Engine.generate` and of the HTTP /generate route."""

import dataclasses
import operator
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from palladio.runtime.front.control.model_switch import ModelSwitch
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.counts import DraftCounts
from palladio.runtime.interface.outputs.request_output import RequestOutput, RequestTimings
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.input_embeds import EmbeddedPrompts
from palladio.runtime.interface.request.prompt_parts import Media, join_parts
from palladio.runtime.interface.request.request_options import RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

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
        token_ids_logprob: tokens to report at each position.
        return_text_in_logprobs: the third entry of each tuple is the token's text instead of None.
    """

    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    token_ids_logprob: Sequence[int] | None = None
    return_text_in_logprobs: bool = False

    @property
    def wants_prompt(self) -> bool:
        return self.return_logprob and self.logprob_start_len is not None and self.logprob_start_len >= 0

    def apply(self, params: SamplingParams) -> SamplingParams:
        """The sampling parameters that make the engine report what is asked for.

        Raises:
            InvalidRequestError: a value is out of range, or one that needs `return_logprob` comes without.
        """
        top = self.top_logprobs_num or 0
        if not self.return_logprob:
            for name, is_given in (("top_logprobs_num", top > 0), ("token_ids_logprob", bool(self.token_ids_logprob))):
                if is_given:
                    raise InvalidRequestError.of("{param} needs return_logprob=true", param=name)
            return params
        if self.logprob_start_len is not None and self.logprob_start_len < -1:
            raise InvalidRequestError("logprob_start_len must be -1 or more", param="logprob_start_len")
        prompt_top, ids = top if self.wants_prompt else None, self.token_ids_logprob
        try:
            asked = params.logprob_token_ids if ids is None else tuple(ids)
            return dataclasses.replace(params, logprobs=top, prompt_logprobs=prompt_top, logprob_token_ids=asked)
        except InvalidRequestError as error:
            raise error.rename(_OUR_NAMES) from None


_OUR_NAMES = {
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "logprob_token_ids": "token_ids_logprob",
}


def expand_requests(
    *,
    prompt: str | Sequence[str] | None = None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    input_embeds: EmbeddedPrompts | None = None,
    sampling_params: Sampling | Sequence[Sampling] | None,
    rid: str | Sequence[str] | None,
    logprobs: Mapping[str, Any] = {},
    options: Mapping[str, Any],
    defaults: Mapping[str, Any] = {},
    tokenizer: Tokenizer | None = None,
    received: float,
    lowers_length: bool = False,
) -> tuple[list[GenerationRequest], list[LogprobOptions], bool]:
    """The prompts of a call, each with its own parameters, which log-probabilities to show of each, and whether the
    result is a list (prompts were, or n > 1).

    Args:
        prompt: a text or a list of them; or else `input_ids`, or else `input_embeds`.
        input_ids: one prompt's ids, or a list of those.
        sampling_params: for all prompts, or one a prompt.
        rid: the request's id, or one a prompt; None: random.
        logprobs: fields of LogprobOptions by name, each for all prompts or a list; token_ids_logprob is a list for all
            of them, or a list of lists.
        options: arguments of RequestOptions.of, likewise.
        defaults: of sampling parameters that are not given; max_tokens makes way for a long prompt.
        tokenizer: of texts; None: there is none.
        received, lowers_length: see GenerationRequest.

    Raises:
        InvalidRequestError: a value is wrong, or a list has not one entry a prompt; or a text has no tokenizer.
    """
    prompts, is_list = _prompts(prompt, input_ids, input_embeds, tokenizer)
    count = len(prompts)
    samplings = _spread("sampling_params", {} if sampling_params is None else sampling_params, count)
    rids = _rids(rid, count)
    asked_ids = _asked_ids(logprobs.get("token_ids_logprob"), count)
    shown = [LogprobOptions(**row) for row in _rows({**logprobs, "token_ids_logprob": asked_ids}, count)]
    option_rows = _rows(options, count)
    requests: list[GenerationRequest] = []
    first_index = 0
    for i, part in enumerate(prompts):
        media: tuple[Media, ...] = ()
        if isinstance(part, Media):
            prompt_ids, media = join_parts([part])
        else:
            prompt_ids = part
        if media and shown[i].wants_prompt:
            message = "{param} must be -1 with input_embeds: there are no tokens whose log-probabilities could be told"
            raise InvalidRequestError.of(message, param="logprob_start_len")
        if i == 0 or samplings[i] is not samplings[i - 1] or shown[i] != shown[i - 1]:  # else they are the same
            params, default_length = _sampling_params(samplings[i], defaults)
            params = shown[i].apply(params)
        requests.append(
            GenerationRequest(
                *(rids[i], prompt_ids, params),
                received=received,
                options=RequestOptions.of(**option_rows[i]),
                default_length=default_length,
                lowers_length=lowers_length,
                first_index=first_index,
                media=media,
            )
        )
        first_index += params.n
    return requests, shown, is_list or first_index > count


def encode_results(
    names: Sequence[str], outputs: Sequence[RequestOutput], vectors: Sequence[Any], weight_version: str
) -> list[dict[str, Any]]:
    """[{"embedding", "meta_info"}] of these prompts. Args: names: the callers' ids; vectors: the embeddings."""
    return [
        {"embedding": vector, "meta_info": _meta_info(name, output, weight_version)}
        for name, output, vector in zip(names, outputs, vectors, strict=True)
    ]


def _meta_info(name: str, last: RequestOutput, weight_version: str) -> dict[str, Any]:
    """What every result tells of its request. Args: name: the caller's id, which the engine may know as another."""
    meta = {
        "id": name,
        "finish_reason": None if last.finish is None else finish_reason(last.finish, last.completion_tokens),
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": last.completion_tokens,
        "cached_tokens": last.cached_tokens,
        "num_retractions": last.num_retractions,
        "weight_version": weight_version,
    }
    if last.finish is None or last.times is None:
        return meta
    return meta | time_info(last) | (draft_info(last.trace.drafts) if last.trace is not None else {})


class Results:
    """Gathers the outputs of a call's samples into SGLang's results.

    Args:
        requests: the call's prompts, by whose ids the callers know them.
        shown: which log-probabilities to show of each.
        tokenizer: for the text of tokens; None leaves it out.
        model: whose weights they come from.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        shown: Sequence[LogprobOptions],
        tokenizer: Tokenizer | None,
        model: ModelSwitch,
    ) -> None:
        self._model = model
        pairs = zip(requests, shown, strict=True)
        self._asked = [pair for pair in pairs for _ in range(pair[0].params.n)]  # by the sample's index
        self._tokenizer = tokenizer
        self._outputs: list[RequestOutput | None] = [None] * len(self._asked)
        self._prompt_logprobs: dict[int, list[TokenLogprob]] = {}  # by the index of the prompt's first sample
        self._num_taken_logprobs = [0] * len(self._asked)

    @property
    def outputs(self) -> list[RequestOutput]:
        """Of each sample that has any, what has come."""
        return [output for output in self._outputs if output is not None]

    def add(self, index: int, output: RequestOutput) -> None:
        """Takes the next output of a sample. Args: index: the sample's, among all."""
        if output.prompt_logprobs is not None:  # they come once, and hold for all samples of the prompt
            self._prompt_logprobs[self._asked[index][0].first_index] = output.prompt_logprobs
        so_far = self._outputs[index]
        if so_far is None:
            self._outputs[index] = output
        else:
            so_far.extend(output)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Of all samples."""
        return [self.to_dict(index) for index in range(len(self._asked))]

    def to_dict(self, index: int) -> dict[str, Any]:
        """All of a sample so far, or since the last `take`: {"text", "output_ids", "meta_info"}. At least one output
        was added."""
        output, (request, shown) = self._outputs[index], self._asked[index]
        assert output is not None
        meta = _meta_info(request.request_id, output, self._model.version)
        if shown.return_logprob:
            meta |= self._logprob_info(index, output.logprobs or (), shown)
        return {"text": output.text, "output_ids": list(output.token_ids), "meta_info": meta}

    def take(self, index: int) -> dict[str, Any]:
        """As to_dict; the next one has what comes after it."""
        result, output = self.to_dict(index), self._outputs[index]
        assert output is not None
        self._num_taken_logprobs[index] += len(output.logprobs or ())
        self._outputs[index] = None
        return result

    def _logprob_info(self, index: int, output: Sequence[TokenLogprob], shown: LogprobOptions) -> dict[str, Any]:
        prompt: Sequence[TokenLogprob] = ()
        if shown.wants_prompt:
            prompt = self._prompt_logprobs.get(self._asked[index][0].first_index, [])[shown.logprob_start_len :]
        tokenizer = self._tokenizer if shown.return_text_in_logprobs else None
        info: dict[str, Any] = {
            "input_token_logprobs": _chosen(prompt, tokenizer),
            "output_token_logprobs": _chosen(output, tokenizer),
            "output_token_logprobs_length": self._num_taken_logprobs[index] + len(output),
        }
        if shown.top_logprobs_num:
            info["input_top_logprobs"] = _pairs([entry.top for entry in prompt], tokenizer)
            info["output_top_logprobs"] = _pairs([entry.top for entry in output], tokenizer)
        if self._asked[index][0].params.logprob_token_ids:
            info["input_token_ids_logprobs"] = _pairs([entry.asked for entry in prompt], tokenizer)
            info["output_token_ids_logprobs"] = _pairs([entry.asked for entry in output], tokenizer)
        return info


def _chosen(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None) -> list[LogprobTuple]:
    return [(entry.logprob, entry.token_id, _text(entry.token_id, tokenizer)) for entry in logprobs]


def _pairs(
    positions: Sequence[Sequence[tuple[int, float]]], tokenizer: Tokenizer | None
) -> list[list[LogprobTuple] | None]:
    return [
        [(value, token_id, _text(token_id, tokenizer)) for token_id, value in pairs] if pairs else None
        for pairs in positions
    ]


def _text(token_id: int, tokenizer: Tokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.token_text(token_id)


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


def draft_info(drafts: DraftCounts) -> dict[str, float]:
    """The fields of meta_info that tell of a sample's drafts; none if it had none."""
    if not drafts.num_draft_rows:
        return {}
    return {
        "spec_verify_ct": drafts.num_draft_rows,
        "spec_draft_token_num": drafts.num_draft_tokens,
        "spec_accept_token_num": drafts.num_accepted_drafts,
        "spec_accept_length": drafts.accept_length,
        "spec_accept_rate": drafts.accept_rate,
    }


def _prompts(
    prompt: str | Sequence[str] | None,
    input_ids: Any,
    input_embeds: EmbeddedPrompts | None,
    tokenizer: Tokenizer | None,
) -> tuple[Sequence[list[int] | Media], bool]:
    if (prompt, input_ids, input_embeds).count(None) != 2:
        message = "give one of the text of the prompt, its input_ids and its input_embeds"
        raise InvalidRequestError(message, param="prompt")
    if input_embeds is not None:
        return input_embeds.media, input_embeds.is_list
    if prompt is not None:
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not all(isinstance(text, str) for text in texts):
            message = "{param} must be a text or a list of texts; ids go to input_ids"
            raise InvalidRequestError.of(message, param="prompt")
        if tokenizer is None:
            message = "this server has no tokenizer (--skip-tokenizer-init): send token ids"
            raise InvalidRequestError(message, param="prompt")
        return [tokenizer.encode(text) for text in texts], not isinstance(prompt, str)
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
        message = "{param} has {entries} entries for {prompts} prompts"
        raise InvalidRequestError.of(message, param=name, entries=len(value), prompts=count)
    return list(value)


def _asked_ids(value: Any, count: int) -> list[Any]:
    """The ids of each prompt: one list is for all of them, and a number is a list of one."""
    if isinstance(value, int):
        value = [value]
    is_nested = isinstance(value, list | tuple) and any(isinstance(entry, list | tuple) for entry in value)
    return _spread("token_ids_logprob", value, count) if is_nested else [value] * count


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
