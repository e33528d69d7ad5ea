"""What the engine reports when it is asked: ranks, memory, programs, steps, and requests that have not ended."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.messages.page_map import PageMap
from palladio.runtime.interface.outputs.counts import DraftCounts, EventCounts, SnapshotCounts
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace, WaitReason


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramReport:
    """How a program came to be.

    Attributes:
        name: what it does, and its bucket.
        result: "exported", loaded from --compiled-dir; "hit", from the persistent cache; "miss", compiled; "failed",
            it could not be compiled in the background.
        seconds: that it took, tracing included.
    """

    name: str
    result: str
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class CompileStats:
    """The closed set of programs, and how far it is built.

    Attributes:
        num_programs: programs in the set.
        programs: the built ones.
        wait_seconds: seconds for which steps have waited for programs that were not built (--compile lazy).
    """

    num_programs: int = 0
    programs: list[ProgramReport] = dataclasses.field(default_factory=list)
    wait_seconds: float = 0.0

    def count(self, result: str) -> int:
        """Programs that were made this way."""
        return sum(program.result == result for program in self.programs)


@dataclasses.dataclass(frozen=True, slots=True)
class HistogramData:
    """Counts of values, as Prometheus means them.

    Attributes:
        bounds: upper bounds of the buckets, ascending; one more bucket takes what is over the last.
        counts: values in each bucket (not cumulative), len(bounds) + 1 of them.
        total: sum of all values.
    """

    bounds: list[float] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=lambda: [0])
    total: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes of a device's memory, as planned.

    Attributes:
        total: all memory of the device. usable: what the plan may give away; more is left to the runtime and to others.
        weights, kv_cache: of this model.
        state: the state of the sampler and the block tables.
        workspace: memory that the programs need in addition, see workspace_of.
        layer_states: states that layers keep for each slot, in place of keys and values. snapshots: copies of such.
    """

    total: int = 0
    usable: int = 0
    weights: int = 0
    kv_cache: int = 0
    state: int = 0
    workspace: int = 0
    layer_states: int = 0
    snapshots: int = 0

    @property
    def planned(self) -> int:
        return self.weights + self.kv_cache + self.layer_states + self.snapshots + self.state + self.workspace


@dataclasses.dataclass(frozen=True, slots=True)
class BucketSteps:
    """Steps that ran in one bucket, since the engine started.

    Attributes:
        kind: "decode" or "prefill".
        requests, tokens: how many the bucket holds.
        steps: how many.
        computed_tokens: computed tokens of requests.
        padding_tokens: computed tokens of padding, which no request gets.
    """

    kind: str
    requests: int
    tokens: int
    steps: int
    computed_tokens: int
    padding_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class QueueState:
    """Why a request waits at this moment.

    Attributes:
        reason: what stood in the way when the last step was planned.
        position: 1 for the one that waited longest (retracted ones stand before it); length: of the queue.
        running: requests that run; max_running: that can at most; open_running: that the programs compiled so far hold.
        pages_needed: to be admitted now: its own and what running requests are expected to take still;
            pages_available: free, or held by the prefix cache alone.
    """

    reason: WaitReason
    position: int
    length: int
    running: int
    max_running: int
    open_running: int
    pages_needed: int
    pages_available: int


@dataclasses.dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request that has not ended.

    Attributes:
        request_id: the engine-side id.
        computed_tokens: whose keys and values are in the cache.
        queue: while it waits: for what.
    """

    request_id: str
    status: Literal["waiting", "running"]
    times: RequestTimes
    trace: RequestTrace
    prompt_tokens: int
    computed_tokens: int
    completion_tokens: int
    cached_tokens: int
    num_retractions: int
    queue: QueueState | None = None


@dataclasses.dataclass(frozen=True)  # without slots, so that `vars` sums many: asdict copies each number
class RankStats(SnapshotCounts, EventCounts):
    """What one data-parallel rank is at; or several together, see `EngineStats.total`.

    Attributes:
        num_running, num_waiting: requests.
        num_used_tokens, num_total_tokens: of the KV pool, in whole pages; what only the prefix cache holds is not used.
        last_gen_throughput: output tokens per second, over the last logged decode interval.
        new_token_ratio: the share of its max_tokens that a request is expected to use.
        num_retracted_waiting: requests that lost their pages and have not got them back; num_retractions: since the
            start.
        num_cached_tokens: tokens that the prefix cache holds now, in use or not.
        num_prompt_tokens: since the start, of the requests that looked for a prefix. num_hit_tokens: of those, found.
        num_evicted_tokens: dropped from the prefix cache to make room.
        num_waiting_tokens: of the prompts of waiting requests, and of what retracted ones had generated.
        num_draft_rows: in steps with drafts, since the start. num_draft_tokens, num_accepted_drafts: theirs.
        num_prefill_tokens: of prompts, and again of retracted requests, that steps have computed since the start.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_used_tokens: int = 0
    num_total_tokens: int = 0
    last_gen_throughput: float = 0.0
    new_token_ratio: float = 0.0
    num_retracted_waiting: int = 0
    num_retractions: int = 0
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_tokens: int = 0
    num_waiting_tokens: int = 0
    num_draft_rows: int = 0
    num_draft_tokens: int = 0
    num_accepted_drafts: int = 0
    num_prefill_tokens: int = 0

    @property
    def drafts(self) -> DraftCounts:
        return DraftCounts(self.num_draft_rows, self.num_draft_tokens, self.num_accepted_drafts)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the running engine, for /get_server_info, tests and metrics.

    Attributes:
        ranks: one entry for each data-parallel rank.
        unassigned: requests that wait and have no rank: their grammar is being compiled.
        num_compiles_after_ready: programs that steps compiled; anything but 0 is a defect.
        integrity_error: what check_integrity finds wrong; looked for only if asked, and while nothing runs.
        cache_enabled: whether prefixes are cached: not with --disable-radix-cache, nor after a self-check that failed.
        num_self_checks, num_self_check_failures: of --cache-self-check.
        device_idle: seconds between the end of one step and the dispatch of the next, while there was work, as far as
            the host can tell: 0 where the next step was dispatched before the one before it had ended.
        compile: the programs.
        memory: of one device. memory_in_use: bytes of the first one now; None: it does not say, as on a CPU.
        steps: since the start, by bucket.
        num_grammars: compiled ones that are kept; grammar_bytes: that they hold, and others that outputs follow.
        pages: of each rank, if they were asked for.
    """

    ranks: list[RankStats]
    unassigned: RankStats = RankStats()
    num_compiles_after_ready: int = 0
    integrity_error: str | None = None
    cache_enabled: bool = False
    num_self_checks: int = 0
    num_self_check_failures: int = 0
    device_idle: HistogramData = dataclasses.field(default_factory=HistogramData)
    compile: CompileStats = dataclasses.field(default_factory=CompileStats)
    memory: MemoryReport = MemoryReport()
    steps: list[BucketSteps] = dataclasses.field(default_factory=list)
    num_grammars: int = 0
    grammar_bytes: int = 0
    memory_in_use: int | None = None
    pages: list[PageMap] = dataclasses.field(default_factory=list)

    @property
    def total(self) -> RankStats:
        """The figures of the whole engine: sums, but the largest new_token_ratio."""
        parts = [vars(part) for part in (*self.ranks, self.unassigned)]
        sums = {name: sum(part[name] for part in parts) for name in parts[0]}
        return RankStats(**{**sums, "new_token_ratio": max(part["new_token_ratio"] for part in parts)})

    @property
    def by_rank(self) -> list[RankStats]:
        """What is shown of each rank: if there is only one, it is the whole engine."""
        return self.ranks if len(self.ranks) > 1 else [self.total]
