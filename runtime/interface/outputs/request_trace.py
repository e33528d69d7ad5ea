"""What happened to a request: its times, waits, prefill chunks, preemptions and decode steps.

The engine adds to a trace while the request runs, and sends it across the process border.
"""

import dataclasses
from typing import Literal, Self

from palladio.runtime.interface.outputs.counts import DraftCounts
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
        """A copy, made by hand: dataclasses.replace takes five times as long, and this runs for every request.

        Args:
            num_retracted: takes the place of this one's.
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
        """Note that the host has read the step.

        Args:
            seconds: seconds since the dispatch.
        """
        self.seconds = seconds

    def copy(self) -> "PrefillChunk":
        return PrefillChunk(self.time, self.tokens, self.step_tokens, self.bucket_tokens, self.seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestTimes:
    """Wall-clock times (seconds since the epoch) of one request; None: not reached."""

    received: float
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LostPages:
    """A retraction: tokens that the prefix cache still has when the request is admitted again are not computed again.

    Attributes:
        time: in seconds since the epoch.
        tokens: of cache that the request gave up; where layers keep states, those behind its last snapshot.
        snapshot_tokens: that this snapshot is behind; None: no layer keeps a state.
    """

    time: float
    tokens: int
    snapshot_tokens: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotHit:
    """The request began, or went on after a retraction, at a snapshot of states.

    Attributes:
        time: in seconds since the epoch.
        slot: the snapshot's place on the device: the same number is the same copy, until it is evicted.
        tokens: of the request that it is behind, and that were not computed.
    """

    time: float
    slot: int
    tokens: int


@dataclasses.dataclass(slots=True)
class RequestTrace:
    """What happened to a request so far.

    Attributes:
        queued: when the engine got it, in seconds since the epoch: it was tokenized and sent before.
        waits: times in the queue, retractions included.
        chunks: the first MAX_CHUNKS chunks of its prefill. num_chunks: how many there were.
        retractions: the first MAX_CHUNKS; the request has their number.
        decode: the engine's decode steps while it decoded.
        compile_seconds: seconds that steps took to compile programs while it was here.
        drafts: its own.
        timeline: see RequestOptions.timeline; of an engine's output: what came since the last one.
        snapshots: the snapshots that it began at, the first MAX_CHUNKS.
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
        """Set the time that steps took to compile.

        Args:
            seconds: the total so far, while the request was here.
        """
        self.compile_seconds = seconds

    def add_retraction(self, lost: LostPages) -> None:
        if len(self.retractions) < MAX_CHUNKS:
            self.retractions.append(lost)

    def add_snapshot(self, hit: SnapshotHit) -> None:
        if len(self.snapshots) < MAX_CHUNKS:
            self.snapshots.append(hit)

    def add_decoding(self, steps: DecodeSteps) -> None:
        """Add decode steps.

        Args:
            steps: steps of the engine, while the request decoded.
        """
        self.decode = self.decode.plus(steps)

    def add_drafts(self, room: int, num_accepted: int) -> None:
        """Count a row with drafts, see DraftCounts.add."""
        self.drafts.add(room, num_accepted)

    def tell(self, timeline: Timeline) -> None:
        self.timeline = timeline

    def copy(self) -> "RequestTrace":
        """One that later events do not change."""
        chunks, lost, seconds = [c.copy() for c in self.chunks], list(self.retractions), self.compile_seconds
        drafts, waits = DraftCounts(*vars(self.drafts).values()), self.waits.copy()
        fields = (self.queued, waits, chunks, self.num_chunks, lost, self.decode, seconds, drafts)
        return RequestTrace(*fields, snapshots=list(self.snapshots))
