"""The text of /metrics: the front's own counts and the engine's snapshot, under SGLang's names and ours.

`sglang:` names mean what they mean there, so that its dashboards and routers work; what only exists here is
`palladio:`. A restarted engine begins to count anew, as Prometheus expects of counters.

With several data-parallel ranks, each rank has its own samples, with SGLang's label `dp_rank`. There is no sample of
the sum: SGLang's dashboards add up all samples of a metric, and would count twice.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from palladio.http.observability.metrics.front_metrics import FRONT_METRICS
from palladio.http.observability.metrics.metric import Family, Labels, Metric, Samples, families, one
from palladio.http.observability.metrics.router_metrics import ROUTER_LIMITS, ROUTER_METRICS
from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.messages.engine_stats import BucketSteps, EngineStats, RankStats

_NO_RANK = "(none)"  # the dp_rank of requests that wait, and have no rank yet


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a scrape shows.

    Attributes:
        model_name: the label of every sample.
        is_up: the engine takes requests, and answers.
        info: None: it has not been ready yet. stats: None: it does not answer now.
        num_restarts: of the engine.
    """

    model_name: str
    is_up: bool
    front: FrontMetrics
    info: EngineReady | None
    stats: EngineStats | None
    num_restarts: int


def expose(snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """Return the metrics' text and its content type.

    Args:
        accept: the request's Accept header.
    """
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Family]:
        return ()  # names are not checked for duplicates: this is the registry's only collector

    def collect(self) -> Iterator[Family]:
        snapshot = self._snapshot
        labels = {"model_name": snapshot.model_name}
        yield from families(SERVER_METRICS, snapshot, labels)
        yield from families(FRONT_METRICS, snapshot.front, labels)
        yield from families(LIMIT_METRICS, snapshot.info, labels)
        yield from families(ENGINE_METRICS, snapshot.stats, labels)
        yield from families(ROUTER_LIMITS, snapshot.info, labels)
        yield from families(ROUTER_METRICS, snapshot.stats, labels)


def _per_rank(read: Callable[[RankStats], float]) -> Callable[[EngineStats], Samples]:
    """A value of each data-parallel rank; if there is only one, of the whole engine without a label."""
    return lambda stats: [(labels, read(part)) for labels, part in _parts(stats)]


def _parts(stats: EngineStats) -> list[tuple[Labels, RankStats]]:
    """The data-parallel ranks with their labels; or, if there is only one, the whole engine without a label."""
    has_ranks = len(stats.ranks) > 1
    return [(_rank(number) if has_ranks else {}, rank) for number, rank in enumerate(stats.by_rank)]


def _rank(rank: int) -> Labels:
    return {"dp_rank": str(rank)}


def _capacities(info: EngineReady) -> Samples:
    labels: list[Labels] = [{}] if info.num_ranks == 1 else [_rank(rank) for rank in range(info.num_ranks)]
    return [(own, info.max_total_tokens) for own in labels]


def _waiting(stats: EngineStats) -> Samples:
    parts: list[tuple[Labels, float]] = [(labels, part.num_waiting) for labels, part in _parts(stats)]
    if len(stats.ranks) > 1:
        parts.append(({"dp_rank": _NO_RANK}, stats.unassigned.num_waiting))
    return parts


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0


def _per_kind(read: Callable[[int, int], float]) -> Callable[[EngineStats], Samples]:
    """Make a reader of one value for each kind of step.

    Args:
        read: (computed tokens, tokens of padding) → value.
    """

    def samples(stats: EngineStats) -> Samples:
        verifies = any(step.kind == "verify" for step in stats.steps)
        for kind in ("decode", "prefill", "verify")[: 3 if verifies else 2]:
            steps = [step for step in stats.steps if step.kind == kind]
            computed, padding = sum(step.computed_tokens for step in steps), sum(step.padding_tokens for step in steps)
            yield {"kind": kind}, read(computed, padding)

    return samples


def _bucket(step: BucketSteps) -> Labels:
    return {"kind": step.kind, "requests": str(step.requests), "tokens": str(step.tokens)}


SERVER_METRICS: tuple[Metric[Snapshot], ...] = (
    Metric(
        "gauge",
        "palladio:engine_up",
        "1 while the engine accepts requests and responds",
        one(lambda snapshot: snapshot.is_up),
    ),
    Metric("counter", "palladio:engine_restarts", "Engine restarts after a failure", one(lambda own: own.num_restarts)),
)
LIMIT_METRICS: tuple[Metric[EngineReady], ...] = (
    Metric("gauge", "sglang:max_total_num_tokens", "Capacity of the KV cache in tokens", _capacities),
    Metric(
        "gauge",
        "sglang:context_len",
        "Maximum tokens of prompt and output together",
        one(lambda info: info.context_length),
    ),
    Metric("gauge", "sglang:page_size", "Tokens per KV cache page", one(lambda info: info.page_size)),
    Metric(
        "gauge",
        "palladio:max_running_requests",
        "Maximum number of running requests",
        one(lambda info: info.max_running_requests),
    ),
    Metric(
        "gauge", "sglang:startup_time_seconds", "Time the engine took to start", one(lambda info: info.startup_seconds)
    ),
)
ENGINE_METRICS: tuple[Metric[EngineStats], ...] = (
    Metric("gauge", "sglang:num_running_reqs", "Running requests", _per_rank(lambda part: part.num_running)),
    Metric("gauge", "sglang:num_queue_reqs", "Waiting requests", _waiting),
    Metric(
        "gauge",
        "sglang:num_used_tokens",
        "KV cache tokens used by running requests, in whole pages",
        _per_rank(lambda part: part.num_used_tokens),
    ),
    Metric(
        "gauge",
        "sglang:token_usage",
        "Share of the KV cache used by running requests",
        _per_rank(lambda part: _share(part.num_used_tokens, part.num_total_tokens)),
    ),
    Metric(
        "gauge",
        "sglang:num_retracted_reqs",
        "Retracted (preempted) requests waiting to resume",
        _per_rank(lambda part: part.num_retracted_waiting),
    ),
    Metric(
        "gauge",
        "sglang:new_token_ratio",
        "Share of max_tokens that a request is expected to use",
        _per_rank(lambda part: part.new_token_ratio),
    ),
    Metric(
        "gauge",
        "sglang:gen_throughput",
        "Output tokens per second over the last logged interval",
        _per_rank(lambda part: part.last_gen_throughput if part.num_running else 0.0),
    ),
    Metric(
        "counter",
        "sglang:num_retracted_requests",
        "Retractions (preemptions) of requests",
        _per_rank(lambda part: part.num_retractions),
    ),
    Metric(
        "gauge",
        "sglang:cache_hit_rate",
        "Share of prompt tokens found in the prefix cache",
        _per_rank(lambda part: _share(part.num_hit_tokens, part.num_prompt_tokens)),
    ),
    Metric(
        "counter",
        "sglang:evicted_tokens",
        "Tokens evicted from the prefix cache",
        _per_rank(lambda part: part.num_evicted_tokens),
    ),
    Metric("gauge", "sglang:spec_accept_length", "Tokens a draft row", _per_rank(lambda p: p.drafts.accept_length)),
    Metric("gauge", "sglang:spec_accept_rate", "Share of right drafts", _per_rank(lambda p: p.drafts.accept_rate)),
    Metric("counter", "palladio:draft_rows", "Rows with drafts", _per_rank(lambda part: part.num_draft_rows)),
    Metric("counter", "palladio:draft_tokens", "Room for drafts", _per_rank(lambda part: part.num_draft_tokens)),
    Metric("counter", "palladio:prefill_tokens", "Computed prompt tokens", _per_rank(lambda p: p.num_prefill_tokens)),
    Metric("counter", "palladio:accepted_drafts", "Right drafts", _per_rank(lambda part: part.num_accepted_drafts)),
    Metric("counter", "palladio:kv_event_batches", "Published KV events", _per_rank(lambda p: p.num_event_batches)),
    Metric(
        "counter",
        "palladio:kv_event_drops",
        "How often a subscriber of KV events fell behind and lost some",
        _per_rank(lambda part: part.num_event_drops),
    ),
    Metric(
        "gauge",
        "palladio:cache_enabled",
        "Whether the prefix cache is on; 0 after a failed self-check",
        one(lambda stats: stats.cache_enabled),
    ),
    Metric(
        "gauge",
        "palladio:cached_tokens_held",
        "Tokens in the prefix cache",
        _per_rank(lambda part: part.num_cached_tokens),
    ),
    Metric("gauge", "palladio:snapshots_held", "Snapshots of states", _per_rank(lambda part: part.num_snapshots)),
    Metric("counter", "palladio:snapshot_hits", "Hits at snapshots", _per_rank(lambda part: part.num_snapshot_hits)),
    Metric(
        "counter", "palladio:evicted_snapshots", "Lost to others", _per_rank(lambda part: part.num_evicted_snapshots)
    ),
    Metric(
        "counter",
        "palladio:cache_self_checks",
        "Prefix cache hits that were recomputed as a check",
        one(lambda stats: stats.num_self_checks),
    ),
    Metric(
        "counter",
        "palladio:cache_self_check_failures",
        "Prefix cache self-checks that failed (a bug)",
        one(lambda stats: stats.num_self_check_failures),
    ),
    Metric(
        "counter",
        "palladio:bucket_selected",
        "Steps by bucket",
        lambda stats: [(_bucket(step), step.steps) for step in stats.steps],
    ),
    Metric("counter", "palladio:computed_tokens", "Tokens computed by steps", _per_kind(lambda computed, _: computed)),
    Metric(
        "counter",
        "palladio:padding_tokens",
        "Padding tokens computed to fill buckets",
        _per_kind(lambda _, padding: padding),
    ),
    Metric(
        "gauge",
        "palladio:padding_ratio",
        "Share of padding since the start",
        _per_kind(lambda computed, padding: _share(padding, computed + padding)),
    ),
    Metric(
        "histogram",
        "palladio:device_idle_seconds",
        "Time the device was idle between two steps while there was work",
        one(lambda stats: stats.device_idle),
    ),
    Metric("gauge", "palladio:programs", "Programs that the engine needs", one(lambda s: s.compile.num_programs)),
    Metric(
        "counter",
        "palladio:compile",
        "Programs built, by how",
        lambda stats: [({"program": program.name, "result": program.result}, 1) for program in stats.compile.programs],
    ),
    Metric(
        "counter",
        "palladio:compile_seconds",
        "Time spent building programs, including tracing",
        lambda stats: [
            ({"program": program.name, "result": program.result}, program.seconds) for program in stats.compile.programs
        ],
    ),
    Metric(
        "counter",
        "palladio:compile_cache_hits",
        "Programs found in the compilation cache",
        one(lambda stats: stats.compile.count("hit")),
    ),
    Metric(
        "counter",
        "palladio:compile_wait_seconds",
        "Time steps waited for programs",
        one(lambda stats: stats.compile.wait_seconds),
    ),
    Metric(
        "counter",
        "palladio:compiles_after_ready",
        "Programs compiled by steps after start-up (a bug)",
        one(lambda stats: stats.num_compiles_after_ready),
    ),
    Metric(
        "gauge",
        "palladio:hbm_used_bytes",
        "Memory of the first device in use",
        lambda stats: None if stats.memory_in_use is None else [({}, stats.memory_in_use)],
    ),
    Metric(
        "gauge",
        "palladio:hbm_bytes",
        "Planned memory of a device",
        lambda stats: [
            ({"kind": kind}, value) for kind, value in dataclasses.asdict(stats.memory).items() if kind != "programs"
        ],
    ),
)
