"""ObservabilityConfig: what the server tells about itself and its requests. The CLI flags are these fields."""

import dataclasses
import itertools
from typing import Literal

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.telemetry.logs import LogFormat


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservabilityConfig:
    """Metrics, logs and traces. `/metrics` is always there.

    Attributes:
        num_explained_requests: finished requests that `/v1/requests/{id}/explain` remembers, as long as they have at
            most eight samples on average.
        bucket_time_to_first_token: upper bounds of the histogram's buckets, in seconds, ascending.
        bucket_e2e_request_latency: likewise.
        bucket_inter_token_latency: likewise.
        collect_tokens_histogram: histograms of the tokens of prompts and answers, too.
        prompt_tokens_buckets: upper bounds of the first one's buckets, in tokens; switches it on.
        generation_tokens_buckets: of the second one's.
        log_format: of all log lines: text, or one JSON object a line.
        log_requests: log when a request comes and when it ends.
        log_requests_level: how much of it: 0, ids and counts; 1, sampling parameters, too; 2, the beginnings of prompt
            and answer; 3, all of both.
        log_requests_format: of these lines; default: as log_format.
        log_requests_target: stderr, or a file that they are appended to; a new one is for its owner alone to read.
        enable_request_time_stats_logging: log where each finished request's time went.
        enable_trace: send one OpenTelemetry trace a request; needs the extra `otel`.
        otlp_traces_endpoint: the collector that gets them: host:port speaks gRPC, a URL with a path speaks HTTP.
        profile_folder: where `/start_profile` may write; default: a new folder in the temporary directory.

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
        if self.num_explained_requests < 0:
            raise ConfigError(f"--num-explained-requests must be ≥ 0, got {self.num_explained_requests}")
        for flag, bounds in (
            ("--bucket-time-to-first-token", self.bucket_time_to_first_token),
            ("--bucket-e2e-request-latency", self.bucket_e2e_request_latency),
            ("--bucket-inter-token-latency", self.bucket_inter_token_latency),
            ("--prompt-tokens-buckets", self.prompt_tokens_buckets),
            ("--generation-tokens-buckets", self.generation_tokens_buckets),
        ):
            if bounds is not None and not _is_ascending(bounds):
                raise ConfigError(f"{flag} takes ascending positive numbers, got {' '.join(map(str, bounds))!r}")
        if not self.log_requests_target:
            raise ConfigError("--log-requests-target must be stderr or the name of a file")
        if not self.otlp_traces_endpoint:
            raise ConfigError("--otlp-traces-endpoint must be host:port or a URL")
        if self.profile_folder == "":
            raise ConfigError("--profile-folder must be the name of a folder")


def _is_ascending(bounds: tuple[float, ...]) -> bool:
    return bool(bounds) and bounds[0] > 0 and all(a < b for a, b in itertools.pairwise(bounds))
