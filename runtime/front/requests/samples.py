"""The samples of a request on their way out: tokens become text, and stop strings end them."""

import dataclasses
import time
from collections.abc import Sequence

from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.timeline import Timeline
from palladio.runtime.interface.outputs.token_output import ClosedBy, FinishReason, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.text.tokenizers.detokenizer import IncrementalDetokenizer
from palladio.runtime.text.tokenizers.stop_regex import StopRegexMatcher
from palladio.runtime.text.tokenizers.stop_strings import StopStringMatcher
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

LOGPROB_COST = 8  # of a token whose log-probabilities are written, in tokens without


class SampleProcessor:
    """Follows one sample from its first token to its end.

    A stop string ends the sample here, before the engine knows: the caller must then abort it there.

    Args:
        request_id: the user's id.
        index: which of the n samples.
        request: as the engine has it.
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
        self._closed: ClosedBy | None = None
        self._times: RequestTimes | None = None
        self._trace: RequestTrace | None = None
        self._timeline = Timeline() if request.options.timeline else None
        self._first_token: float | None = None
        self._detokenize_seconds = 0.0
        self._detokenizer: IncrementalDetokenizer | None = None
        self._hidden_stops: dict[int, str] = {}
        self._matcher = StopStringMatcher(params.stop, keep_match=params.no_stop_trim)
        self._patterns = StopRegexMatcher(params.stop_regex) if params.stop_regex else None
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
        self._is_plain = self._detokenizer is not None and not params.stop and not params.stop_regex

    @property
    def index(self) -> int:
        """Which of the n samples."""
        return self._index

    def process(self, new: TokenOutput | list[int]) -> RequestOutput:
        """Takes the engine's next output, or tokens alone; nothing may follow once the result has `finish`."""
        if isinstance(new, list):
            if self._is_plain:
                return self._process_plain(new)
            new = TokenOutput("", new, None, None, None, self._cached_tokens, self._num_retractions)
        return self._process_output(new)

    def _process_output(self, output: TokenOutput) -> RequestOutput:
        begun = time.perf_counter()
        if self._first_token is None and output.token_ids:
            self._first_token = time.time()
        times, trace = output.times, output.trace
        if self._timeline is not None and trace is not None and trace.timeline is not None:
            self._timeline.extend(trace.timeline)
            trace.tell(self._timeline)  # holders of the trace see later records too
        if times is not None:
            self._times, self._trace = times, trace
        self._cached_tokens = output.cached_tokens
        self._num_retractions = output.num_retractions
        self._closed = output.closed or self._closed
        finish = output.finish
        text, num_taken, stop_string = self._take(output.token_ids, self._num_unshown(finish))
        if stop_string is not None:
            finish = FinishReason("stop", matched=stop_string)
        elif finish is not None:
            text += self._flush()
            if self._matched is not None:  # only with a stop string that contains U+FFFD, or a pattern
                finish = FinishReason("stop", matched=self._matched)
        self._num_tokens += num_taken
        if self._timeline is not None and num_taken < len(output.token_ids):
            self._timeline.take_back(len(output.token_ids) - num_taken)
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
            trace=None if times is None and finish is None else self._trace,
            detokenize_seconds=self._detokenize_seconds,
            embedding=output.embedding,
            closed=self._closed,
            progress=output.progress,
            sparse=output.sparse,
            token_vectors=output.token_vectors,
        )

    def _process_plain(self, token_ids: list[int]) -> RequestOutput:
        """What `process` does with tokens that neither begin nor end anything: nearly all of them."""
        begun = time.perf_counter()
        push = self._detokenizer.push  # type: ignore[union-attr]  # see _is_plain
        text = push(token_ids[0]) if len(token_ids) == 1 else "".join(map(push, token_ids))
        self._num_tokens += len(token_ids)
        self._detokenize_seconds += time.perf_counter() - begun
        return RequestOutput(
            *(self._request_id, self._index, text, token_ids, None, None, None),
            *(self._num_prompt_tokens, self._num_tokens, self._cached_tokens, self._num_retractions, None, None),
            *(self._detokenize_seconds, None, self._closed),
        )

    def abort(self) -> RequestOutput:
        """The last output of a sample that someone aborted."""
        finish = FinishReason("abort", message="aborted")
        return self.process(TokenOutput("", [], None, None, finish, self._cached_tokens, self._num_retractions))

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
                text += self._flush()
                return text, taken, self._matched or self._hidden_stops[token_id]
            text += self._show(self._matcher.feed(self._detokenizer.push(token_id), armed=armed), armed=armed)
            if self._matched is not None:
                return text, taken, self._matched
        return text, len(token_ids), None

    def _flush(self) -> str:
        if self._detokenizer is None:
            return ""
        text = self._matcher.feed(self._detokenizer.flush())
        return self._show(text if self._matcher.matched is not None else text + self._matcher.flush())

    def _show(self, text: str, *, armed: bool = True) -> str:
        """What may be shown of text that holds no stop string: a pattern may end it before one does."""
        return text if self._patterns is None else self._patterns.feed(text, armed=armed)

    @property
    def _matched(self) -> str | None:
        """The pattern or the stop string that ended the text."""
        if self._patterns is not None and self._patterns.matched is not None:
            return self._patterns.matched
        return self._matcher.matched

    def _final_times(self) -> RequestTimes:
        """The engine's times, or, if this side ended the sample, the times of its first token."""
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
