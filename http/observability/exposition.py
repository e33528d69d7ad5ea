"""The text of /metrics: the front's own counts and the engine's snapshot, under SGLang's names and ours.

`sglang:` names mean what they mean there, so that its dashboards and routers work; what only exists here is
`palladio:`. A restarted engine begins to count anew, as Prometheus expects of counters.

Where there are several groups of devices, what each has of its own is told group by group, with SGLang's label
`dp_rank`, and not once more as a sum: whoever adds up the samples of a metric, as its dashboards do, would count twice.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from palladio.http.observability.front_metrics import FrontMetrics
from palladio.runtime.interface.messages import EngineReady, EngineStats, HistogramData, RankStats

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Labels = Mapping[str, str]

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
    """The metrics' text and its content type. Args: accept: the request's Accept header."""
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
        write = _Writer(snapshot.model_name)
        yield write.gauge("palladio:engine_up", "1 while the engine accepts requests and responds", snapshot.is_up)
        yield write.counter("palladio:engine_restarts", "Engine restarts after a failure", snapshot.num_restarts)
        yield from _front(write, snapshot.front)
        if snapshot.info is not None:
            yield from _limits(write, snapshot.info)
        if snapshot.stats is not None:
            yield from _load(write, snapshot.stats)
            yield from _cache(write, snapshot.stats)
            yield from _steps(write, snapshot.stats)
            yield from _programs(write, snapshot.stats)


class _Writer:
    """Makes families whose samples all carry the model's name."""

    def __init__(self, model_name: str) -> None:
        self._model = {"model_name": model_name}

    def gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        return self.gauges(name, text, [({}, value)])

    def gauges(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text)
        for labels, value in values:
            family.add_sample(name, {**self._model, **labels}, float(value))
        return family

    def counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        return self.counters(name, text, [({}, value)])

    def counters(self, name: str, text: str, values: Iterable[tuple[Labels, float]]) -> CounterMetricFamily:
        """Args: name: without `_total`."""
        family = CounterMetricFamily(name, text)
        for labels, value in values:
            family.add_sample(f"{name}_total", {**self._model, **labels}, float(value))
        return family

    def histogram(self, name: str, text: str, data: HistogramData) -> HistogramMetricFamily:
        return self.histograms(name, text, [({}, data)])

    def histograms(
        self, name: str, text: str, all_data: Iterable[tuple[Labels, HistogramData]]
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text)
        for labels, data in all_data:
            bounds = [*map(_bound, data.bounds), "+Inf"]
            reached = list(itertools.accumulate(data.counts))
            own = {**self._model, **labels}
            for bound, count in zip(bounds, reached, strict=True):
                family.add_sample(f"{name}_bucket", {**own, "le": bound}, count)
            family.add_sample(f"{name}_count", own, reached[-1])
            family.add_sample(f"{name}_sum", own, data.total)
        return family


def _bound(value: float) -> str:
    return repr(float(value))


def _front(write: _Writer, front: FrontMetrics) -> Iterator[Family]:
    histogram, totals = write.histogram, front.totals
    yield histogram(
        "sglang:time_to_first_token_seconds", "From a request's arrival to its first token", front.first_token.data()
    )
    yield histogram(
        "sglang:inter_token_latency_seconds", "Time between two tokens of a sample", front.inter_token.data()
    )
    yield histogram(
        "sglang:request_time_per_output_token_seconds",
        "Mean time per output token of a sample, after its first token",
        front.per_token.data(),
    )
    yield histogram(
        "sglang:e2e_request_latency_seconds", "From a request's arrival to a sample's end", front.whole_request.data()
    )
    yield histogram("sglang:queue_time_seconds", "From a request's arrival to its admission", front.queue.data())
    yield write.histograms(
        "sglang:per_stage_req_latency_seconds",
        "Time of a sample in each stage",
        [({"stage": name}, stage.data()) for name, stage in front.stages.items()],
    )
    if front.prompt_tokens is not None:
        yield histogram("sglang:prompt_tokens_histogram", "Prompt tokens per request", front.prompt_tokens.data())
    if front.generation_tokens is not None:
        yield histogram(
            "sglang:generation_tokens_histogram", "Generated tokens per sample", front.generation_tokens.data()
        )
    for name, text in (
        ("prompt_tokens", "Prompt tokens of finished requests"),
        ("generation_tokens", "Generated tokens"),
        ("cached_tokens", "Prompt tokens found in the prefix cache"),
    ):
        yield write.counter(f"sglang:{name}", text, totals[name])
    yield write.counter("sglang:num_requests", "Finished requests", totals["requests"])
    yield write.counter("sglang:num_aborted_requests", "Aborted requests", totals["aborted_requests"])
    yield write.counters(
        "sglang:http_requests",
        "HTTP requests",
        [({"endpoint": path, "method": method}, count) for (path, method), count in front.http_requests.items()],
    )
    yield write.counters(
        "sglang:http_responses",
        "HTTP responses by status",
        [
            ({"endpoint": path, "method": method, "status_code": str(status)}, count)
            for (path, method, status), count in front.http_responses.items()
        ],
    )
    yield write.gauge("sglang:http_requests_active", "HTTP requests in progress", front.http_active)


def _limits(write: _Writer, info: EngineReady) -> Iterator[Family]:
    labels: list[Labels] = [{}] if info.num_ranks == 1 else [_rank(rank) for rank in range(info.num_ranks)]
    sizes = [(own, float(info.max_total_tokens)) for own in labels]
    yield write.gauges("sglang:max_total_num_tokens", "Capacity of the KV cache in tokens", sizes)
    yield write.gauge("sglang:context_len", "Maximum tokens of prompt and output together", info.context_length)
    yield write.gauge("sglang:page_size", "Tokens per KV cache page", info.page_size)
    yield write.gauge("palladio:max_running_requests", "Maximum number of running requests", info.max_running_requests)
    yield write.gauge("sglang:startup_time_seconds", "Time the engine took to start", info.startup_seconds)


def _rank(rank: int) -> Labels:
    return {"dp_rank": str(rank)}


def _parts(stats: EngineStats) -> list[tuple[Labels, RankStats]]:
    """The data-parallel ranks with their labels; or, if there is only one, the whole engine without a label."""
    has_ranks = len(stats.ranks) > 1
    return [(_rank(number) if has_ranks else {}, rank) for number, rank in enumerate(stats.by_rank)]


def _load(write: _Writer, stats: EngineStats) -> Iterator[Family]:
    parts = _parts(stats)

    def gauge(name: str, text: str, value: Callable[[RankStats], float], *more: tuple[Labels, float]) -> Family:
        return write.gauges(f"sglang:{name}", text, [*((labels, value(part)) for labels, part in parts), *more])

    waiting = [({"dp_rank": _NO_RANK}, float(stats.unassigned.num_waiting))] if len(stats.ranks) > 1 else []
    yield gauge("num_running_reqs", "Running requests", lambda part: part.num_running)
    yield gauge("num_queue_reqs", "Waiting requests", lambda part: part.num_waiting, *waiting)
    yield gauge(
        "num_used_tokens",
        "KV cache tokens used by running requests, in whole pages",
        lambda part: part.num_used_tokens,
    )
    yield gauge(
        "token_usage",
        "Share of the KV cache used by running requests",
        lambda part: _share(part.num_used_tokens, part.num_total_tokens),
    )
    yield gauge(
        "num_retracted_reqs",
        "Retracted (preempted) requests waiting to resume",
        lambda part: part.num_retracted_waiting,
    )
    yield gauge(
        "new_token_ratio",
        "Share of max_tokens that a request is expected to use",
        lambda part: part.new_token_ratio,
    )
    yield gauge(
        "gen_throughput",
        "Output tokens per second over the last logged interval",
        lambda part: part.last_gen_throughput if part.num_running else 0.0,
    )
    yield write.counters(
        "sglang:num_retracted_requests",
        "Retractions (preemptions) of requests",
        [(labels, part.num_retractions) for labels, part in parts],
    )


def _cache(write: _Writer, stats: EngineStats) -> Iterator[Family]:
    parts = _parts(stats)
    yield write.gauges(
        "sglang:cache_hit_rate",
        "Share of prompt tokens found in the prefix cache",
        [(labels, _share(part.num_hit_tokens, part.num_prompt_tokens)) for labels, part in parts],
    )
    yield write.counters(
        "sglang:evicted_tokens",
        "Tokens evicted from the prefix cache",
        [(labels, part.num_evicted_tokens) for labels, part in parts],
    )
    yield write.gauge(
        "palladio:cache_enabled", "Whether the prefix cache is on; 0 after a failed self-check", stats.cache_enabled
    )
    yield write.gauges(
        "palladio:cached_tokens_held",
        "Tokens in the prefix cache",
        [(labels, part.num_cached_tokens) for labels, part in parts],
    )
    yield write.counter(
        "palladio:cache_self_checks", "Prefix cache hits that were recomputed as a check", stats.num_self_checks
    )
    yield write.counter(
        "palladio:cache_self_check_failures",
        "Prefix cache self-checks that failed (a bug)",
        stats.num_self_check_failures,
    )


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0


def _steps(write: _Writer, stats: EngineStats) -> Iterator[Family]:
    kinds = {kind: [step for step in stats.steps if step.kind == kind] for kind in ("decode", "prefill")}
    computed = {kind: sum(step.computed_tokens for step in steps) for kind, steps in kinds.items()}
    padding = {kind: sum(step.padding_tokens for step in steps) for kind, steps in kinds.items()}
    yield write.counters(
        "palladio:bucket_selected",
        "Steps by bucket",
        [
            ({"kind": step.kind, "requests": str(step.requests), "tokens": str(step.tokens)}, step.steps)
            for step in stats.steps
        ],
    )
    yield write.counters(
        "palladio:computed_tokens", "Tokens computed by steps", [({"kind": kind}, n) for kind, n in computed.items()]
    )
    yield write.counters(
        "palladio:padding_tokens",
        "Padding tokens computed to fill buckets",
        [({"kind": kind}, count) for kind, count in padding.items()],
    )
    yield write.gauges(
        "palladio:padding_ratio",
        "Share of padding since the start",
        [({"kind": kind}, n / (n + computed[kind]) if n else 0.0) for kind, n in padding.items()],
    )
    yield write.histogram(
        "palladio:device_idle_seconds",
        "Time the device was idle between two steps while there was work",
        stats.device_idle,
    )


def _programs(write: _Writer, stats: EngineStats) -> Iterator[Family]:
    compile_stats, memory = stats.compile, dataclasses.asdict(stats.memory)
    programs = compile_stats.programs
    yield write.gauge("palladio:programs", "Programs that the engine needs in all", compile_stats.num_programs)
    yield write.counters(
        "palladio:compile",
        "Programs built, by how",
        [({"program": program.name, "result": program.result}, 1) for program in programs],
    )
    yield write.counters(
        "palladio:compile_seconds",
        "Time spent building programs, including tracing",
        [({"program": program.name, "result": program.result}, program.seconds) for program in programs],
    )
    yield write.counter(
        "palladio:compile_cache_hits", "Programs found in the compilation cache", compile_stats.count("hit")
    )
    yield write.counter("palladio:compile_wait_seconds", "Time steps waited for programs", compile_stats.wait_seconds)
    yield write.counter(
        "palladio:compiles_after_ready",
        "Programs compiled by steps after start-up (a bug)",
        stats.num_compiles_after_ready,
    )
    yield write.gauges(
        "palladio:hbm_bytes",
        "Planned memory of a device",
        [({"kind": kind}, value) for kind, value in memory.items() if kind != "programs"],
    )
