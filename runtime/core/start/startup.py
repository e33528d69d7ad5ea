"""Start-up of an engine: from a config to a loaded, planned and compiled set of parts."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator

import jax

from palladio.model.functional import Model, flatten_model
from palladio.model.loading.load_model import load_model, num_parameters, weight_bytes
from palladio.model.loading.pooling_weights import read_pooling_weights
from palladio.model.loading.readers.safetensors_file import Array
from palladio.model.weights.narrow import lies_narrow
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.memory import MemoryPlan
from palladio.runtime.core.plan.memory_log import Memory, log_loaded
from palladio.runtime.core.plan.state_sizing import describe_snapshots
from palladio.runtime.core.start.build_scheduler import build_scheduler
from palladio.runtime.core.start.first_answer import compare_first_answer
from palladio.runtime.core.start.installation import find_conflicts
from palladio.runtime.core.start.limits import ready_of
from palladio.runtime.core.start.startup_log import describe_engine, log_limits, log_pool
from palladio.runtime.core.start.tried_plan import TriedPlan
from palladio.runtime.core.start.warmup import WarmUp, describe_set
from palladio.runtime.core.weights.model_memory import ModelMemory, Order
from palladio.runtime.core.weights.weight_loader import WeightLoader
from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.devices.taken_device import TakenDevice
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory, step_advice
from palladio.runtime.execution.device_executor import DeviceExecutor, ignore_call
from palladio.runtime.execution.model_runner import ModelRunner
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.grammar.checker import GrammarChecker
from palladio.runtime.grammar.compiler import GrammarCompiler, json_format_of, load_backend, load_settings
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, DeviceTakenError
from palladio.runtime.interface.messages.engine_state import EngineReady, LoadProgress, WeightsSize
from palladio.runtime.interface.messages.engine_stats import MemoryReport
from palladio.runtime.multihost.coordinator import HostCoordinator
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler
from palladio.runtime.telemetry.activity import Activity

logger = logging.getLogger("palladio.engine")


class CallListener:
    """Passes the executor's calls, and the programs that a step waits for, to the other hosts.

    Args:
        hosts: on host 0, the others, which do the same.

    Attributes:
        call: see DeviceExecutor.
    """

    def __init__(self, activity: Activity, hosts: HostCoordinator | None) -> None:
        self._activity = activity
        self._hosts = hosts
        self.call = ignore_call if hosts is None else hosts.call

    @contextlib.contextmanager
    def building(self, key: ProgramKey) -> Iterator[None]:
        """Report the compilation, and make the other hosts build the program too, while this is open."""
        alongside = contextlib.nullcontext() if self._hosts is None else self._hosts.building(key)
        with self._activity.compiling(str(key)), alongside:
            yield


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltExecutor:
    """Attributes:
    memory: the plan's table, with the workspace that the compiled programs need.
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
    activity: what the engine's thread is doing; compilations during a step are reported to it.
    model_memory: the model's memory on this host.
    tell: passes an order for the model's memory to the other hosts.
    """

    ready: EngineReady
    scheduler: EngineScheduler
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
    on_hung: Callable[[str], None] = lambda message: None,
    skipped: Collection[str] = (),
) -> BuiltExecutor:
    """Loads the model, allocates the KV cache and compiles the step programs, with the log lines operators know.

    Args:
        agree: gives the smallest of all hosts' values, and waits for them: all do the same at the same time.
        listener: gets the calls and builds of steps.
        on_hung: ends the process when the trial of a kernel hangs; called in another thread.
        skipped: kernels that are known not to work.

    Raises:
        ConfigError: a flag, the model's config or its checkpoint (CheckpointError) is wrong, or memory is too small.
        DeviceTakenError: another process has the device.
        ReadBackError: a device holds other weights than the files.
    """
    for conflict in find_conflicts():
        logger.warning(conflict)
    tried = TriedPlan(config, agree, listener.building, on_progress, on_hung, skipped)
    design = tried.design
    logger.info(describe_engine(design))
    if design.shape.page_groups.has_states:
        logger.info(describe_snapshots(design.shape, design.model.architecture))
    target = design.kernels.target
    if lies_narrow(design.dtypes.activations, design.dtypes.weights, target, design.shape.mesh):
        logger.info("Products: %s; CPU feature: %s", NarrowProducts.of(target).describe(), target.kind or "unknown")
    for line in (*design.layout.table(), *design.plan.table()):
        logger.info(line)
    logger.info(describe_set(design.programs))
    warm_up = WarmUp(tried, on_progress)
    with warm_up.building(), _explaining_exhaustion(lambda: tried.design):
        model = _load(design, on_progress)
        size = WeightsSize(num_parameters(model), sum(weight_bytes(model).values()))
        _, weights = flatten_model(model)
        settled = warm_up.wait_settled()
        if settled is not design:
            design = settled
            for line in (describe_engine(design), *design.plan.table()):
                logger.info(line)
        pooling_weights = design.shape.place_pooling_weights(_pooling_weights(design))
        state = design.shape.allocate(weights, design.plan.num_pages, pooling_weights)
        log_pool(design)
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
    config: EngineConfig,
    on_progress: Callable[[LoadProgress], None],
    hosts: HostCoordinator | None = None,
    on_hung: Callable[[str], None] = lambda message: None,
) -> EngineParts:
    """`build_executor`, with the parts that only host 0 has.

    Args:
        on_hung: see `build_executor`.

    Raises:
        ConfigError: as `build_executor`; or a grammar flag is wrong.
    """
    json_format = json_format_of(config)
    activity = Activity()
    agree = hosts.smallest if hosts is not None else lambda value: value
    built = build_executor(config, on_progress, agree, CallListener(activity, hosts), on_hung)
    design = built.design
    eos_ids = list(design.model.eos_token_ids)
    order = built.warm_up.order if hosts is None else None  # all hosts build in the same one
    runner = ModelRunner(built.executor, eos_ids, is_lazy=design.compile == "lazy", order=order)
    ready = dataclasses.replace(
        ready_of(design, built.warm_up.seconds, built.weights), degraded=_check_answer(config, design, runner, hosts)
    )
    pages = design.plan.num_pages, design.shape.page_groups
    scheduler = build_scheduler(config, design.limits, runner.buckets(), *pages, design.seed, ready.embedding)
    log_limits(design)
    built.warm_up.go_on()
    model = (config, design.path, design.shape.vocab_size, eos_ids, json_format)
    grammars = GrammarCompiler(
        functools.partial(load_backend, *model),
        GrammarChecker(functools.partial(load_settings, *model)),
        max_bytes=config.grammar.grammar_cache_bytes,
    )
    memory = ModelMemory(WeightLoader(design), built.executor, agree)
    tell = (lambda order, path: None) if hosts is None else hosts.order
    return EngineParts(ready, scheduler, runner, built.memory, grammars, activity, memory, tell)


def _check_answer(config: EngineConfig, design: EnginePlan, runner: ModelRunner, hosts: HostCoordinator | None) -> str:
    """What is wrong with a first answer; "": nothing, or it is not to be checked."""
    if hosts is not None or not config.execution.checks_start(design.device.platform):
        return ""
    answer = compare_first_answer(config, design, runner)
    return "" if answer is None else answer.problem


def _load(design: EnginePlan, on_progress: Callable[[LoadProgress], None]) -> Model:
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
        reads_back=design.config.execution.checks_start(design.device.platform),
    )
    log_loaded(model, design.dtypes, design.model.architecture, before, time.perf_counter() - start)
    return model


def _pooling_weights(design: EnginePlan) -> list[Array]:
    """The tensors of the steps after pooling; none where the engine generates text.

    Raises:
        CheckpointError: a file is missing, or holds something else.
    """
    pooling = design.shape.pooling
    if pooling is None:
        return []
    is_dummy = design.config.source.load_format == "dummy"
    return read_pooling_weights(design.path, pooling, is_dummy=is_dummy, seed=design.seed)


@contextlib.contextmanager
def _explaining_exhaustion(find_design: Callable[[], EnginePlan], machine: Machine | None = None) -> Iterator[None]:
    """
    Args:
        find_design: gives the plan at the time of the failure: trials of kernels may have changed it.

    Raises:
        DeviceTakenError: the GPU has too little memory, and another process has it open.
        ConfigError: a device has too little memory.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        design = find_design()
        advice, shared = step_advice(design.plan.report, design.plan.total_tokens), None
        if design.device.platform == "gpu":
            numbers = [device.local_hardware_id for device in design.shape.mesh.local_devices]
            shared = TakenDevice.shared_gpu(Machine.look() if machine is None else machine, numbers)
        if shared is not None:
            raise DeviceTakenError(
                f"out of memory while loading the model, and {shared.describe()}: stop that process, or leave it its "
                f"part of the memory with --mem-fraction-static; {advice}. XLA error: {error}"
            ) from error
        raise ConfigError(f"out of memory while loading the model; {advice}. XLA error: {error}") from error


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
