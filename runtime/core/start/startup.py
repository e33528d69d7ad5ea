"""Start-up of an engine: from a config to a loaded, planned and compiled set of parts."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from palladio.model.config.config import ModelConfig
from palladio.model.decoder import CausalLM
from palladio.model.functional import flatten_model
from palladio.model.loading.load_model import load_model, num_parameters, weight_bytes
from palladio.model.spec.layer_spec import AttentionSpec
from palladio.model.weights.narrow import lies_narrow
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.memory import MemoryPlan
from palladio.runtime.core.plan.memory_log import Memory, log_loaded
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.core.plan.state_sizing import describe_snapshots
from palladio.runtime.core.start.installation import find_conflicts
from palladio.runtime.core.start.kv_events import open_events
from palladio.runtime.core.start.warmup import WarmUp, describe_set
from palladio.runtime.core.weights.model_memory import ModelMemory, Order
from palladio.runtime.core.weights.weight_loader import WeightLoader
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory, step_advice
from palladio.runtime.execution.device_executor import DeviceExecutor, tell_nobody
from palladio.runtime.execution.model_runner import ModelRunner
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.grammar.compiler import GrammarCompiler, json_format_of, load_backend, load_settings
from palladio.runtime.grammar.judge import GrammarJudge
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_state import EngineReady, LoadProgress, WeightsSize
from palladio.runtime.interface.messages.engine_stats import MemoryReport
from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec, Pooling
from palladio.runtime.interface.request.input_embeds import EmbedsSpec
from palladio.runtime.multihost.coordinator import HostCoordinator
from palladio.runtime.scheduling.batch.scheduled_batch import Buckets, SchedulerLimits
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.dp_router import DataParallelRouter
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.scheduling.policy.batch_share import BatchShare
from palladio.runtime.scheduling.policy.waiting_queue import WaitingQueue
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.window_pages import PageGroups
from palladio.runtime.telemetry.activity import Activity

# With --load-balance-method prefix, a rank may be busier than others by this part of its KV cache.
PATIENCE = 4

logger = logging.getLogger("palladio.engine")


class CallListener:
    """Told of what the executor calls, and of programs that a step waits for.

    Args:
        hosts: on host 0, the others, which do the same.

    Attributes:
        call: see DeviceExecutor.
    """

    def __init__(self, activity: Activity, hosts: HostCoordinator | None) -> None:
        self._activity = activity
        self._hosts = hosts
        self.call = tell_nobody if hosts is None else hosts.call

    @contextlib.contextmanager
    def building(self, key: ProgramKey) -> Iterator[None]:
        """See ProgramCache."""
        alongside = contextlib.nullcontext() if self._hosts is None else self._hosts.building(key)
        with self._activity.compiling(str(key)), alongside:
            yield


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltExecutor:
    """Attributes:
    memory: the plan's table, with the workspace that the compiled programs need. seconds: that compiling took.
    """

    design: EnginePlan
    executor: DeviceExecutor
    memory: MemoryReport
    warm_up: WarmUp
    weights: WeightsSize


@dataclasses.dataclass(frozen=True, slots=True)
class EngineParts:
    """Attributes:
    memory: see BuiltExecutor. grammars: its backend may still be loading.
    activity: what the engine's thread is at; what compiles during a step is said here.
    model_memory: of this host. tell: the others, of what it is told.
    """

    ready: EngineReady
    scheduler: DataParallelScheduler
    runner: ModelRunner
    memory: MemoryReport
    grammars: GrammarCompiler
    activity: Activity
    model_memory: ModelMemory
    tell: Callable[[Order, str], None]


def build_executor(
    config: EngineConfig,
    on_progress: Callable[[LoadProgress], None],
    agree: Callable[[int], int],
    listener: CallListener,
) -> BuiltExecutor:
    """Loads the model, allocates the KV cache and compiles the step programs, with the log lines operators know.

    Args:
        agree: gives the smallest of all hosts' values, and waits for them: all do the same at the same time.
        listener: told of what steps will call and build.

    Raises:
        ConfigError: a flag, the model's config or its checkpoint (CheckpointError) is wrong, or memory is too small.
    """
    for conflict in find_conflicts():
        logger.warning(conflict)
    design = EnginePlan.of(config, agree, listener.building)
    logger.info(describe_engine(design))
    if design.shape.page_groups.has_states:
        logger.info(describe_snapshots(design.shape, design.model.architecture))
    target = design.kernels.target
    if lies_narrow(design.dtypes.activations, design.dtypes.weights, target, design.shape.mesh):
        logger.info("Products: %s; CPU feature: %s", NarrowProducts.of(target).describe(), target.kind or "unknown")
    for line in (*design.layout.table(), *design.plan.table()):
        logger.info(line)
    logger.info(describe_set(design.programs))
    warm_up = WarmUp(design, on_progress)
    with warm_up.beside(), _explaining_exhaustion(design.plan):
        model = _load(design, on_progress)
        size = WeightsSize(num_parameters(model), sum(weight_bytes(model).values()))
        _, weights = flatten_model(model)
        state = design.shape.allocate(weights, design.plan.num_pages)
        _log_pool(design)
        jax.block_until_ready(state)
    warm_up.finish()
    executor = DeviceExecutor(state, design.programs, listener.call)
    memory = dataclasses.replace(
        design.plan.report, workspace=max(design.plan.report.workspace, design.programs.workspace)
    )
    reports = design.programs.built.reports
    logger.info(
        "Built %d programs in %.1f s (%d from the compilation cache, %d from --compiled-dir); workspace: %.2f GB",
        len(reports),
        warm_up.seconds,
        sum(report.result == "hit" for report in reports),
        sum(report.result == "exported" for report in reports),
        memory.workspace / 2**30,
    )
    _check_workspace(design.plan, memory)
    agree(0)  # all have come so far
    return BuiltExecutor(design, executor, memory, warm_up, size)


def build_engine_parts(
    config: EngineConfig, on_progress: Callable[[LoadProgress], None], hosts: HostCoordinator | None = None
) -> EngineParts:
    """`build_executor`, and what the engine's host 0 has beside it.

    Raises:
        ConfigError: as there; or a grammar flag is wrong.
    """
    json_format = json_format_of(config)
    activity = Activity()
    agree = hosts.smallest if hosts is not None else lambda value: value
    built = build_executor(config, on_progress, agree, CallListener(activity, hosts))
    design = built.design
    eos_ids = list(design.model.eos_token_ids)
    order = built.warm_up.order if hosts is None else None  # all hosts build in the same one
    runner = ModelRunner(built.executor, eos_ids, is_lazy=design.compile == "lazy", order=order)
    ready = _ready(design, built.warm_up.seconds, built.weights)
    pages = design.plan.num_pages, design.shape.page_groups
    scheduler = build_scheduler(config, design.limits, runner.buckets(), *pages, design.seed, ready.embedding)
    _log_limits(design)
    built.warm_up.go_on()
    model = (config, design.path, design.shape.vocab_size, eos_ids, json_format)
    grammars = GrammarCompiler(
        functools.partial(load_backend, *model),
        GrammarJudge(functools.partial(load_settings, *model)),
        max_bytes=config.grammar.grammar_cache_bytes,
    )
    memory = ModelMemory(WeightLoader(design), built.executor, agree)
    tell = (lambda order, path: None) if hosts is None else hosts.order
    return EngineParts(ready, scheduler, runner, built.memory, grammars, activity, memory, tell)


def build_scheduler(
    config: EngineConfig,
    limits: EngineLimits,
    buckets: Buckets,
    num_pages: int,
    groups: PageGroups,
    seed: int,
    embedding: EmbeddingSpec | None = None,
) -> DataParallelScheduler:
    """The host's half of an engine: scheduler, queue and cache manager of each data-parallel rank.

    Args:
        num_pages: of each rank. groups: which block tables requests have pages for.
        embedding: see EngineReady. What is pooled from all of a prompt is not known of a cached prefix.
    """
    options = config.scheduler
    low_values_first, by_priority = options.schedule_low_priority_values_first, options.schedule_policy == "priority"
    scheduler_limits = SchedulerLimits(
        max_running=limits.max_running,
        max_queued=options.max_queued_requests,
        max_step_tokens=limits.max_step_tokens,
        splits_prompts=limits.chunk != -1,
        mixes=limits.mixes,
        num_decode_steps=options.num_continuous_decode_steps or 1,
        joined_passes=limits.joined_passes,
        num_drafts=config.speculative.num_drafts,
        preemption_threshold=options.priority_scheduling_preemption_threshold if by_priority else None,
        low_values_first=low_values_first,
        conservativeness=options.schedule_conservativeness,
    )
    schedulers = []
    share = BatchShare(options.background_slowdown)
    for events in open_events(config, limits.num_ranks, groups.page_size):
        cache = CacheManager(
            num_pages,
            groups,
            shares_prefixes=shares_prefixes(config, groups, None if embedding is None else embedding.pooling),
            eviction_policy=config.cache.radix_eviction_policy,
            events=events,
        )
        waiting = WaitingQueue.create(
            options.schedule_policy, cache.tree, groups.page_size, low_values_first=low_values_first, seed=seed
        )
        schedulers.append(Scheduler(scheduler_limits, buckets, cache, waiting, share))
    num_tokens = schedulers[0].cache.num_total_tokens
    router = DataParallelRouter(config.parallel.load_balance_method, limits.num_ranks, patience=num_tokens // PATIENCE)
    return DataParallelScheduler(schedulers, router)


def shares_prefixes(config: EngineConfig, groups: PageGroups, pooling: str | None) -> bool:
    """Whether prompts share the pages of their common beginnings. Args: pooling: of --is-embedding, else None."""
    return not config.cache.disable_radix_cache and pooling in (None, "last") and groups.can_share


def describe_engine(design: EnginePlan) -> str:
    """One line: what the engine runs on, and how."""
    device, shape = design.device, design.shape
    found = len(jax.devices())
    used = shape.mesh.devices.size
    count = f"{used}" if used == found else f"{used} of {found}"
    prefixes = shares_prefixes(
        design.config, shape.page_groups, None if shape.pooling is None else shape.pooling.method
    )
    return (
        f"Engine: device={count} x {device.device_kind} ({device.platform}), "
        f"attention_backend={design.kernels.attention}, dtype={jnp.dtype(shape.dtype).name}, "
        f"kv_cache_dtype={shape.cache.spec.dtype.name}{_cache_scales(design)}, page_size={shape.page_size}, "
        f"prefix_cache={'on' if prefixes else 'off'}"
    )


def _cache_scales(design: EnginePlan) -> str:
    """Which a cache of 8 bits has, and whether the checkpoint has some that are not used; "" where there are none."""
    dtype = design.shape.cache.spec.dtype
    attentions = (layer.attention for layer in design.model.layers)
    has_scales = any(isinstance(spec, AttentionSpec) and spec.has_cache_scales for spec in attentions)
    if dtype.itemsize == 1:
        of_floats = "scales of the checkpoint" if has_scales else "scales of 1"
        return f" ({'a scale for each token and head' if dtype == jnp.int8 else of_floats})"
    return " (the checkpoint's scales are for fp8_e4m3)" if has_scales else ""


def _load(design: EnginePlan, on_progress: Callable[[LoadProgress], None]) -> CausalLM:
    before, start = Memory.now(), time.perf_counter()
    logger.info("Load weight begin. avail mem=%.2f GB", before.available)
    model = load_model(
        design.path,
        design.model,
        dtype=design.dtypes.activations,
        weights_dtype=design.dtypes.weights,
        mesh=design.shape.mesh,
        load_format=design.config.source.load_format,
        kernels=design.kernels,
        seed=design.seed,
        progress=lambda done, total: on_progress(LoadProgress("load", done, total)),
    )
    log_loaded(model, design.dtypes, design.model.architecture, before, time.perf_counter() - start)
    return model


@contextlib.contextmanager
def _explaining_exhaustion(plan: MemoryPlan) -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"out of memory while loading the model; {step_advice(plan.report, plan.total_tokens)}. XLA error: {error}"
        ) from error


def _check_workspace(plan: MemoryPlan, memory: MemoryReport) -> None:
    """
    Raises:
        ConfigError: the compiled programs need more than there is.
    """
    if memory.planned > memory.usable:
        raise ConfigError(
            f"out of memory: the compiled programs need {memory.workspace / 2**30:.2f} GiB of workspace, "
            f"{(memory.planned - memory.usable) / 2**30:.2f} GiB more than is free; "
            f"{step_advice(memory, plan.total_tokens)}"
        )


def _ready(design: EnginePlan, seconds: float, weights: WeightsSize) -> EngineReady:
    reports, pooling = design.programs.built.reports, design.shape.pooling
    return EngineReady(
        context_length=design.limits.context_length,
        max_total_tokens=design.plan.num_tokens,
        max_running_requests=design.limits.total_running,
        chunked_prefill_size=design.limits.chunk,
        page_size=design.shape.page_size,
        model_type=design.model.model_type,
        architecture=design.model.architecture,
        vocab_size=design.shape.num_valid_tokens,
        eos_token_ids=list(design.model.eos_token_ids),
        device=f"{design.device.platform}: {design.device.device_kind}",
        dtype=jnp.dtype(design.dtypes.weights).name,
        num_programs=len(reports),
        compile_seconds=seconds,
        cache_hits=sum(report.result == "hit" for report in reports),
        random_seed=design.seed,
        attention_kernels=design.kernels.attention,
        embedding=None if pooling is None else _embedding(design.model, pooling),
        num_ranks=design.shape.ranks.num_ranks,
        weights=weights,
        embeds=EmbedsSpec(design.shape.hidden_size, float(jnp.finfo(design.shape.dtype).max))
        if design.shape.num_embeds
        else None,
        longest_request=design.shape.page_groups.longest_request(
            design.plan.num_pages - 1, splits_prompts=design.limits.chunk != -1
        ),
    )


def _embedding(model: ModelConfig, pooling: Pooling) -> EmbeddingSpec:
    classifier = model.classifier
    if classifier is None:
        return EmbeddingSpec(model.hidden_size, pooling.method, pooling.normalizes)
    names = list(classifier.labels)
    judges, joins = classifier.is_difference, bool(classifier.tokens)
    classes = ClassSpec(names, classifier.activation, classifier.pad_token_id, judges, joins)
    return EmbeddingSpec(len(names), pooling.method, normalized=False, classes=classes)


def _log_pool(design: EnginePlan) -> None:
    half, num_tokens = design.plan.report.kv_cache / 2 / 2**30, design.plan.total_tokens
    logger.info("KV Cache is allocated. #tokens: %d, K size: %.2f GB, V size: %.2f GB", num_tokens, half, half)
    logger.info("Memory pool end. avail mem=%.2f GB", Memory.now().available)
    if design.device.platform == "cpu":
        logger.info(
            "Resident memory: %.2f GB; the KV cache grows to %.2f GB as requests fill it",
            Memory.now().resident,
            2 * half,
        )


def _log_limits(design: EnginePlan) -> None:
    logger.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, max_running_requests=%d, "
        "context_len=%d, available_gpu_mem=%.2f GB",
        design.plan.total_tokens,
        design.limits.chunk,
        design.config.scheduler.max_prefill_tokens,
        design.limits.total_running,
        design.limits.context_length,
        Memory.now().available,
    )
