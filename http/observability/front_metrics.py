"""FrontMetrics: what the HTTP process counts itself. Adding to it costs less than a microsecond."""

import collections

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.request_timings import RequestTimings
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


class CountRequests:
    """Pure ASGI middleware, inside RequestMiddleware."""

    def __init__(self, app: ASGIApp, metrics: FrontMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, method, status = self._metrics, scope["method"], 500  # what the border makes of an exception

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        metrics.http_active += 1
        try:
            await self._app(scope, receive, noting_status)
        finally:
            metrics.http_active -= 1
            endpoint = scope["route"].path.replace(":path", "") if "route" in scope else NO_ROUTE
            known = method if method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH") else "other"
            metrics.http_requests[endpoint, known] += 1
            metrics.http_responses[endpoint, known, status] += 1
