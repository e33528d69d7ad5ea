"""What the front and the engine say to each other; plain dataclasses, encoded by msgspec across the process border."""

import dataclasses

from palladio.runtime.outputs import TokenOutput
from palladio.runtime.request_options import RequestOptions
from palladio.runtime.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True, slots=True)
class AddRequest:
    """One sample to generate. `params.max_tokens` and `params.seed` are set, `params.n` is 1.

    Attributes:
        stop_token_ids: all ids that end it: the model's end-of-sequence ids (unless ignore_eos) and the request's.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    stop_token_ids: list[int]
    received: float
    options: RequestOptions = dataclasses.field(default_factory=RequestOptions)


@dataclasses.dataclass(frozen=True, slots=True)
class AbortRequests:
    """Ends these requests and frees their pages, without a further output; unknown ids may have just ended: ignored."""

    request_ids: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class FlushCache:
    """Drops the prefix cache; refused while requests run. Answered by ControlReply."""

    call_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class GetStats:
    """Asks for EngineStats. Answered by ControlReply. Also the liveness probe: the engine loop must answer it."""

    call_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class Shutdown:
    """Ends the engine loop after the current step."""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheStats:
    """The prefix cache, since the engine started.

    Attributes:
        enabled: False with --disable-radix-cache, and after a self-check that failed.
        num_cached_tokens: tokens that it holds now, in use or not.
        num_prompt_tokens: of the requests that looked for a prefix.
        num_hit_tokens: of those, found.
        num_evicted_tokens: dropped to make room.
        num_self_checks, num_self_check_failures: of --cache-self-check.
    """

    enabled: bool = False
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_tokens: int = 0
    num_self_checks: int = 0
    num_self_check_failures: int = 0


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
class EngineStats:
    """A snapshot of the running engine, for /get_server_info, tests and metrics.

    Attributes:
        num_running, num_waiting: requests.
        num_used_tokens, num_total_tokens: of the KV pool, in whole pages; what only the prefix cache holds is not used.
        last_gen_throughput: output tokens per second, over the last logged decode interval.
        num_compiles_after_ready: programs that steps compiled; anything but 0 is a defect.
        integrity_error: what check_integrity finds wrong; looked for only while nothing runs.
        cache: the prefix cache.
        device_idle: seconds between the end of one step and the dispatch of the next, while there was work, as far as
            the host can tell: 0 where the next step was dispatched before the one before it had ended.
    """

    num_running: int
    num_waiting: int
    num_used_tokens: int
    num_total_tokens: int
    last_gen_throughput: float
    num_compiles_after_ready: int
    integrity_error: str | None
    cache: CacheStats = CacheStats()
    device_idle: HistogramData = dataclasses.field(default_factory=HistogramData)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadProgress:
    """Start-up progress, for the log and /ready.

    Attributes:
        phase: "load" (tensors) or "compile" (programs).
        done, total: counts within the phase.
    """

    phase: str
    done: int
    total: int


@dataclasses.dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine accepts requests; the limits it settled on.

    Attributes:
        context_length: most tokens of prompt and output together that the model takes.
        max_total_tokens: tokens that the KV pool holds; no request can be longer either.
        model_type, architecture: from config.json.
        vocab_size: ids at or above this are invalid in prompts, stop_token_ids and logit_bias.
        eos_token_ids: the model's end-of-sequence ids.
        device: platform and kind, as jax names them.
        dtype: of the weights.
        num_programs: compiled programs; compile_seconds: wall time they took; cache_hits: found in the cache.
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
    outputs: list[TokenOutput]


@dataclasses.dataclass(frozen=True, slots=True)
class ControlReply:
    call_id: int
    ok: bool
    message: str = ""
    stats: EngineStats | None = None


ToEngine = AddRequest | AbortRequests | FlushCache | GetStats | Shutdown
FromEngine = LoadProgress | EngineReady | EngineFailed | StepOutputs | ControlReply
