"""Records of requests, live and finished."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.runtime.interface.outputs.request_output import RefusedOutputError, RequestOutput, RequestTimings
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.generation_request import GenerationRequest

RecordStatus = Literal["live", "finished", "failed"]


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from, and what is to be noted of it.

    Attributes:
        route: its path.
        shown_id: the X-Request-Id that goes back.
        headers: those that carry a distributed trace.
        is_logged: False: the client asked for no_logs.
        is_measured: False: with log_metrics: false it stays out of the requests' metrics.
        owner: of the API key; empty: it came without one.
    """

    route: str
    shown_id: str
    headers: Mapping[str, str]
    is_logged: bool = True
    is_measured: bool = True
    owner: str = ""


@dataclasses.dataclass(slots=True)
class SampleRecord:
    """One sample.

    Attributes:
        last_token: when its latest tokens came (time.perf_counter()); None: none have come.
        latest: its latest output, while it has not ended; None: none has come.
        times, trace: the latest that the engine sent.
        end: its last output, without text, tokens and logprobs; without `finish`: the request ended before it did, and
            this is how far it came; None: it has not ended, or nothing came of it.
        texts: of its outputs, if they are to be logged.
    """

    last_token: float | None = None
    latest: RequestOutput | None = None
    times: RequestTimes | None = None
    trace: RequestTrace | None = None
    end: RequestOutput | None = None
    texts: list[str] = dataclasses.field(default_factory=list)

    @property
    def timings(self) -> RequestTimings | None:
        return None if self.end is None or self.end.times is None else RequestTimings.of_output(self.end)

    def seconds_since_tokens(self) -> float | None:
        """Tokens have come. Returns how long after the last ones; None: these are the first."""
        now, last = time.perf_counter(), self.last_token
        self.last_token = now
        return None if last is None else now - last

    def take(self, output: RequestOutput, *, keeps_text: bool = False) -> None:
        """Take the request's next output.

        Args:
            keeps_text: as in RequestRecord.
        """
        if keeps_text:
            self.texts.append(output.text)
        self.latest = output
        if output.times is not None:
            self.times, self.trace = output.times, output.trace
        if output.finish is not None:
            self.end, self.latest = _without_content(output), None

    def forget_texts(self) -> None:
        self.texts.clear()

    def cut(self, received: float, now: float) -> None:
        """The request ends, whether the sample has or not."""
        latest, self.latest = self.latest, None
        if self.end is None and latest is not None:
            times = dataclasses.replace(self.times or RequestTimes(received), finished=now)
            self.end = dataclasses.replace(_without_content(latest), times=times, trace=self.trace)


class RequestRecord:
    """One HTTP request: prompts × n samples.

    Args:
        requests: its prompts.
        metrics: that are added to.
        keeps_text: keep the text of the answers, for the log.
        on_end: called once, when nothing will come any more.

    Attributes:
        name: the client's id; ids: those of the single prompts, which answers of /generate carry.
        received: seconds since the epoch.
        ended: seconds since the epoch; None: it has not.
        error: why it ended early; None: it did not.
    """

    def __init__(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        origin: Origin,
        metrics: FrontMetrics,
        on_end: Callable[["RequestRecord"], None],
        *,
        keeps_text: bool = False,
    ) -> None:
        self.name = name
        self.ids = tuple(request.request_id for request in requests)
        self.received = requests[0].received
        self.ended: float | None = None
        self.requests: Sequence[GenerationRequest] = requests
        self.origin = origin
        self.samples = [SampleRecord() for request in requests for _ in range(request.params.n)]
        self.status: RecordStatus = "live"
        self.error: str | None = None
        self._metrics = metrics
        self._on_end = on_end
        self._keeps_text = keeps_text
        self._num_ended = 0
        self._observe_gap = metrics.inter_token.observe if origin.is_measured else _ignore

    def add(self, output: RequestOutput) -> None:
        """The next output, as it goes to the client; runs for every token."""
        sample = self.samples[output.index]
        count = len(output.token_ids)
        if count:
            gap = sample.seconds_since_tokens()
            if gap is not None:
                self._observe_gap(gap / count, count)
            elif self.origin.is_measured:
                self._metrics.first_token.observe(time.time() - self.received)
        sample.take(output, keeps_text=self._keeps_text)
        self._num_ended += output.finish is not None

    def end(self, error: BaseException | None = None) -> None:
        """End the record: no output follows.

        Args:
            error: the error that ended it, if any; a client that disconnected is one too.
        """
        if self.status != "live":
            return
        if error is not None and isinstance(error.__cause__, RefusedOutputError):
            self._take_refused(error.__cause__.output)
        self.ended = time.time()
        for sample in self.samples:
            sample.cut(self.received, self.ended)
        is_whole = self._num_ended == len(self.samples)
        self.status = "finished" if is_whole and error is None else "failed"
        if self.status == "failed":
            text = "" if error is None else str(error)
            self.error = text or "the client disconnected, or the request was aborted"
        if self.origin.is_measured:
            self._measure()
        self._on_end(self)

    @property
    def names(self) -> tuple[str, ...]:
        """By which it is found."""
        return (*self.ids, self.origin.shown_id, self.name)

    def forget_texts(self) -> None:
        """Drop the texts of prompts and answers, which explanations do not need."""
        self.requests = ()
        for sample in self.samples:
            sample.forget_texts()

    @property
    def is_aborted(self) -> bool:
        """It ended early, whatever the reason."""
        return self.status == "failed" or any(_is_abort(sample.end) for sample in self.samples)

    def _take_refused(self, output: RequestOutput) -> None:
        """Count an output that never went to the client.

        Args:
            output: its index is its place among its prompt's samples.
        """
        first = next((request.first_index for request in self.requests if request.scoped_id == output.request_id), None)
        if first is not None:
            self.samples[first + output.index].take(output)

    def _measure(self) -> None:
        metrics = self._metrics
        metrics.count_request(is_aborted=self.is_aborted)
        for sample in self.samples:
            timings = sample.timings
            if sample.end is not None and timings is not None:
                metrics.observe_sample(timings, sample.end.completion_tokens)
        for request in self.requests:
            samples = self.samples[request.first_index : request.first_index + request.params.n]
            ends = [sample.end for sample in samples if sample.end is not None and _was_admitted(sample.end)]
            if ends:
                metrics.observe_prompt(ends[0].prompt_tokens, ends[0].cached_tokens)


def _ignore(_seconds: float, _count: int) -> None:
    pass


def _without_content(output: RequestOutput) -> RequestOutput:
    """By hand: dataclasses.replace takes five times as long, and this runs for every sample."""
    return RequestOutput(
        *(output.request_id, output.index, "", [], None, None),
        finish=output.finish,
        prompt_tokens=output.prompt_tokens,
        completion_tokens=output.completion_tokens,
        cached_tokens=output.cached_tokens,
        num_retractions=output.num_retractions,
        times=output.times,
        trace=output.trace,
        detokenize_seconds=output.detokenize_seconds,
    )


def _was_admitted(end: RequestOutput) -> bool:
    """Whether it was, as far as is known here: only a trace of the engine shows that it was not."""
    return end.times is None or end.times.scheduled is not None or end.trace is None


def _is_abort(end: RequestOutput | None) -> bool:
    finish: FinishReason | None = None if end is None else end.finish
    return finish is not None and finish.type == "abort"
