"""What the front and the engine say to each other; plain dataclasses, encoded by msgspec across the process border."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.messages.compile_stats import CompileStats
from palladio.runtime.interface.messages.model_messages import ModelMessage
from palladio.runtime.interface.messages.page_map import PageMap
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.counts import DraftCounts, EventCounts, SnapshotCounts
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace, WaitReason
from palladio.runtime.interface.outputs.step_tokens import PlainTokens
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.input_embeds import EmbedsSpec
from palladio.runtime.interface.request.pooling import EmbeddingSpec


@dataclasses.dataclass(frozen=True, slots=True)
class AbortRequests:
    """Ends these requests and frees their pages, without a further output; unknown ids may have just ended: ignored."""

    request_ids: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class FlushCache:
    """Drops the prefix cache and compiled grammars; refused while requests run. Answered by ControlReply."""

    call_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class GetStats:
    """Asks for EngineStats. Answered by ControlReply. Also the liveness probe: the engine loop must answer it.

    Attributes:
        check_integrity: of pages and slots, if nothing runs; takes time, and no step runs meanwhile.
        pages: with maps of the pages; likewise.
    """

    call_id: int
    check_integrity: bool = False
    pages: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Explain:
    """Asks for the state of requests by their engine-side ids. Answered by ControlReply, without those that ended."""

    call_id: int
    request_ids: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class StartProfile:
    """Begins a trace of the device and the host. Answered by ControlReply."""

    call_id: int
    options: ProfileOptions


@dataclasses.dataclass(frozen=True, slots=True)
class StopProfile:
    """Ends the trace. Answered by ControlReply, whose profile is None while it is still being written: ask again."""

    call_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class Shutdown:
    """Ends the engine loop after the current step."""


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
        total: that it has. usable: what the plan may give away; more is left to the runtime and to others.
        weights, kv_cache: of this model.
        state: of the sampler and the block tables.
        workspace: that the programs need beside these, see workspace_of.
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
        requests, tokens: that the bucket holds.
        steps: how many.
        computed_tokens: of requests; padding_tokens: computed for nobody.
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
        """Of the whole engine: sums, but of new_token_ratio the largest."""
        parts = [vars(part) for part in (*self.ranks, self.unassigned)]
        sums = {name: sum(part[name] for part in parts) for name in parts[0]}
        return RankStats(**{**sums, "new_token_ratio": max(part["new_token_ratio"] for part in parts)})

    @property
    def by_rank(self) -> list[RankStats]:
        """What is shown of each rank: if there is only one, it is the whole engine."""
        return self.ranks if len(self.ranks) > 1 else [self.total]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadProgress:
    """Start-up progress, for the log and /ready; with --compile background it goes on while requests are served.

    Attributes:
        phase: "download" (bytes), "load" (tensors) or "compile" (programs).
        done, total: counts within the phase.
        eta_seconds: that the rest of the phase will take, if it goes on as it did; None: too early to say.
    """

    phase: str
    done: int
    total: int
    eta_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WeightsSize:
    """Attributes:
    num_parameters: without the scales of quantized weights. num_bytes: in memory, over all devices.
    """

    num_parameters: int = 0
    num_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine accepts requests; the limits it chose.

    Attributes:
        context_length: most tokens of prompt and output together that the model takes.
        max_total_tokens: tokens that the KV pool of each data-parallel rank holds, if all layers keep all of them.
        model_type, architecture: from config.json.
        vocab_size: ids at or above this are invalid in prompts, stop_token_ids and logit_bias.
        eos_token_ids: the model's end-of-sequence ids.
        device: platform and kind, as jax names them.
        dtype: of the weights.
        num_programs: compiled programs; compile_seconds: wall time they took; cache_hits: found in the cache.
        attention_kernels: the backend of attention that --attention-backend auto chose, or was told.
        embedding: what it makes of a prompt; None: it generates text.
        num_ranks: data-parallel ranks (--dp-size).
        weights: of the model.
        embeds: the rows that it takes in the place of token embeddings; None: none (--enable-input-embeds).
        longest_request: tokens that fit the pool if a request is alone; None: as many as max_total_tokens. It is more
            where layers have windows, because these keep the newest tokens only.
    """

    context_length: int
    max_total_tokens: int
    max_running_requests: int
    chunked_prefill_size: int
    page_size: int
    model_type: str
    architecture: str
    vocab_size: int
    eos_token_ids: list[int]
    device: str
    dtype: str
    num_programs: int
    compile_seconds: float
    cache_hits: int
    random_seed: int
    startup_seconds: float = 0.0
    attention_kernels: str = ""
    embedding: EmbeddingSpec | None = None
    num_ranks: int = 1
    longest_request: int | None = None
    embeds: EmbedsSpec | None = None
    weights: WeightsSize = WeightsSize()


@dataclasses.dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine cannot go on; the process ends after this.

    Attributes:
        message: one line for the user; config: the cause is a flag or the checkpoint, not a defect.
    """

    message: str
    config: bool


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutputs:
    """What one step gives. Attributes: plain: in order; see PlainTokens.place."""

    outputs: list[TokenOutput]
    plain: list[PlainTokens] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class ControlReply:
    """Attributes:
    message: if it is not `ok`, why; param: the field that is wrong, if it is one.
    """

    call_id: int
    ok: bool
    message: str = ""
    param: str | None = None
    stats: EngineStats | None = None
    requests: list[LiveRequest] = dataclasses.field(default_factory=list)
    profile: ProfileReport | None = None
    count: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class EngineBusy:
    """The engine's thread is at something that may take long. Another thread sends it again and again meanwhile."""

    doing: str


_Question = FlushCache | GetStats | Explain | StartProfile | StopProfile | ModelMessage  # answered by ControlReply
ToEngine = GenerationRequest | AbortRequests | _Question | Shutdown
FromEngine = LoadProgress | EngineReady | EngineFailed | EngineBusy | StepOutputs | ControlReply
