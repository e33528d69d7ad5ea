"""Outputs as SGLang's results, for `Engine.generate` and the HTTP /generate route."""

from collections.abc import Sequence
from typing import Any

from palladio.runtime.front.control.model_switch import ModelSwitch
from palladio.runtime.front.requests.sglang_requests import LogprobOptions
from palladio.runtime.interface.outputs.counts import DraftCounts
from palladio.runtime.interface.outputs.request_output import RequestOutput, RequestTimings
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

LogprobTuple = tuple[float | None, int, str | None]


def encode_results(
    names: Sequence[str], outputs: Sequence[RequestOutput], vectors: Sequence[Any], weight_version: str
) -> list[dict[str, Any]]:
    """[{"embedding", "meta_info"}] of these prompts.

    Args:
        names: the callers' ids.
        vectors: the embeddings.
    """
    return [
        {"embedding": vector, "meta_info": _meta_info(name, output, weight_version)}
        for name, output, vector in zip(names, outputs, vectors, strict=True)
    ]


def _meta_info(name: str, last: RequestOutput, weight_version: str) -> dict[str, Any]:
    """The fields of meta_info that every result has.

    Args:
        name: the caller's id, which the engine may know as another.
    """
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
        """What has come of each sample that has any output."""
        return [output for output in self._outputs if output is not None]

    def add(self, index: int, output: RequestOutput) -> None:
        """Take the next output of a sample.

        Args:
            index: index of the sample among all.
        """
        if output.prompt_logprobs is not None:  # they come once, and hold for all samples of the prompt
            self._prompt_logprobs[self._asked[index][0].first_index] = output.prompt_logprobs
        so_far = self._outputs[index]
        if so_far is None:
            self._outputs[index] = output
        else:
            so_far.extend(output)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The results of all samples, as `to_dict`."""
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
        """The result as `to_dict` gives it; the next call starts after it."""
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
    """The fields of meta_info about a sample's drafts; none if it had none."""
    if not drafts.num_draft_rows:
        return {}
    return {
        "spec_verify_ct": drafts.num_draft_rows,
        "spec_draft_token_num": drafts.num_draft_tokens,
        "spec_accept_token_num": drafts.num_accepted_drafts,
        "spec_accept_length": drafts.accept_length,
        "spec_accept_rate": drafts.accept_rate,
    }
