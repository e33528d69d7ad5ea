"""What comes back for a request: as tokens from the engine, then as text for the user, with its times and its trace."""

import dataclasses
from typing import Literal, Self

from palladio.runtime.interface.errors import InvalidRequestError, PalladioError, request_error
from palladio.runtime.interface.outputs.cache_events import LostPages, SnapshotHit
from palladio.runtime.interface.outputs.draft_counts import DraftCounts
from palladio.runtime.interface.outputs.timeline import Timeline

WaitReason = Literal["slots", "memory", "step", "compile"]

MAX_CHUNKS = 64  # kept of a request; more are only counted: a long prompt that is retracted again and again has many


@dataclasses.dataclass(slots=True)
class WaitTimes:
    """Seconds in the queue, by what stood in the way; `of` a moment: of the engine, since it started.

    Attributes:
        slots: --max-running-requests others ran.
        memory: the KV cache had too few pages.
        step: a step was under way, or full.
        compile: the programs compiled so far hold fewer requests than --max-running-requests.
        num_retracted: requests that lost their pages meanwhile.
    """

    slots: float = 0.0
    memory: float = 0.0
    step: float = 0.0
    compile: float = 0.0
    num_retracted: int = 0

    def add(self, reason: WaitReason, seconds: float) -> None:
        match reason:
            case "slots":
                self.slots += seconds
            case "memory":
                self.memory += seconds
            case "step":
                self.step += seconds
            case "compile":
                self.compile += seconds

    def add_since(self, now: "WaitTimes", then: "WaitTimes") -> None:
        """Adds what came between two moments."""
        self.slots += now.slots - then.slots
        self.memory += now.memory - then.memory
        self.step += now.step - then.step
        self.compile += now.compile - then.compile
        self.num_retracted += now.num_retracted - then.num_retracted

    def copy(self, num_retracted: int | None = None) -> "WaitTimes":
        """By hand: dataclasses.replace takes five times as long, and this runs for every request.

        Args:
            num_retracted: in place of this one's.
        """
        count = self.num_retracted if num_retracted is None else num_retracted
        return WaitTimes(self.slots, self.memory, self.step, self.compile, count)

    @property
    def total(self) -> float:
        return self.slots + self.memory + self.step + self.compile


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Decode steps: of the engine since it started, or of one request.

    Attributes:
        steps: how many; a program that decodes several times counts as often.
        rows: requests that decoded in them, added up.
        bucket_rows: rows of their buckets, padding included, added up; of a step that prefilled too: its decode rows.
    """

    steps: int = 0
    rows: int = 0
    bucket_rows: int = 0

    def since(self, then: Self) -> "DecodeSteps":
        return DecodeSteps(self.steps - then.steps, self.rows - then.rows, self.bucket_rows - then.bucket_rows)

    def plus(self, other: "DecodeSteps") -> "DecodeSteps":
        return DecodeSteps(self.steps + other.steps, self.rows + other.rows, self.bucket_rows + other.bucket_rows)


@dataclasses.dataclass(slots=True)
class PrefillChunk:
    """A request's part of one prefill step.

    Attributes:
        time: when the step was dispatched, in seconds since the epoch.
        tokens: of this request.
        step_tokens: of all requests in the step.
        bucket_tokens: of the step's bucket: the rest is padding.
        seconds: from the dispatch until the host had read the step; None: not read yet.
    """

    time: float
    tokens: int
    step_tokens: int
    bucket_tokens: int
    seconds: float | None = None

    def end(self, seconds: float) -> None:
        """The host has read the step. Args: seconds: since the dispatch."""
        self.seconds = seconds

    def copy(self) -> "PrefillChunk":
        return PrefillChunk(self.time, self.tokens, self.step_tokens, self.bucket_tokens, self.seconds)


@dataclasses.dataclass(slots=True)
class RequestTrace:
    """What happened to a request so far.

    Attributes:
        queued: when the engine got it, in seconds since the epoch: it was tokenized and sent before.
        waits: in the queue, retractions included.
        chunks: of its prefill, the first MAX_CHUNKS; num_chunks: all.
        retractions: likewise the first MAX_CHUNKS; the request has their number.
        decode: the engine's decode steps while it decoded.
        compile_seconds: that steps took to compile programs while it was here.
        drafts: its own.
        timeline: see RequestOptions.timeline; of an engine's output: what came since the last one.
        snapshots: where it began at one, likewise the first MAX_CHUNKS.
    """

    queued: float = 0.0
    waits: WaitTimes = dataclasses.field(default_factory=WaitTimes)
    chunks: list[PrefillChunk] = dataclasses.field(default_factory=list)
    num_chunks: int = 0
    retractions: list[LostPages] = dataclasses.field(default_factory=list)
    decode: DecodeSteps = DecodeSteps()
    compile_seconds: float = 0.0
    drafts: DraftCounts = dataclasses.field(default_factory=DraftCounts)
    timeline: Timeline | None = None
    snapshots: list[SnapshotHit] = dataclasses.field(default_factory=list)

    def add_chunk(self, chunk: PrefillChunk) -> None:
        self.num_chunks += 1
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(chunk)

    def note_compiling(self, seconds: float) -> None:
        """Args: seconds: all so far, while the request was here."""
        self.compile_seconds = seconds

    def add_retraction(self, lost: LostPages) -> None:
        if len(self.retractions) < MAX_CHUNKS:
            self.retractions.append(lost)

    def add_snapshot(self, hit: SnapshotHit) -> None:
        if len(self.snapshots) < MAX_CHUNKS:
            self.snapshots.append(hit)

    def add_decoding(self, steps: DecodeSteps) -> None:
        """Args: steps: of the engine, while the request decoded."""
        self.decode = self.decode.plus(steps)

    def add_drafts(self, room: int, num_accepted: int) -> None:
        """See DraftCounts.add."""
        self.drafts.add(room, num_accepted)

    def tell(self, timeline: Timeline) -> None:
        self.timeline = timeline

    def copy(self) -> "RequestTrace":
        """One that later events do not change."""
        chunks, lost, seconds = [c.copy() for c in self.chunks], list(self.retractions), self.compile_seconds
        drafts, waits = DraftCounts(*vars(self.drafts).values()), self.waits.copy()
        fields = (self.queued, waits, chunks, self.num_chunks, lost, self.decode, seconds, drafts)
        return RequestTrace(*fields, snapshots=list(self.snapshots))


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the model's own distribution (before temperature, penalties and bias).

    Attributes:
        token_id: the token.
        logprob: natural logarithm; None for a prompt's first token, which nothing predicts.
        top: the likeliest (token id, logprob) pairs, best first; as many as were asked for.
        asked: such pairs of the request's logprob_token_ids, in its order.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended.

    Attributes:
        type: stop (end of sequence, stop token id or stop string), length (max_tokens or context), or abort.
        matched: the token id or the stop string that ended it; None otherwise.
        message: for abort: why.
        status: for abort: the HTTP status that the message deserves (0: the client asked for the abort).
        param: for abort: the request's field that is wrong, if it is one.
        parts: for abort: of the message, if it mentions fields (see errors.Message).
    """

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    message: str | None = None
    status: int = 0
    param: str | None = None
    parts: tuple[str, ...] = ()

    @classmethod
    def refusal(cls, error: InvalidRequestError) -> Self:
        """The end of a request that can never be served."""
        return cls("abort", message=str(error), status=400, param=error.param, parts=error.message.parts)

    def error(self, otherwise: str) -> PalladioError:
        """What an abort comes to. Args: otherwise: the message, where it has none."""
        return request_error(self.status, self.message or otherwise, self.param, self.parts)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestTimes:
    """Wall-clock times (seconds since the epoch) of one request; None: not reached."""

    received: float
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclasses.dataclass(slots=True)
class TokenOutput:
    """New tokens of one request from one engine step: the form of outputs from the model runner, which reads them from
    the device, to the front, across the process border. The scheduler drops what comes after a request's end.

    Attributes:
        request_id: the engine-side id, unique over the engine's life (see RequestIntake.resolve).
        token_ids: new tokens.
        logprobs: one per new token, if asked for.
        prompt_logprobs: one per prompt token, once, with the first output, if asked for; from the model runner: those
            that the step made.
        finish: set on the last output; by the model runner only if the last token means nothing.
        cached_tokens: prompt tokens that came from the prefix cache.
        num_retractions: how often the request lost its pages and was computed again.
        embedding: of the prompt, from an engine that makes embeddings: float32, little-endian.
        times, trace: set on the first output (for requests that the front ends, at a stop string) and on the last;
            others have a trace if there is something new in its `timeline`.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    embedding: bytes | None = None
    times: RequestTimes | None = None
    trace: RequestTrace | None = None

    def begin(self, times: RequestTimes, trace: RequestTrace, prompt_logprobs: list[TokenLogprob] | None) -> None:
        """It is the request's first output."""
        self.times, self.trace, self.prompt_logprobs = times, trace, prompt_logprobs

    def end(self, finish: FinishReason, times: RequestTimes, trace: RequestTrace) -> None:
        """It is the request's last output."""
        self.finish, self.times, self.trace = finish, times, trace

    def tell(self, timeline: Timeline) -> None:
        """Args: timeline: of what came since the last output."""
        self.trace = self.trace or RequestTrace()
        self.trace.tell(timeline)

    def cut(self, num_tokens: int) -> None:
        """Drops all but the first tokens."""
        del self.token_ids[num_tokens:]
        if self.logprobs is not None:
            del self.logprobs[num_tokens:]


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """New output of one sample of a request, as text (front → HTTP or offline caller).

    All text, ids and logprobs are new since the previous output of the same index: `extend` to get the whole. It
    belongs to whoever reads it from the engine.

    Attributes:
        request_id: the user's request id.
        index: which of the n samples.
        text: new text. Incomplete characters, and text that may become a stop string, are held back.
        token_ids: new token ids (on a stop string: up to and including the token that completed it).
        logprobs: one per new token id, if requested.
        prompt_logprobs: one per prompt token, once, if requested.
        finish: set on the last output of this index.
        prompt_tokens: length of the prompt.
        completion_tokens: tokens generated so far for this index.
        cached_tokens: prompt tokens that came from the prefix cache.
        num_retractions: how often the request was retracted (preempted) and recomputed.
        times: set on the last output of this index; on the first, the times known so far.
        trace: the same, if the engine sent it; only up to the first token if the front ended the request (stop string,
            abort).
        detokenize_seconds: time the front has spent on detokenizing this sample so far.
        embedding: see TokenOutput.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None
    finish: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    num_retractions: int = 0
    times: RequestTimes | None = None
    trace: RequestTrace | None = None
    detokenize_seconds: float = 0.0
    embedding: bytes | None = None

    def take_text(self) -> str:
        """The text, which is then gone from here."""
        text, self.text = self.text, ""
        return text

    def count_from(self, first_index: int) -> None:
        """The sample is one of several prompts' samples. Args: first_index: of its prompt's first."""
        self.index += first_index

    def extend(self, later: "RequestOutput") -> None:
        """Adds the sample's next output to what was new before it."""
        text = self.take_text()  # so that Python can grow it in place: outputs come by the thousand
        text += later.text
        self.text = text
        self.token_ids += later.token_ids
        if self.logprobs is None:
            self.logprobs = later.logprobs
        else:
            self.logprobs += later.logprobs or ()
        if self.prompt_logprobs is None:
            self.prompt_logprobs = later.prompt_logprobs
        if later.times is not None:
            self.times, self.trace = later.times, later.trace
        self.finish, self.completion_tokens = later.finish, later.completion_tokens
        self.cached_tokens, self.num_retractions = later.cached_tokens, later.num_retractions
        self.detokenize_seconds, self.embedding = later.detokenize_seconds, later.embedding


@dataclasses.dataclass(frozen=True, slots=True)
class RequestTimings:
    """Seconds of one sample; None: it did not get that far, or ended where nobody could tell.

    Attributes:
        queue: from its arrival at the server until it was first admitted, or until it ended, if the engine never
            admitted it; tokenizing it is part of that.
        compile_wait: of the others, what programs took that had to be compiled first.
        prefill: from its admission to its first token.
        decode: from its first token to its last.
        detokenize: of decode and prefill, what the front took to make text of its tokens.
        total: from its arrival to its end.
    """

    queue: float | None
    compile_wait: float | None
    prefill: float | None
    decode: float | None
    detokenize: float
    total: float | None

    @classmethod
    def of(cls, times: RequestTimes, trace: RequestTrace | None, detokenize: float = 0.0) -> Self:
        leaves = times.scheduled
        if leaves is None and trace is not None:  # without the engine's word nobody knows whether it was admitted
            leaves = times.finished
        return cls(
            queue=_between(times.received, leaves),
            compile_wait=None if trace is None else trace.compile_seconds + trace.waits.compile,
            prefill=_between(times.scheduled, times.first_token),
            decode=_between(times.first_token, times.finished),
            detokenize=detokenize,
            total=_between(times.received, times.finished),
        )

    @classmethod
    def of_output(cls, output: RequestOutput) -> Self:
        """Of a sample's last output."""
        assert output.times is not None
        return cls.of(output.times, output.trace, output.detokenize_seconds)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)
