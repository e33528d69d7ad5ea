"""SGLang's shape of results: what `Engine.generate` returns and the HTTP /generate route sends."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.outputs import FinishReason, RequestOutput, RequestTimes, TokenLogprob
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 128  # SGLang's

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


class SampleResult:
    """Gathers one sample's outputs into SGLang's result.

    Args:
        options: which log-probabilities to show.
        tokenizer: for the text of tokens; None leaves it out.
    """

    def __init__(self, options: LogprobOptions, tokenizer: Tokenizer | None) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._last: RequestOutput | None = None

    def add(self, output: RequestOutput) -> None:
        self._texts.append(output.text)
        self._token_ids.extend(output.token_ids)
        self._logprobs.extend(output.logprobs or ())
        self._prompt_logprobs.extend(output.prompt_logprobs or ())
        self._last = output

    def to_dict(self) -> dict[str, Any]:
        """Everything so far: {"text", "output_ids", "meta_info"}. At least one output was added."""
        last = self._last
        assert last is not None
        self._texts = ["".join(self._texts)]
        meta: dict[str, Any] = {
            "id": last.request_id,
            "finish_reason": None if last.finish is None else finish_reason(last.finish, last.completion_tokens),
            "prompt_tokens": last.prompt_tokens,
            "completion_tokens": last.completion_tokens,
            "cached_tokens": last.cached_tokens,
            "num_retractions": last.num_retractions,
        }
        if last.times is not None:
            meta |= time_info(last.times, last.completion_tokens)
        if self._options.return_logprob:
            meta |= self._logprob_info()
        return {"text": self._texts[0], "output_ids": list(self._token_ids), "meta_info": meta}

    def _logprob_info(self) -> dict[str, Any]:
        start = max(self._options.logprob_start_len or 0, 0)
        prompt = self._prompt_logprobs[start:] if self._options.wants_prompt else []
        info: dict[str, Any] = {
            "input_token_logprobs": self._chosen(prompt),
            "output_token_logprobs": self._chosen(self._logprobs),
            "output_token_logprobs_length": len(self._logprobs),
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


def sample_result(
    outputs: Iterable[RequestOutput], options: LogprobOptions, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """SGLang's result of one finished sample."""
    result = SampleResult(options, tokenizer)
    for output in outputs:
        result.add(output)
    return result.to_dict()


def finish_reason(finish: FinishReason, completion_tokens: int) -> dict[str, Any]:
    match finish.type:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": completion_tokens}
        case "abort":
            reason = {"type": "abort", "message": finish.message or "aborted"}
            return reason | ({"status_code": finish.status} if finish.status else {})


def time_info(times: RequestTimes, completion_tokens: int) -> dict[str, float]:
    """The fields of meta_info that come from a request's times; those that are not known are left out."""
    info = {"request_received_ts": times.received}
    if times.scheduled is not None:
        info["queue_time"] = times.scheduled - times.received
    if times.first_token is not None:
        info["first_token_latency"] = times.first_token - times.received
    if times.finished is not None:
        info["request_finished_ts"] = times.finished
        info["e2e_latency"] = times.finished - times.received
        if times.first_token is not None and times.finished > times.first_token and completion_tokens > 1:
            info["decode_throughput"] = (completion_tokens - 1) / (times.finished - times.first_token)
    return info
