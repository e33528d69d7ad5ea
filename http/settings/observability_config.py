"""ObservabilityConfig: metrics, logs and traces. The CLI flags are these fields."""

import dataclasses
import itertools
from typing import Literal

from palladio.http.settings.rules import require
from palladio.runtime.telemetry.logs import LogFormat


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservabilityConfig:
    """Metrics, logs and traces. `/metrics` is always on.

    Attributes:
        num_explained_requests: Finished requests kept for `/v1/requests/{id}/explain`. With more than eight samples per
            request on average, fewer are kept.
        bucket_time_to_first_token: Upper bounds of the time-to-first-token histogram's buckets, in seconds, ascending.
        bucket_e2e_request_latency: Upper bounds of the request latency histogram's buckets, in seconds, ascending.
        bucket_inter_token_latency: Upper bounds of the inter-token latency histogram's buckets, in seconds, ascending.
        collect_tokens_histogram: Add histograms of prompt and output tokens per request.
        prompt_tokens_buckets: Upper bounds of the prompt token histogram's buckets, ascending. Implies
            --collect-tokens-histogram for it.
        generation_tokens_buckets: Upper bounds of the output token histogram's buckets, ascending. Implies
            --collect-tokens-histogram for it.
        log_format: Format of all log lines: text, or json with one object per line.
        log_requests: Log each request when it arrives and when it ends.
        log_requests_level: Detail of the request log. 0: ids and counts; 1: also sampling parameters; 2: also the
            beginning of prompt and answer; 3: full prompt and answer.
        log_requests_format: Format of the request log. Default: --log-format.
        log_requests_target: stderr, or a file to append the request log to. A new file is readable by its owner only.
        enable_request_time_stats_logging: Log a time breakdown of each finished request.
        enable_trace: Send one OpenTelemetry trace per request. Needs the `otel` extra.
        otlp_traces_endpoint: Trace collector: host:port for gRPC, a URL with a path for HTTP.
        profile_folder: Directory that `/start_profile` may write to. Default: a new folder in the temporary directory.

    Raises:
        ConfigError: a value is out of range; the message names the flag.
    """

    num_explained_requests: int = 1000
    bucket_time_to_first_token: tuple[float, ...] | None = None
    bucket_e2e_request_latency: tuple[float, ...] | None = None
    bucket_inter_token_latency: tuple[float, ...] | None = None
    collect_tokens_histogram: bool = False
    prompt_tokens_buckets: tuple[float, ...] | None = None
    generation_tokens_buckets: tuple[float, ...] | None = None
    log_format: LogFormat = "text"
    log_requests: bool = False
    log_requests_level: Literal[0, 1, 2, 3] = 0
    log_requests_format: LogFormat | None = None
    log_requests_target: str = "stderr"
    enable_request_time_stats_logging: bool = False
    enable_trace: bool = False
    otlp_traces_endpoint: str = "localhost:4317"
    profile_folder: str | None = None

    def __post_init__(self) -> None:
        require(
            self.num_explained_requests >= 0,
            f"--num-explained-requests must be ≥ 0, got {self.num_explained_requests}",
        )
        for flag, bounds in (
            ("--bucket-time-to-first-token", self.bucket_time_to_first_token),
            ("--bucket-e2e-request-latency", self.bucket_e2e_request_latency),
            ("--bucket-inter-token-latency", self.bucket_inter_token_latency),
            ("--prompt-tokens-buckets", self.prompt_tokens_buckets),
            ("--generation-tokens-buckets", self.generation_tokens_buckets),
        ):
            if bounds is not None:
                is_ascending = bool(bounds) and all(a < b for a, b in itertools.pairwise((0.0, *bounds)))
                given = " ".join(map(str, bounds))
                require(is_ascending, f"{flag} takes ascending positive numbers, got {given!r}")
        require(self.log_requests_target != "", "--log-requests-target must be stderr or the name of a file")
        require(self.otlp_traces_endpoint != "", "--otlp-traces-endpoint must be host:port or a URL")
        require(self.profile_folder != "", "--profile-folder must be the name of a folder")
