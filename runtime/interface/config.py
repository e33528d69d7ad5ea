"""The engine's configuration: small frozen dataclasses, composed, validated once.

The CLI flags are these fields (SGLang's names and meanings); `Engine(**flags)` takes the same names.
Nothing here imports jax, so the HTTP process can read it.
"""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.field_checks import check_fields, check_positive
from palladio.runtime.interface.parallel_config import ParallelConfig, check_hosts, check_parts
from palladio.runtime.interface.user_dirs import user_cache_dir

SchedulePolicy = Literal["fcfs", "lpm", "dfs-weight", "random", "lof", "priority"]

_NO_ENVIRONMENT: Mapping[str, str] = types.MappingProxyType({})
MIN_GRAMMAR_CACHE_BYTES = 1 << 24  # what one larger grammar takes, and some small ones
_MAX_SEED = 2**63 - 1  # what jax.random.key takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Which model, and how its weights are read.

    Attributes:
        model_path: a Hugging Face model directory, or a hub id (looked up in the local hub cache, then downloaded).
        tokenizer_path: where the tokenizer is; default: `model_path`.
        skip_tokenizer_init: no tokenizer: only token ids in and out.
        load_format: auto reads what `palladio convert` wrote, where that is what there is, and else `*.safetensors`;
            dummy makes random weights on the device.
        dtype: of weights and activations; auto: bfloat16 on TPU and GPU, float32 on CPU.
        context_length: most tokens of prompt and output together; default: the model's own limit.
        trust_remote_code: run the repository's code for config and tokenizer (never for the model).
        revision: branch, tag or commit of a hub id.
        download_dir: where hub downloads go.
        json_model_override_args: a JSON object merged over config.json; what that says under another name of the same
            value (rope_parameters and rope_scaling, dtype and torch_dtype) gives way.
        is_embedding: make embeddings of prompts instead of generating text; how is read from modules.json and
            1_Pooling/config.json: without them, the last token's normalized hidden state.
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
    is_embedding: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The paged KV cache.

    Attributes:
        page_size: tokens per page.
        max_total_tokens: tokens that the pool holds, of all groups of --dp-size together; default: as many as fit
            beside the weights and the programs.
        mem_fraction_static: share of the device's memory for weights and KV cache together; default: what the programs
            leave of 92 % of it, on CPU of half of the host's memory.
        kv_cache_dtype: of the cache; auto: the model's. In 8 bits twice as many tokens fit, rounded without scales;
            kernels of a TPU then need a --page-size that is a multiple of 32.
        disable_radix_cache: compute every prompt in full, even where an earlier one began alike.
        radix_eviction_policy: which cached prefixes go first when room is needed: those used longest ago (lru) or
            least often (lfu).
        cache_self_check: share of the cache hits (0 … 1) that is computed again while the engine is idle and compared;
            a difference is logged with the request's id and turns the prefix cache off.
    """

    page_size: int = 16
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"] = "auto"
    disable_radix_cache: bool = False
    radix_eviction_policy: Literal["lru", "lfu"] = "lru"
    cache_self_check: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Which requests run when.

    Attributes:
        max_running_requests: most requests decoding at once, in all groups of --dp-size together; default: by platform,
            in each group.
        max_queued_requests: more waiting requests than this are refused with a 503; default: no limit.
        max_prefill_tokens: most prompt tokens in one prefill step.
        chunked_prefill_size: longer prompts are prefilled in chunks of this many tokens; -1: never split;
            default: by platform.
        schedule_policy: which waiting request is admitted next: fcfs, the one that waited longest; lpm, the one with
            the longest cached prefix; dfs-weight, neighbours in the prefix tree, the most asked-for branch first;
            random; lof, the one with the largest max_tokens; priority, the one of the highest `priority`. All but
            priority take the one that waited longest at every eighth turn, so that nobody starves.
        schedule_low_priority_values_first: with the policy priority, the lowest value is the most urgent.
        priority_scheduling_preemption_threshold: with the policy priority, a waiting request takes the place of a
            running one if its priority is higher by more than this.
        schedule_conservativeness: over 1 keeps more pages free for running requests, so fewer are retracted.
        enable_mixed_chunk: decode steps of running requests and prefill share a step; default: on, except on CPU.
        disable_mixed_chunk: prefill and decode take turns instead.
        num_continuous_decode_steps: decode steps that one program runs before the host looks at their tokens; more
            hide the host's work, and waste what is computed after a request's end.
        background_slowdown: how much longer, as a share, requests may take because lines of batches run beside them; 0:
            batches only run while there is nothing else, and in the padding of others' steps.
        request_timeout: seconds after which a request that brings no `timeout` ends with an error, lines of batches
            excepted; default: none.
        disable_overlap_schedule: read each step's tokens before the next one is dispatched (slower; same tokens).
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
    num_continuous_decode_steps: int = 1
    background_slowdown: float = 0.15
    request_timeout: float | None = None
    disable_overlap_schedule: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """How steps are computed and reported.

    Attributes:
        device: auto takes what jax finds first; cuda and gpu mean the same.
        attention_backend: auto picks by platform and by what the model needs; tpu, gpu_triton and gpu_mosaic (Hopper
            GPUs) are Pallas kernels, interpreted where there is no such device (slow); xla is the portable path.
        compilation_cache_dir: persistent cache of compiled programs; "" turns it off; default: xla in
            PALLADIO_CACHE_DIR, else in XDG_CACHE_HOME/palladio, else in ~/.cache/palladio. Only the command line reads
            these variables: offline, the default is ~/.cache/palladio/xla.
        compile: full builds all programs before the first request is taken; background takes requests, a few at once,
            as soon as the few programs that can serve any of them are there, and builds the others meanwhile; lazy
            builds each program when a step first needs it, which then waits for it.
        compiled_dir: directory of exported programs, which `palladio compile` fills: what is found there is loaded, not
            compiled; not with several hosts. Use only a directory that you trust as you trust your code.
        fail_on_recompile: a step that compiles something which was not announced ends the engine, instead of being
            counted and logged.
        cuda_graph_bs: numbers of requests that programs are compiled for (on a GPU, a CUDA graph each): a step of fewer
            is padded to the next one. --max-running-requests, of a group of devices, is always among them, and larger
            ones are left out. Default: powers of two.
        cuda_graph_max_bs: leaves out those over this one, but for --max-running-requests: less to compile, and more
            padding where more requests run.
        deterministic: greedy tokens and logprobs do not depend, to the last bit, on what else runs, how a prompt was
            chunked, retractions or the prefix cache: every step runs in one fixed shape (slower).
        random_seed: root of the seeds of requests that bring none; default: random, printed at start.
        decode_log_interval: decode steps between two "Decode batch." log lines.
    """

    device: Literal["auto", "tpu", "gpu", "cuda", "cpu"] = "auto"
    attention_backend: Literal["auto", "tpu", "gpu_triton", "gpu_mosaic", "xla", "reference"] = "auto"
    compilation_cache_dir: str | None = None
    compile: Literal["full", "background", "lazy"] = "full"
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
    """What happens when the engine fails.

    Attributes:
        max_engine_restarts: how often within an hour the server starts its engine again; 0: never. Offline, and with
            several hosts, a failed engine stays down.
        watchdog_timeout: seconds after which a step that has not ended counts as hung; compiling and writing a profile
            do not count. The server then starts its engine again (with several hosts, it ends it); offline, the stacks
            are printed and nothing else. 0: no watchdog.
        health_timeout: seconds that the engine may take to answer between two steps before /health says 503; compiling
            does not count. 0: /health does not look at that.
        crash_dump_folder: where a failing engine leaves the last requests, for `palladio replay`, and the stacks of a
            hung step; default: nowhere. The files hold prompts and outputs in the clear.
    """

    max_engine_restarts: int = 3
    watchdog_timeout: float = 300.0
    health_timeout: float = 30.0
    crash_dump_folder: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrammarConfig:
    """Outputs that have to be in a grammar: response_format, regex, ebnf, and tool calls that are asked for.

    Attributes:
        grammar_backend: llguidance compiles them; none refuses requests with a grammar.
        constrained_json_whitespace_pattern: a regular expression of what may stand between the tokens of JSON; default:
            up to 64 characters of whitespace.
        constrained_json_disable_any_whitespace: write JSON without whitespace.
        grammar_cache_bytes: of compiled grammars, those that running requests follow and those that are kept for the
            next ones; one grammar may have a quarter of it, and 64 MiB at most.
    """

    grammar_backend: Literal["llguidance", "none"] = "llguidance"
    constrained_json_whitespace_pattern: str | None = None
    constrained_json_disable_any_whitespace: bool = False
    grammar_cache_bytes: int = 268_435_456

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything that the engine process is told.

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

    def __post_init__(self) -> None:
        check_fields(self)
        cache, scheduler, execution = self.cache, self.scheduler, self.execution
        check_positive("--page-size", cache.page_size)
        check_positive("--max-total-tokens", cache.max_total_tokens)
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
            ("--num-continuous-decode-steps", scheduler.num_continuous_decode_steps > 1),
            ("--cuda-graph-bs", execution.cuda_graph_bs is not None),
            ("--cuda-graph-max-bs", execution.cuda_graph_max_bs is not None),
        ):
            if execution.deterministic and is_given:
                raise ConfigError(f"--deterministic runs one shape of step: leave {flag} out")
            if self.source.is_embedding and is_given:
                raise ConfigError(f"--is-embedding has no decode steps: leave {flag} out")
        if not 0.0 <= scheduler.background_slowdown < float("inf"):
            raise ConfigError(f"--background-slowdown must be ≥ 0, got {scheduler.background_slowdown}")
        if scheduler.priority_scheduling_preemption_threshold < 0:
            raise ConfigError(
                "--priority-scheduling-preemption-threshold must be ≥ 0 (below it, requests of one priority would take "
                f"each other's place for ever), got {scheduler.priority_scheduling_preemption_threshold}"
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
        grammar = self.grammar
        if grammar.constrained_json_disable_any_whitespace and grammar.constrained_json_whitespace_pattern is not None:
            raise ConfigError(
                "--constrained-json-disable-any-whitespace and --constrained-json-whitespace-pattern contradict each "
                "other: give one of them"
            )
        if grammar.grammar_cache_bytes < MIN_GRAMMAR_CACHE_BYTES:
            raise ConfigError(
                f"--grammar-cache-bytes must be at least {MIN_GRAMMAR_CACHE_BYTES} (16 MiB), got "
                f"{grammar.grammar_cache_bytes}"
            )
        check_positive("--tp-size", self.parallel.tp_size)
        check_positive("--ep-size", self.parallel.ep_size)
        check_positive("--dp-size", self.parallel.dp_size)
        check_parts(self.parallel)
        self._check_groups()
        check_hosts(self.parallel)
        if self.parallel.num_hosts > 1 and execution.compiled_dir is not None:
            raise ConfigError("--compiled-dir holds programs of one host: leave it out with --nnodes")

    def _check_groups(self) -> None:
        num_groups, max_running = self.parallel.dp_size, self.scheduler.max_running_requests
        if max_running is not None and max_running % num_groups:
            low = max_running - max_running % num_groups
            fitting = f"{low} or {low + num_groups}" if low else f"{num_groups}"
            raise ConfigError(
                f"--max-running-requests {max_running} is of all groups together and does not divide by --dp-size "
                f"{num_groups}: use {fitting}"
            )

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> Self:
        """Builds from flat flag names (underscores), as `Engine(**flags)` gets them.

        Raises:
            ConfigError: an unknown name, or a bad value.
        """
        groups: dict[str, tuple[type, dict[str, Any]]] = {
            "source": (ModelSource, {}),
            "cache": (CacheConfig, {}),
            "scheduler": (SchedulerConfig, {}),
            "execution": (ExecutionConfig, {}),
            "parallel": (ParallelConfig, {}),
            "survival": (SurvivalConfig, {}),
            "grammar": (GrammarConfig, {}),
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
        groups = (self.source, self.cache, self.scheduler, self.execution, self.parallel, self.survival, self.grammar)
        return {name: value for group in groups for name, value in vars(group).items()}
