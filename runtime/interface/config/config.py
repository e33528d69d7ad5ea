"""The engine's configuration: small frozen dataclasses, composed, validated once.

The CLI flags are these fields (SGLang's names and meanings); `Engine(**flags)` takes the same names.
Nothing here imports jax, so the HTTP process can read it.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Self

from palladio.model.config.quantization_flag import QuantizationFlag
from palladio.runtime.interface.config.cache_config import CacheConfig
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.config.field_checks import check_fields, check_positive
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.config.kv_events_config import KVEventsSettings
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.parallel_config import ParallelConfig, check_hosts, check_parts
from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig, check_speculation
from palladio.runtime.interface.config.survival_config import SurvivalConfig
from palladio.runtime.interface.errors import ConfigError

_MAX_SEED = 2**63 - 1  # what jax.random.key takes


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
        if cache.radix_eviction_policy == "priority" and scheduler.schedule_policy != "priority":
            raise ConfigError(
                "--radix-eviction-policy priority needs --schedule-policy priority: without it requests have none"
            )
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
        self._check_survival()
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

    def _check_survival(self) -> None:
        survival = self.survival
        if survival.max_engine_restarts < 0:
            raise ConfigError(f"--max-engine-restarts must be ≥ 0, got {survival.max_engine_restarts}")
        for flag, seconds in (
            ("--device-wait", self.execution.device_wait),
            ("--watchdog-timeout", survival.watchdog_timeout),
            ("--health-timeout", survival.health_timeout),
        ):
            if not 0.0 <= seconds < float("inf"):
                raise ConfigError(f"{flag} must be a number of seconds ≥ 0 (0: off), got {seconds}")
        soft = survival.soft_watchdog_timeout
        if soft is not None and not 0.0 < soft < float("inf"):
            raise ConfigError(f"--soft-watchdog-timeout must be a number of seconds > 0, got {soft}")
        if survival.crash_dump_folder == "":
            raise ConfigError("--crash-dump-folder must not be empty; leave it out to write no dumps")

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

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """Flag name (underscores) → annotation of its field."""
        groups = typing.get_type_hints(cls).values()
        return {name: hint for group in groups for name, hint in typing.get_type_hints(group).items()}

    def flags(self) -> dict[str, Any]:
        """Flag name (underscores) → value: what `from_flags` builds the same config from."""
        return {name: value for group in vars(self).values() for name, value in vars(group).items()}
