"""What the front counts, as metrics."""

from collections.abc import Callable

from palladio.http.observability.metrics.metric import Metric, Samples, one
from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.runtime.telemetry.histogram import Histogram


def _histogram(read: Callable[[FrontMetrics], Histogram | None]) -> Callable[[FrontMetrics], Samples | None]:
    """One of the front's; None: it was not asked for."""

    def samples(front: FrontMetrics) -> Samples | None:
        histogram = read(front)
        return None if histogram is None else [({}, histogram.data())]

    return samples


def _total(name: str) -> Callable[[FrontMetrics], Samples]:
    return lambda front: [({}, front.totals[name])]


FRONT_METRICS: tuple[Metric[FrontMetrics], ...] = (
    Metric(
        "histogram",
        "sglang:time_to_first_token_seconds",
        "From a request's arrival to its first token",
        _histogram(lambda front: front.first_token),
    ),
    Metric(
        "histogram",
        "sglang:inter_token_latency_seconds",
        "Time between two tokens of a sample",
        _histogram(lambda front: front.inter_token),
    ),
    Metric(
        "histogram",
        "sglang:request_time_per_output_token_seconds",
        "Mean time per output token of a sample, after its first token",
        _histogram(lambda front: front.per_token),
    ),
    Metric(
        "histogram",
        "sglang:e2e_request_latency_seconds",
        "From a request's arrival to a sample's end",
        _histogram(lambda front: front.whole_request),
    ),
    Metric(
        "histogram",
        "sglang:queue_time_seconds",
        "From a request's arrival to its admission",
        _histogram(lambda front: front.queue),
    ),
    Metric(
        "histogram",
        "sglang:per_stage_req_latency_seconds",
        "Time of a sample in each stage",
        lambda front: [({"stage": name}, stage.data()) for name, stage in front.stages.items()],
    ),
    Metric(
        "histogram",
        "sglang:prompt_tokens_histogram",
        "Prompt tokens per request",
        _histogram(lambda front: front.prompt_tokens),
    ),
    Metric(
        "histogram",
        "sglang:generation_tokens_histogram",
        "Generated tokens per sample",
        _histogram(lambda front: front.generation_tokens),
    ),
    Metric("counter", "sglang:prompt_tokens", "Prompt tokens of finished requests", _total("prompt_tokens")),
    Metric("counter", "sglang:generation_tokens", "Generated tokens", _total("generation_tokens")),
    Metric("counter", "sglang:cached_tokens", "Prompt tokens found in the prefix cache", _total("cached_tokens")),
    Metric("counter", "sglang:num_requests", "Finished requests", _total("requests")),
    Metric("counter", "sglang:num_aborted_requests", "Aborted requests", _total("aborted_requests")),
    Metric(
        "counter",
        "sglang:http_requests",
        "HTTP requests",
        lambda front: [
            ({"endpoint": path, "method": method}, count) for (path, method), count in front.http_requests.items()
        ],
    ),
    Metric(
        "counter",
        "sglang:http_responses",
        "HTTP responses by status",
        lambda front: [
            ({"endpoint": path, "method": method, "status_code": str(status)}, count)
            for (path, method, status), count in front.http_responses.items()
        ],
    ),
    Metric(
        "counter",
        "palladio:ignored_fields",
        "Fields of requests that had no effect, by the code of their warning",
        lambda front: [({"code": code}, count) for code, count in front.warnings.items()],
    ),
    Metric("gauge", "palladio:live_batches", "Batches that have not ended", one(lambda front: front.live_batches)),
    Metric(
        "counter",
        "palladio:batch_lines",
        "Lines of batches that got a result",
        lambda front: [({"result": result}, count) for result, count in front.batch_lines.items()],
    ),
    Metric(
        "counter",
        "palladio:database_failures",
        "How often the database could not be used, by the code of the error",
        lambda front: [({"code": code}, count) for code, count in front.database_failures.items()],
    ),
    Metric("gauge", "sglang:http_requests_active", "HTTP requests in progress", one(lambda front: front.http_active)),
)
