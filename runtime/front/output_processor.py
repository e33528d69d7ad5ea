"""Tokens from the engine to output for the user: text, stop strings, what is cut and what is shown."""

import dataclasses
import time
from collections.abc import Sequence

from palladio.runtime.interface.generation_request import GenerationRequest
from palladio.runtime.interface.outputs import FinishReason, RequestOutput, RequestTimes, TokenOutput
from palladio.runtime.interface.request_trace import RequestTrace
from palladio.runtime.text.detokenizer import IncrementalDetokenizer, StopStringMatcher
from palladio.runtime.text.tokenizer import Tokenizer

LOGPROB_COST = 8  # of a token whose log-probabilities are written, in tokens without


class SampleProcessor:
    """Follows one sample from its first token to its end.

    A stop string ends the sample here, before the engine knows: the caller must then abort it there.

    Args:
        request_id: the user's id.
        index: which of the n samples.
        request: what the engine was told.
        tokenizer: None: no text.
    """

    def __init__(self, request_id: str, index: int, request: GenerationRequest, tokenizer: Tokenizer | None) -> None:
        params = request.params
        self._request_id = request_id
        self._index = index
        self._received = request.received
        self._num_prompt_tokens = len(request.prompt_ids)
        self._min_tokens = params.min_tokens
        self._keep_stop = params.no_stop_trim
        self._num_tokens = 0
        self._cached_tokens = 0
        self._num_retractions = 0
        self._times: RequestTimes | None = None
        self._trace: RequestTrace | None = None
        self._first_token: float | None = None
        self._detokenize_seconds = 0.0
        self._detokenizer: IncrementalDetokenizer | None = None
        self._hidden_stops: dict[int, str] = {}
        self._matcher = StopStringMatcher(params.stop, keep_match=params.no_stop_trim)
        if tokenizer is not None:
            self._detokenizer = tokenizer.new_stream(
                request.prompt_ids,
                skip_special_tokens=params.skip_special_tokens,
                visible_special_ids=params.visible_special_ids,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
            if params.skip_special_tokens and params.stop:
                named = {tokenizer.special_id(string): string for string in params.stop}
                self._hidden_stops = {i: string for i, string in named.items() if i is not None}
        self._is_plain = self._detokenizer is not None and not params.stop

    @property
    def index(self) -> int:
        """Which of the n samples."""
        return self._index

    def process(self, output: TokenOutput) -> RequestOutput:
        """Takes the next output of the engine; nothing may follow once the result has `finish`."""
        if self._is_plain and output.finish is None and output.times is None:
            return self._process_plain(output)
        begun = time.perf_counter()
        if self._first_token is None and output.token_ids:
            self._first_token = time.time()
        times, trace = output.times, output.trace
        if times is not None:
            self._times, self._trace = times, trace
        self._cached_tokens = output.cached_tokens
        self._num_retractions = output.num_retractions
        finish = output.finish
        text, num_taken, stop_string = self._take(output.token_ids, self._num_unshown(finish))
        if stop_string is not None:
            finish = FinishReason("stop", matched=stop_string)
        elif finish is not None:
            text += self._flush()
            if self._matcher.matched is not None:  # only with a stop string that contains U+FFFD
                finish = FinishReason("stop", matched=self._matcher.matched)
        self._num_tokens += num_taken
        self._detokenize_seconds += time.perf_counter() - begun
        return RequestOutput(
            request_id=self._request_id,
            index=self._index,
            text=text,
            token_ids=output.token_ids[:num_taken],
            logprobs=None if output.logprobs is None else output.logprobs[:num_taken],
            prompt_logprobs=output.prompt_logprobs,
            finish=finish,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_tokens,
            cached_tokens=self._cached_tokens,
            num_retractions=self._num_retractions,
            times=times if finish is None else self._final_times(),
            trace=trace if finish is None else self._trace,
            detokenize_seconds=self._detokenize_seconds,
            embedding=output.embedding,
        )

    def _process_plain(self, output: TokenOutput) -> RequestOutput:
        """What `process` does with tokens that neither begin nor end anything: nearly all of them."""
        begun = time.perf_counter()
        assert self._detokenizer is not None
        push, token_ids = self._detokenizer.push, output.token_ids
        text = push(token_ids[0]) if len(token_ids) == 1 else "".join(map(push, token_ids))
        self._num_tokens += len(token_ids)
        if self._first_token is None:
            self._first_token = time.time()
        self._cached_tokens, self._num_retractions = output.cached_tokens, output.num_retractions
        self._detokenize_seconds += time.perf_counter() - begun
        return RequestOutput(
            *(self._request_id, self._index, text, token_ids, output.logprobs, output.prompt_logprobs, None),
            *(self._num_prompt_tokens, self._num_tokens, self._cached_tokens, self._num_retractions, None, None),
            self._detokenize_seconds,
        )

    def abort(self) -> RequestOutput:
        """The last output of a sample that someone aborted."""
        output = TokenOutput("", [], finish=FinishReason("abort", message="aborted"))
        output.cached_tokens, output.num_retractions = self._cached_tokens, self._num_retractions
        return self.process(output)

    def _num_unshown(self, finish: FinishReason | None) -> int:
        """How many tokens at the end are kept out of the text: the one that ended the sample, unless it is wanted."""
        if finish is None or finish.type != "stop" or not isinstance(finish.matched, int) or self._keep_stop:
            return 0
        return 1

    def _take(self, token_ids: list[int], num_unshown: int) -> tuple[str, int, str | None]:
        """Text of the tokens, how many of them count, and the stop string if one was found."""
        if self._detokenizer is None:
            return "", len(token_ids), None
        text = ""
        for taken, token_id in enumerate(token_ids[: len(token_ids) - num_unshown], start=1):
            armed = self._num_tokens + taken >= self._min_tokens
            if armed and token_id in self._hidden_stops:
                return text + self._flush(), taken, self._hidden_stops[token_id]
            text += self._matcher.feed(self._detokenizer.push(token_id), armed=armed)
            if self._matcher.matched is not None:
                return text, taken, self._matcher.matched
        return text, len(token_ids), None

    def _flush(self) -> str:
        if self._detokenizer is None:
            return ""
        text = self._matcher.feed(self._detokenizer.flush())
        return text if self._matcher.matched is not None else text + self._matcher.flush()

    def _final_times(self) -> RequestTimes:
        """The engine's, or, if this side ended the sample, what the engine told with its first token."""
        times = self._times or RequestTimes(self._received, first_token=self._first_token)
        return times if times.finished is not None else dataclasses.replace(times, finished=time.time())


def merge_outputs(outputs: Sequence[RequestOutput], max_cost: int) -> list[RequestOutput]:
    """Joins consecutive outputs of each sample, for a reader that was slow; outputs of a sample keep their order.

    Args:
        max_cost: an output that has reached it is not joined with the next one (see `output_cost`).
    """
    merged: list[RequestOutput] = []
    last: dict[int, tuple[RequestOutput, int]] = {}  # of each sample: its last output here, and what that costs
    for output in outputs:
        joined, cost = last.get(output.index, (output, max_cost))
        if cost >= max_cost:
            joined, cost = output, output_cost(output)
            merged.append(output)
        else:
            cost += output_cost(output)
            joined.extend(output)
        last[output.index] = joined, cost
    return merged


def output_cost(output: RequestOutput) -> int:
    """How long it takes to write an output, in tokens without log-probabilities."""
    num_tokens = len(output.token_ids)
    return num_tokens if output.logprobs is None else LOGPROB_COST * num_tokens
