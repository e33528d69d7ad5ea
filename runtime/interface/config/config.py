"""The engine's configuration: small frozen dataclasses, composed, validated once.

The CLI flags are these fields (SGLang's names and meanings); `Engine(**flags)` takes the same names.
Nothing here imports jax, so the HTTP process can read it.
"""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from palladio.model.config.quantization_flag import QuantizationFlag
from palladio.runtime.interface.config.field_checks import check_fields, check_positive
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.config.kv_events_config import KVEventsSettings
from palladio.runtime.interface.config.parallel_config import ParallelConfig, check_hosts, check_parts
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig, check_speculation
from palladio.runtime.interface.config.user_dirs import user_cache_dir
from palladio.runtime.interface.errors import ConfigError

SchedulePolicy = Literal["fcfs", "lpm", "dfs-weight", "random", "lof", "priority"]

_NO_ENVIRONMENT: Mapping[str, str] = types.MappingProxyType({})
_MAX_SEED = 2**63 - 1  # what jax.random.key takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Model, tokenizer and weights.

    Attributes:
        model_path: Hugging Face model directory, hub id or short name (smollm2); `palladio serve MODEL` is the same. An
            id or name is looked up in the local cache, then downloaded. `default` is the embedded model.
        tokenizer_path: Directory or hub id of the tokenizer. Default: --model-path.
        skip_tokenizer_init: Do not load a tokenizer: requests and answers are token ids only.
        load_format: How weights are read. auto: a converted (Orbax) checkpoint if `palladio convert` wrote one,
            otherwise `*.safetensors`. dummy: random weights made on the device.
        dtype: Data type of weights and activations. auto: bfloat16 on TPU and GPU, float32 on CPU, where weights stay
            bfloat16 if the checkpoint has that and the CPU multiplies it faster. bfloat16 is of weights only on a CPU.
        context_length: Maximum tokens of prompt and output together. Default: the model's limit. Lower it to save KV
            cache.
        trust_remote_code: Run the model repository's own code for the config and the tokenizer (never for the model).
        revision: Branch, tag or commit of a hub id.
        download_dir: Directory for hub downloads. Default: the hub cache.
        json_model_override_args: JSON object merged over config.json. It also replaces the same setting under its other
            name (rope_parameters and rope_scaling, dtype and torch_dtype).
        quantization: Format of the weights in memory; a plain checkpoint is quantized while it loads. int8, fp8: a
            scale per output channel (W8A16). w8a8_int8, w8a8_fp8: projections also round activations. int4: a scale per
            128 inputs, in o_proj of one head (W4A16). Modules can have different formats:
            int4,lm_head=dense,down_proj=int8. awq, gptq and other checkpoint formats must match the checkpoint.
            dequantize: a quantized checkpoint becomes --dtype. Default: the format of the checkpoint.
        is_embedding: Compute embeddings of prompts instead of generating text, or scores and classes with a model that
            has a head for them. Pooling of embeddings is read from modules.json and 1_Pooling/config.json; if absent,
            last-token pooling with L2 normalization.
        enable_input_embeds: Accept `input_embeds` in /generate and `Engine.generate`: prompts of embeddings. Compiles a
            second program for each prefill size.
        weight_version: Name of the weights, which answers and /model_info show; an update of the weights changes it.
    """

    model_path: str
    tokenizer_path: str | None = None
    skip_tokenizer_init: bool = False
    load_format: Literal["auto", "safetensors", "orbax", "dummy"] = "auto"
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    context_length: int | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    download_dir: str | None = None
    json_model_override_args: str = "{}"
    quantization: str | None = None
    is_embedding: bool = False
    enable_input_embeds: bool = False
    weight_version: str = "default"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """KV cache and prefix cache.

    Attributes:
        page_size: Tokens per KV cache page. Default: 16; on a TPU the smallest of 16, 32, 64 and 128 that makes a page
            of at least 32 KiB per layer and device.
        max_total_tokens: KV cache size in tokens, summed over all data-parallel ranks. Default: as many tokens as fit
            next to the weights and the compiled programs.
        mem_fraction_static: Fraction of device memory for weights plus KV cache. Default: 92 % of device memory minus
            compiled-program workspace (50 % of RAM on CPU). Lower it after an out-of-memory error.
        kv_cache_dtype: Data type of the KV cache. auto: that of activations. An 8-bit type holds about twice as many
            tokens: fp8_e4m3 (fp8) and fp8_e5m2 rounded with the checkpoint's scales, if it has any; int8 with a scale
            for each token and head. TPU kernels then need a --page-size that is a multiple of 32.
        disable_radix_cache: Turn the prefix cache off: every prompt is computed in full.
        radix_eviction_policy: Which cached prefixes are evicted first: lru, least recently used; lfu, least often.
        cache_self_check: Fraction of prefix cache hits (0 … 1) to recompute and compare while the engine is idle. A
            difference is logged with the request's id and turns the prefix cache off.
        state_snapshot_bytes: Memory of each device for snapshots, of models whose layers keep states (Qwen3-Next): the
            prefix cache finds a prompt's beginning only where a snapshot was kept; 0 turns it off for such models.
            Default: 20 % of what weights leave, and no more than 4 snapshots for each request that may run.
        state_snapshot_interval: Tokens of a prompt between two such snapshots; a prompt has one at its last full page
            too, and where it departs from an earlier one. Default: the size of a chunk (--chunked-prefill-size).
        kv_events_config: Publish which prefixes are cached, for routers, over ZeroMQ as vLLM and SGLang do: JSON with
            their keys (enable_kv_cache_events, publisher, endpoint, replay_endpoint, topic, buffer_steps, hwm,
            max_queue_size). Whoever reaches the endpoint reads the tokens of all prompts. Default: off.
    """

    page_size: int | None = None
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "bf16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"] = (
        "auto"
    )
    disable_radix_cache: bool = False
    radix_eviction_policy: Literal["lru", "lfu"] = "lru"
    cache_self_check: float = 0.0
    state_snapshot_bytes: int | None = None
    state_snapshot_interval: int | None = None
    kv_events_config: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Scheduling of requests.

    Attributes:
        max_running_requests: Maximum requests decoding at the same time, summed over all data-parallel ranks. Default:
            256 per rank on TPU and GPU, 64 on CPU; fewer where the states of layers (Qwen3-Next) would take more than
            30 % of what weights leave.
        max_queued_requests: Maximum waiting requests; further requests get a 503. Default: no limit.
        max_prefill_tokens: Maximum prompt tokens in one prefill step.
        chunked_prefill_size: Prompts are split into chunks of this many tokens; -1: never. Default: 8192 on GPU, 1024
            on CPU, 2048 on TPU (8192 with experts; on v5e at least 512 a device). Lower it if prompts stall streams.
        schedule_policy: Which waiting request is admitted next: fcfs, the one that has waited longest; lpm, the one
            with the longest cached prefix; dfs-weight, neighbours in the prefix tree, the most requested branch first;
            random; lof, the one with the largest max_tokens; priority, the one with the highest `priority`. Every
            policy but priority gives each eighth turn to the request that has waited longest, so that none starves.
        schedule_low_priority_values_first: With --schedule-policy priority, the lowest value is the most urgent.
        priority_scheduling_preemption_threshold: With --schedule-policy priority, a waiting request preempts a running
            one if its priority is higher by more than this.
        schedule_conservativeness: Scales the KV cache reserved for the future output of running requests. Raise it
            above 1 if requests are often retracted (preempted).
        enable_mixed_chunk: Prefill and decode share a step. Default: on, except on CPU.
        disable_mixed_chunk: Prefill and decode alternate.
        num_continuous_decode_steps: Decode steps per program call, before the host reads their tokens. Higher values
            hide host overhead but waste steps after a request finishes. Default: 1, but up to 4 in steps of at most 4
            requests, one event for each token, of a small model on CPU.
        background_slowdown: How much batch lines may slow other requests down, as a fraction (0.15: 15 %). 0: batch
            lines run only while the server is otherwise idle, and in the padding of other requests' steps.
        request_timeout: Timeout in seconds of requests that set no `timeout`; after it a request ends with an error.
            Batch lines are exempt. Default: no timeout.
        disable_overlap_schedule: Read each step's tokens before dispatching the next step. Slower, with the same
            tokens.
    """

    max_running_requests: int | None = None
    max_queued_requests: int | None = None
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int | None = None
    schedule_policy: SchedulePolicy = "fcfs"
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_mixed_chunk: bool = False
    num_continuous_decode_steps: int | None = None
    background_slowdown: float = 0.15
    request_timeout: float | None = None
    disable_overlap_schedule: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """Execution: device, kernels, compilation.

    Attributes:
        device: Platform to run on. auto: the first one that jax finds. cuda and gpu are the same.
        attention_backend: Attention kernels. auto: chosen by platform and model. tpu, gpu_triton and gpu_mosaic (Hopper
            GPUs): Pallas kernels, which run interpreted, and slowly, on any other device. cpu_native: C++, see
            --cpu-kernels. xla: the portable implementation. reference: plain jnp, for tests.
        cpu_kernels: Kernels of a CPU for decode steps, attention, and products with 16-bit or int8 weights.
            native: a small C++ library, compiled at the first start and kept beside the compilation cache. xla: XLA's
            own operations. auto: native for models of hidden size 128 or more and for int8 weights with a scale per
            channel, where a C++ compiler is on PATH; else, and with --deterministic, xla. The log says which.
        compilation_cache_dir: Persistent compilation cache. "" turns it off. Default: xla in PALLADIO_CACHE_DIR, else
            in XDG_CACHE_HOME/palladio, else in ~/.cache/palladio. Only the command line reads these variables; offline,
            the default is ~/.cache/palladio/xla.
        compile: When programs are compiled. full: all of them before the first request. background: the few programs
            that can serve any request first, then the others while the server takes requests, one by one. lazy: each
            program when a step first needs it; that step waits. auto: background on a CPU, else full; full with several
            hosts.
        compiled_dir: Directory of exported programs, written by `palladio compile`; a program found there is loaded
            instead of compiled. Not with several hosts. Use only a directory that you trust as much as your code.
        fail_on_recompile: Stop the engine when a step compiles an unexpected program, instead of counting and logging
            it.
        cuda_graph_bs: Decode batch sizes to compile (on a GPU, one CUDA graph each); a smaller batch is padded to the
            next size. --max-running-requests (per data-parallel rank) is always included; larger sizes are ignored.
            Default: powers of two; on a GPU from 2 on, because products of one row are slow there.
        cuda_graph_max_bs: Largest batch size to compile, besides --max-running-requests. A smaller value starts faster
            but pads larger batches more.
        deterministic: Make greedy tokens and logprobs bitwise independent of the other requests, of prompt chunking, of
            retraction and of the prefix cache. Every step runs in one fixed shape, which is slower.
        random_seed: Seed from which requests without a `seed` get theirs. Default: random, printed at start.
        decode_log_interval: Forward passes of decode steps between two "Decode batch." log lines.
    """

    device: Literal["auto", "tpu", "gpu", "cuda", "cpu"] = "auto"
    attention_backend: Literal["auto", "tpu", "gpu_triton", "gpu_mosaic", "cpu_native", "xla", "reference"] = "auto"
    cpu_kernels: Literal["auto", "native", "xla"] = "auto"
    compilation_cache_dir: str | None = None
    compile: Literal["auto", "full", "background", "lazy"] = "auto"
    compiled_dir: str | None = None
    fail_on_recompile: bool = False
    cuda_graph_bs: tuple[int, ...] | None = None
    cuda_graph_max_bs: int | None = None
    deterministic: bool = False
    random_seed: int | None = None
    decode_log_interval: int = 40

    def __post_init__(self) -> None:
        check_fields(self)

    def cache_path(self, environment: Mapping[str, str] = _NO_ENVIRONMENT) -> Path | None:
        """Where compiled programs are kept; None: nowhere.

        Args:
            environment: see user_cache_dir.
        """
        if self.compilation_cache_dir is None:
            return user_cache_dir(environment) / "xla"
        return Path(self.compilation_cache_dir).expanduser() if self.compilation_cache_dir else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurvivalConfig:
    """Failures and restarts.

    Attributes:
        max_engine_restarts: How often per hour the server restarts a failed engine. 0: never. Offline, and with several
            hosts, a failed engine is not restarted.
        watchdog_timeout: Seconds after which an unfinished step counts as hung; compiling and writing a profile do not
            count. The server then restarts its engine (with several hosts, it stops the engine); offline, it only
            prints the stacks. 0: no watchdog.
        health_timeout: Seconds without a sign of life from the engine, which answers between steps, after which /health
            returns 503; compiling does not count. 0: no check.
        crash_dump_folder: Directory where a failing engine saves the last requests, for `palladio replay`, and the
            stacks of a hung step. Default: no dumps. The files contain prompts and outputs in plain text.
    """

    max_engine_restarts: int = 3
    watchdog_timeout: float = 300.0
    health_timeout: float = 30.0
    crash_dump_folder: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The whole configuration of the engine process.

    Raises:
        ConfigError: a value has the wrong type or is out of range; the message names the flag.
    """

    source: ModelSource
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    execution: ExecutionConfig = ExecutionConfig()
    parallel: ParallelConfig = ParallelConfig()
    survival: SurvivalConfig = SurvivalConfig()
    grammar: GrammarConfig = GrammarConfig()
    speculative: SpeculativeConfig = SpeculativeConfig()

    def __post_init__(self) -> None:
        check_fields(self)
        cache, scheduler, execution = self.cache, self.scheduler, self.execution
        check_positive("--page-size", cache.page_size)
        check_positive("--max-total-tokens", cache.max_total_tokens)
        check_positive("--state-snapshot-interval", cache.state_snapshot_interval)
        if cache.state_snapshot_bytes is not None and cache.state_snapshot_bytes < 0:
            raise ConfigError(f"--state-snapshot-bytes must be at least 0, got {cache.state_snapshot_bytes}")
        check_positive("--context-length", self.source.context_length)
        check_positive("--max-running-requests", scheduler.max_running_requests)
        check_positive("--max-queued-requests", scheduler.max_queued_requests)
        check_positive("--max-prefill-tokens", scheduler.max_prefill_tokens)
        check_positive("--num-continuous-decode-steps", scheduler.num_continuous_decode_steps)
        check_positive("--decode-log-interval", execution.decode_log_interval)
        if scheduler.chunked_prefill_size not in (None, -1):
            check_positive("--chunked-prefill-size", scheduler.chunked_prefill_size)
        if cache.mem_fraction_static is not None and not 0.0 < cache.mem_fraction_static <= 1.0:
            raise ConfigError(f"--mem-fraction-static must be in (0, 1], got {cache.mem_fraction_static}")
        if not 0.0 <= cache.cache_self_check <= 1.0:
            raise ConfigError(f"--cache-self-check must be in 0 … 1, got {cache.cache_self_check}")
        if scheduler.enable_mixed_chunk and scheduler.disable_mixed_chunk:
            raise ConfigError("--enable-mixed-chunk and --disable-mixed-chunk contradict each other: give one of them")
        if scheduler.request_timeout is not None and not 0.0 < scheduler.request_timeout < float("inf"):
            raise ConfigError(
                f"--request-timeout must be a positive number of seconds, got {scheduler.request_timeout}"
            )
        for size in execution.cuda_graph_bs or ():
            check_positive("--cuda-graph-bs", size)
        check_positive("--cuda-graph-max-bs", execution.cuda_graph_max_bs)
        for flag, is_given in (
            ("--num-continuous-decode-steps", (scheduler.num_continuous_decode_steps or 1) > 1),
            ("--cuda-graph-bs", execution.cuda_graph_bs is not None),
            ("--cuda-graph-max-bs", execution.cuda_graph_max_bs is not None),
        ):
            if execution.deterministic and is_given:
                raise ConfigError(f"--deterministic runs all steps in one shape: leave {flag} out")
            if self.source.is_embedding and is_given:
                raise ConfigError(f"--is-embedding has no decode steps: leave {flag} out")
        if execution.deterministic:
            self._check_cpu_kernels()
        if self.source.enable_input_embeds and self.source.is_embedding:
            raise ConfigError("--is-embedding generates no text: leave --enable-input-embeds out")
        if not 0.0 <= scheduler.background_slowdown < float("inf"):
            raise ConfigError(f"--background-slowdown must be ≥ 0, got {scheduler.background_slowdown}")
        if scheduler.priority_scheduling_preemption_threshold < 0:
            raise ConfigError(
                "--priority-scheduling-preemption-threshold must be ≥ 0 (below it, requests of equal priority would "
                f"preempt each other forever), got {scheduler.priority_scheduling_preemption_threshold}"
            )
        if not 0.0 <= scheduler.schedule_conservativeness < float("inf"):
            raise ConfigError(f"--schedule-conservativeness must be ≥ 0, got {scheduler.schedule_conservativeness}")
        if execution.random_seed is not None and not 0 <= execution.random_seed <= _MAX_SEED:
            raise ConfigError(f"--random-seed must be in 0 … {_MAX_SEED}, got {execution.random_seed}")
        survival = self.survival
        if survival.max_engine_restarts < 0:
            raise ConfigError(f"--max-engine-restarts must be ≥ 0, got {survival.max_engine_restarts}")
        for flag, seconds in (
            ("--watchdog-timeout", survival.watchdog_timeout),
            ("--health-timeout", survival.health_timeout),
        ):
            if not 0.0 <= seconds < float("inf"):
                raise ConfigError(f"{flag} must be a number of seconds ≥ 0 (0: off), got {seconds}")
        if survival.crash_dump_folder == "":
            raise ConfigError("--crash-dump-folder must not be empty; leave it out to write no dumps")
        check_positive("--tp-size", self.parallel.tp_size)
        check_positive("--ep-size", self.parallel.ep_size)
        check_positive("--dp-size", self.parallel.dp_size)
        check_parts(self.parallel)
        check_speculation(self.speculative, scheduler.num_continuous_decode_steps or 1, self.source.is_embedding)
        self._check_ranks()
        if self.source.quantization is not None:
            QuantizationFlag.of(self.source.quantization)
        check_hosts(self.parallel)
        events = KVEventsSettings.of(cache.kv_events_config, self.parallel.dp_size)
        if events is not None and cache.disable_radix_cache:
            raise ConfigError("--kv-events-config tells of the prefix cache: leave --disable-radix-cache out")
        if self.parallel.num_hosts > 1 and execution.compiled_dir is not None:
            raise ConfigError("--compiled-dir has programs for one host: leave it out with --nnodes")

    def _check_cpu_kernels(self) -> None:
        kernels, backend = self.execution.cpu_kernels, self.execution.attention_backend
        if kernels == "native" or backend == "cpu_native":
            flag = "--cpu-kernels native" if kernels == "native" else "--attention-backend cpu_native"
            raise ConfigError(
                f"{flag} rounds a token alone and in a chunk differently: leave --deterministic or it out"
            )

    def _check_ranks(self) -> None:
        num_ranks, max_running = self.parallel.dp_size, self.scheduler.max_running_requests
        if max_running is not None and max_running % num_ranks:
            low = max_running - max_running % num_ranks
            fitting = f"{low} or {low + num_ranks}" if low else f"{num_ranks}"
            raise ConfigError(
                f"--max-running-requests {max_running} counts all data-parallel ranks, so it must be a multiple of "
                f"--dp-size {num_ranks}: use {fitting}"
            )

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> Self:
        """Builds from flat flag names (underscores), as `Engine(**flags)` gets them.

        Raises:
            ConfigError: an unknown name, or a bad value.
        """
        groups: dict[str, tuple[Any, dict[str, Any]]] = {
            group.name: (group.type, {}) for group in dataclasses.fields(cls)
        }
        owner = {field.name: name for name, (kind, _) in groups.items() for field in dataclasses.fields(kind)}
        for flag, value in flags.items():
            if flag not in owner:
                raise ConfigError(f"unknown engine option {flag!r}; known: {', '.join(sorted(owner))}")
            groups[owner[flag]][1][flag] = tuple(value) if isinstance(value, list) else value
        if "model_path" not in groups["source"][1]:
            raise ConfigError("model_path is required")
        return cls(**{name: kind(**values) for name, (kind, values) in groups.items()})

    def flags(self) -> dict[str, Any]:
        """Flag name (underscores) → value: what `from_flags` builds the same config from."""
        return {name: value for group in vars(self).values() for name, value in vars(group).items()}
