"""EnginePlan: all of an engine that flags, model and device decide, before a single weight is loaded."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

import jax

from palladio.model.config.config import ModelConfig
from palladio.model.functional import ModelStructure
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.pooling.text_settings import TextSettings
from palladio.pallas_kernels.choice import Kernels
from palladio.runtime.core.plan.device_shape import abstract_weights, device_shape
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.engine_inputs import EngineInputs
from palladio.runtime.core.plan.kernel_choice import kernels_of, plan_cache
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryPlan, device_memory
from palladio.runtime.core.plan.memory_needs import needs_of
from palladio.runtime.core.plan.platform_defaults import CompileMode, compile_mode
from palladio.runtime.core.plan.sizing import EngineLimits, joined_passes
from palladio.runtime.core.plan.state_sizing import with_states
from palladio.runtime.core.plan.stores import Stores
from palladio.runtime.devices.device_choice import choose_device, chosen_gpus, tell_fallback
from palladio.runtime.devices.device_wait import DeviceWait
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.out_of_memory import compile_advice
from palladio.runtime.execution.compiled.persistent_cache import use_persistent_cache
from palladio.runtime.execution.compiled.program_cache import AroundBuild, ProgramCache
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.compiled.program_store import ProgramStore
from palladio.runtime.execution.programs.program import ProgramKey, StaticModel
from palladio.runtime.execution.state.device_state import DeviceShape, Weights
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.scheduling.batch.buckets import Buckets

PROBE_PAGES = 64  # of the KV cache for which the programs' workspace is measured: it does not depend on their number

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChosenKernels:
    """The kernels of a plan, and what their shapes follow from.

    Attributes:
        device: the first one.
        kernels: backends of the model's ops.
        model: laid out over the devices.
        shape: shape of the devices' state.
        structure, weights: of the model, without values.
    """

    device: jax.Device
    kernels: Kernels
    model: ModelConfig
    shape: DeviceShape
    structure: ModelStructure
    weights: Weights

    @staticmethod
    def of(config: EngineConfig, skipped: Collection[str] = ()) -> "ChosenKernels":
        """Choose kernels alone: no memory is divided, and nothing is compiled.

        Args:
            skipped: kernels that failed their trial on this device.

        Raises:
            DeviceTakenError, ConfigError: as EnginePlan.of.
        """
        inputs = EngineInputs.of(config, _device_of(config))
        return _Sizes.of(config, inputs, lambda value: value, skipped).chosen(inputs)


class KernelFailureError(Exception):
    """A kernel of a plan fails its trial before the plan's programs are compiled, on this host or another.

    Attributes:
        chosen: the plan's kernels.
    """

    def __init__(self, chosen: ChosenKernels) -> None:
        super().__init__("a kernel failed its trial")
        self.chosen = chosen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Attributes:
    device: the first one. path: of the model. seed: of the weights, and root of the requests' seeds.
    layout: of the model over the devices.
    kernels: what the model runs on. shape: of the device's state. plan: who gets the memory.
    memory: of each device, before anything of the model was on it. chosen: the kernels, with their shapes.
    programs: declared, not built. compile: when they are. store: of exported programs; None: there is none.
    texts: how texts of an engine of --is-embedding are prepared.
    """

    config: EngineConfig
    device: jax.Device
    path: Path
    model: ModelConfig
    layout: TensorLayout
    limits: EngineLimits
    kernels: Kernels
    dtypes: Dtypes
    seed: int
    shape: DeviceShape
    plan: MemoryPlan
    memory: DeviceMemory
    chosen: ChosenKernels
    programs: StepPrograms
    compile: CompileMode
    store: ProgramStore | None
    texts: TextSettings

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        agree: Callable[[int], int] = lambda value: value,
        around_late_build: AroundBuild[ProgramKey] = lambda key: contextlib.nullcontext(),
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
        skipped: Collection[str] = (),
        *,
        instead_of: Self | None = None,
        before_compiling: Callable[[ChosenKernels], bool] = lambda chosen: True,
    ) -> Self:
        """
        Args:
            agree: gives the smallest of all hosts' values; each has another amount of free memory.
            around_late_build: see ProgramCache.
            on_progress: hears of a wait for the device.
            skipped: kernels that failed their trial on this device.
            instead_of: the plan that this one replaces: device, seed and free memory are the same, although weights may
                be on the devices by now.
            before_compiling: called if memory is so short that programs have to be compiled for the plan; returns
                whether all of its kernels work.

        Raises:
            DeviceTakenError: another process has the device.
            ConfigError: a flag or the model's config is wrong, or the device is too small.
            KernelFailureError: see `before_compiling`; on all hosts at once.
        """
        device = _device_of(config, on_progress) if instead_of is None else instead_of.device
        monitor = CompileMonitor()
        inputs = EngineInputs.of(config, device)
        config = inputs.config
        sizes = _Sizes.of(config, inputs, agree, skipped, None if instead_of is None else instead_of.memory)
        limits, shape, buckets = sizes.limits, sizes.shape, sizes.buckets
        chosen = sizes.chosen(inputs)
        hidden = jax.ShapeDtypeStruct((inputs.model.hidden_size,), shape.dtype)
        static = StaticModel(sizes.structure, hidden, shape.num_valid_tokens)
        stores = Stores.of(config, f"{inputs.model} {sizes.kernels} {shape} {buckets.sample}", shape)

        def declare(num_pages: int) -> StepPrograms:
            built = ProgramCache(
                monitor,
                stores.exports,
                around_late_build=around_late_build,
                advise=functools.partial(compile_advice, buckets=buckets, num_ranks=limits.num_ranks),
            )
            return StepPrograms(static, shape.abstract(sizes.weights, num_pages), shape, buckets, built)

        def declare_tried() -> StepPrograms:
            if not before_compiling(chosen):
                raise KernelFailureError(chosen)
            return declare(PROBE_PAGES)

        try:
            plan = sizes.memory_plan(config, device.platform, lambda: stores.workspace(buckets, declare_tried))
        except KernelFailureError:
            agree(0)
            raise
        num_pages = agree(plan.num_pages)
        if num_pages == 0:
            raise KernelFailureError(chosen)  # on another host
        plan = plan.with_pages(num_pages)
        return cls(
            config=config,
            device=device,
            path=inputs.path,
            model=inputs.model,
            layout=inputs.layout,
            limits=limits,
            kernels=sizes.kernels,
            dtypes=inputs.dtypes,
            seed=_seed_of(config) if instead_of is None else instead_of.seed,
            shape=shape,
            plan=plan,
            memory=sizes.memory,
            chosen=chosen,
            programs=declare(plan.num_pages),
            compile=compile_mode(config, inputs.defaults),
            store=stores.exports,
            texts=inputs.texts,
        )


def _device_of(config: EngineConfig, on_progress: Callable[[LoadProgress], None] = lambda progress: None) -> jax.Device:
    """Return the first device, once it is free, and let jax keep what it compiles."""
    execution = config.execution
    wait = DeviceWait(execution.device_wait, on_progress)
    device = choose_device(execution.device, chosen_gpus(config.parallel), wait=wait)
    tell_fallback(device, execution.device)
    use_persistent_cache(execution.cache_url or execution.cache_path())
    return device


def _seed_of(config: EngineConfig) -> int:
    given = config.execution.random_seed
    return random.SystemRandom().randrange(2**31) if given is None else given


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Limits, and the shape of the device's state, which follow from each other in stages: first from the flags; then,
    if layers keep states, from the memory that weights leave; then from the size of the weights, if it is so small that
    a decode step makes several passes.

    Attributes:
        structure, weights: of the model, without values.
        memory: of each device.
    """

    limits: EngineLimits
    shape: DeviceShape
    buckets: Buckets
    kernels: Kernels
    structure: ModelStructure
    weights: Weights
    memory: DeviceMemory

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        inputs: EngineInputs,
        agree: Callable[[int], int],
        skipped: Collection[str] = (),
        memory: DeviceMemory | None = None,
    ) -> Self:
        limits, model, mesh = inputs.limits, inputs.model, inputs.mesh
        tokens = inputs.num_valid_tokens, inputs.pooling, inputs.target
        by_flags = device_shape(config, inputs.layout, limits, inputs.dtypes, mesh, *tokens)
        chosen_by = config.execution, inputs.device, inputs.dtypes, inputs.layout.config, by_flags
        kernels = kernels_of(*chosen_by, skipped)
        structure, weights = abstract_weights(model, inputs.dtypes, mesh, kernels)
        needs = needs_of(config, inputs.device.platform, limits, by_flags, weights)
        if memory is None:
            memory = device_memory(list(mesh.local_devices), needs)
        limits, shape = with_states(config, model, inputs.defaults, (limits, by_flags), memory, needs, agree)
        passes = joined_passes(config, inputs.defaults, needs.weights)
        limits = dataclasses.replace(limits, joined_passes=passes)
        buckets = limits.buckets(config, inputs.defaults)
        _tell_padding(config, buckets)
        return cls(
            limits=limits,
            shape=dataclasses.replace(shape, joined_passes=passes),
            buckets=buckets,
            kernels=kernels,
            structure=structure,
            weights=weights,
            memory=memory,
        )

    def chosen(self, inputs: EngineInputs) -> ChosenKernels:
        """Return the kernels.

        Args:
            inputs: those that the sizes follow from.
        """
        return ChosenKernels(
            device=inputs.device,
            kernels=self.kernels,
            model=inputs.layout.config,
            shape=self.shape,
            structure=self.structure,
            weights=self.weights,
        )

    def memory_plan(self, config: EngineConfig, platform: str, workspace: Callable[[], int]) -> MemoryPlan:
        """Divides the memory of each device.

        Args:
            workspace: bytes that the programs need beside it; called if memory is short.
        """
        needs = needs_of(config, platform, self.limits, self.shape, self.weights, self.buckets)
        plan = plan_cache(self.kernels.attention, self.shape, self.memory, needs, 0)
        if not plan.is_tight:
            return plan
        return plan_cache(self.kernels.attention, self.shape, self.memory, needs, workspace())


def _tell_padding(config: EngineConfig, buckets: Buckets) -> None:
    """Warn of the two sizes of the flags that lie furthest apart, if steps between them are padded to more than
    twice."""
    if config.execution.cuda_graph_bs is None and config.execution.cuda_graph_max_bs is None:
        return
    size, larger = max(itertools.pairwise((0, *buckets.decode)), key=lambda pair: pair[1] / (pair[0] + 1))
    if larger > 2 * (size + 1):
        logger.warning(
            "Decode batches of %d requests are padded to %d because no batch size in between is compiled; add sizes "
            "with --cuda-graph-bs, raise --cuda-graph-max-bs, or lower --max-running-requests",
            size + 1,
            larger,
        )
