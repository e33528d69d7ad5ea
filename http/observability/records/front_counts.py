"""FrontMetrics: what the front counts and measures, which records of requests add to."""

import collections

from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.outputs.request_output import RequestTimings
from palladio.runtime.telemetry.histogram import Histogram

# Upper bounds, seconds. They reach from a single short answer to a long one behind a long queue.
FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
WHOLE_REQUEST = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)
BETWEEN_TOKENS = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
QUEUE = (0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 100, 200, 400, 600, 1200)
TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

STAGES = ("queue", "compile_wait", "prefill", "decode", "detokenize")
NO_ROUTE = "(none)"


class FrontMetrics:
    """Attributes:
    first_token, inter_token, per_token, whole_request, queue: histograms of seconds, and stages by name of the stage.
    prompt_tokens, generation_tokens: histograms of tokens; None: not asked for.
    totals: counters by name.
    http_requests: by (endpoint, method); http_responses: by (endpoint, method, status).
    http_active: requests under way.
    warnings: fields of requests that have no effect, by code.
    batch_lines: of batches, by how they ended. live_batches: those that have not ended.
    database_failures: how often the database could not be used, by the code of the error.
    """

    def __init__(self, config: ObservabilityConfig) -> None:
        between = config.bucket_inter_token_latency or BETWEEN_TOKENS
        whole = config.bucket_e2e_request_latency or WHOLE_REQUEST
        self.first_token = Histogram(config.bucket_time_to_first_token or FIRST_TOKEN)
        self.inter_token = Histogram(between)
        self.per_token = Histogram(between)
        self.whole_request = Histogram(whole)
        self.queue = Histogram(QUEUE)
        self.stages = {name: Histogram(whole) for name in STAGES}
        self.prompt_tokens = _tokens(config.prompt_tokens_buckets, config.collect_tokens_histogram)
        self.generation_tokens = _tokens(config.generation_tokens_buckets, config.collect_tokens_histogram)
        self.totals: collections.Counter[str] = collections.Counter()
        self.http_requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self.http_responses: collections.Counter[tuple[str, str, int]] = collections.Counter()
        self.http_active = 0
        self.warnings: collections.Counter[str] = collections.Counter()
        self.batch_lines: collections.Counter[str] = collections.Counter()
        self.live_batches = 0
        self.database_failures: collections.Counter[str] = collections.Counter()

    def follow_database(self, failures: collections.Counter[str]) -> None:
        """The database counts its failures here."""
        self.database_failures = failures

    def note_batches(self, live: int) -> None:
        """Sets how many batches have not ended."""
        self.live_batches = live

    def count_line(self, *, succeeded: bool) -> None:
        """A line of a batch has its result."""
        self.batch_lines["completed" if succeeded else "failed"] += 1

    def begin_http(self) -> None:
        """A request has come."""
        self.http_active += 1

    def end_http(self, endpoint: str, method: str, status: int) -> None:
        """One of those that came has its answer."""
        self.http_active -= 1
        self.http_requests[endpoint, method] += 1
        self.http_responses[endpoint, method, status] += 1

    def note_warning(self, code: str) -> None:
        """A request has a field without effect."""
        self.warnings[code] += 1

    def count_request(self, *, is_aborted: bool) -> None:
        """A request has ended."""
        self.totals["requests"] += 1
        self.totals["aborted_requests"] += is_aborted

    def observe_sample(self, timings: RequestTimings, completion_tokens: int) -> None:
        """A sample has ended."""
        per_token = None
        if timings.decode is not None and completion_tokens > 1:
            per_token = timings.decode / (completion_tokens - 1)
        for histogram, seconds in (
            (self.whole_request, timings.total),
            (self.queue, timings.queue),
            (self.per_token, per_token),
            (self.stages["queue"], timings.queue),
            (self.stages["compile_wait"], timings.compile_wait),
            (self.stages["prefill"], timings.prefill),
            (self.stages["decode"], timings.decode),
            (self.stages["detokenize"], timings.detokenize),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        self.totals["generation_tokens"] += completion_tokens
        if self.generation_tokens is not None:
            self.generation_tokens.observe(completion_tokens)

    def observe_prompt(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt was answered; once, whatever n."""
        self.totals["prompt_tokens"] += prompt_tokens
        self.totals["cached_tokens"] += cached_tokens
        if self.prompt_tokens is not None:
            self.prompt_tokens.observe(prompt_tokens)


def _tokens(bounds: tuple[float, ...] | None, is_wanted: bool) -> Histogram | None:
    return Histogram(bounds or TOKENS) if bounds is not None or is_wanted else None
