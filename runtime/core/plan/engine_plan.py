"""EnginePlan: all of an engine that flags, model and device decide, before a single weight is loaded."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Self

import jax
from jax.sharding import Mesh

from palladio.model.base.sharding import make_mesh
from palladio.model.cache.kv_cache import CacheLayout, fitting_page_size
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.config_overrides import overrides_of
from palladio.model.functional import ModelStructure, flatten_model
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import abstract_model
from palladio.model.loading.stored_config import agree_with_weights
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.class_tokens import vocabulary, with_class_tokens
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.kernel_choice import kernels_of, plan_cache
from palladio.runtime.core.plan.memory import MemoryNeeds, MemoryPlan, device_memory
from palladio.runtime.core.plan.platform_defaults import CompileMode, PlatformDefaults, compile_mode
from palladio.runtime.core.plan.sizing import EngineLimits, check_experts, check_states, joined_passes
from palladio.runtime.core.plan.small_gguf import as_multiplied
from palladio.runtime.core.plan.state_sizing import with_states
from palladio.runtime.devices.device_choice import choose_device, chosen_gpus, tell_fallback
from palladio.runtime.execution.batch.media_rows import pool_rows
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.out_of_memory import compile_advice
from palladio.runtime.execution.compiled.persistent_cache import use_persistent_cache
from palladio.runtime.execution.compiled.program_cache import AroundBuild, ProgramCache
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.compiled.program_store import ProgramStore
from palladio.runtime.execution.programs.program import ProgramKey, StaticModel
from palladio.runtime.execution.state.device_state import DeviceShape, Weights, bytes_per_device
from palladio.runtime.execution.state.proposer import NgramProposer, Proposer
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.speculative_config import SpeculativeConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.embedding import Pooling
from palladio.runtime.scheduling.batch.buckets import Buckets

PROBE_PAGES = 64  # of the KV cache for which the programs' workspace is measured: it does not depend on their number

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Attributes:
    device: the first one. path: of the model. seed: of the weights, and root of the requests' seeds.
    layout: of the model over the devices.
    kernels: what the model runs on. shape: of the device's state. plan: who gets the memory.
    programs: declared, not built. compile: when they are. store: of exported programs; None: there is none.
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
    programs: StepPrograms
    compile: CompileMode
    store: ProgramStore | None

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        agree: Callable[[int], int] = lambda value: value,
        around_late_build: AroundBuild[ProgramKey] = lambda key: contextlib.nullcontext(),
    ) -> Self:
        """
        Args:
            agree: gives the smallest of all hosts' values; each has another amount of free memory.
            around_late_build: see ProgramCache.

        Raises:
            ConfigError: a flag or the model's config is wrong, or the device is too small.
        """
        execution = config.execution
        device = choose_device(execution.device, chosen_gpus(config.parallel))
        tell_fallback(device, execution.device)
        target = Target.of(device)
        defaults = PlatformDefaults.of(device.platform, target.kind)
        use_persistent_cache(execution.cache_path())
        monitor = CompileMonitor()
        path = Path(config.source.model_path)  # a local directory: whoever creates the core has resolved it
        model = as_multiplied(_model_config(config, path), path, device.platform, config.source.quantization)
        limits = EngineLimits.of(config, model, defaults)
        model = model.for_context(limits.context_length)
        dtypes = Dtypes.of(config, target, model)
        check_experts(config.parallel, model)
        check_states(config, model)
        mesh = _mesh(config)
        layout = TensorLayout.over(model, mesh)
        num_valid_tokens = _num_valid_tokens(config, path, layout.stored.vocab_size)
        pooling = _pooling_of(model, path) if config.source.is_embedding else None
        shape = device_shape(config, layout, limits, dtypes, mesh, num_valid_tokens, pooling)
        shape = dataclasses.replace(shape, target=target)
        kernels = kernels_of(execution, device, dtypes, layout.config, shape)
        structure, weights = abstract_weights(model, dtypes, mesh, kernels)
        needs = needs_of(config, device.platform, limits, shape, weights)
        memory = device_memory(list(mesh.local_devices), needs)
        limits, shape = with_states(config, model, defaults, (limits, shape), memory, needs, agree)
        passes = joined_passes(config, defaults, needs.weights)
        limits = dataclasses.replace(limits, joined_passes=passes)
        shape = dataclasses.replace(shape, joined_passes=passes)
        buckets = limits.buckets(config, defaults)
        _tell_padding(config, buckets)
        static = StaticModel(structure, jax.ShapeDtypeStruct((model.hidden_size,), shape.dtype), shape.num_valid_tokens)
        stores = _Stores.of(config, f"{model} {kernels} {shape} {buckets.sample}", shape)

        def declare(num_pages: int) -> StepPrograms:
            built = ProgramCache(
                monitor,
                stores.exports,
                around_late_build=around_late_build,
                advise=functools.partial(compile_advice, buckets=buckets, num_ranks=limits.num_ranks),
            )
            return StepPrograms(static, shape.abstract(weights, num_pages), shape, buckets, built)

        needs = needs_of(config, device.platform, limits, shape, weights, buckets)
        plan = plan_cache(kernels.attention, shape, memory, needs, 0)
        if plan.is_tight:
            workspace = stores.workspace(buckets, lambda: declare(PROBE_PAGES))
            plan = plan_cache(kernels.attention, shape, memory, needs, workspace)
        plan = plan.with_pages(agree(plan.num_pages))
        seed = random.SystemRandom().randrange(2**31) if execution.random_seed is None else execution.random_seed
        return cls(
            config=config,
            device=device,
            path=path,
            model=model,
            layout=layout,
            limits=limits,
            kernels=kernels,
            dtypes=dtypes,
            seed=seed,
            shape=shape,
            plan=plan,
            programs=declare(plan.num_pages),
            compile=compile_mode(config, defaults),
            store=stores.exports,
        )


def abstract_weights(
    model: ModelConfig, dtypes: Dtypes, mesh: Mesh, kernels: Kernels
) -> tuple[ModelStructure, Weights]:
    """A model's structure and the shapes of its parameters."""
    return flatten_model(
        abstract_model(model, dtype=dtypes.activations, weights_dtype=dtypes.weights, mesh=mesh, kernels=kernels)
    )


def _tell_padding(config: EngineConfig, buckets: Buckets) -> None:
    """Of the sizes that flags ask for, the two that lie furthest apart, if steps are padded to more than twice."""
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


def _model_config(config: EngineConfig, path: Path) -> ModelConfig:
    model = ModelConfig.from_hf(*read_model_dir(path, overrides_of(config.source.json_model_override_args)))
    if config.source.is_embedding:
        model = with_class_tokens(dataclasses.replace(model, has_head=False), _tokenizer_folder(config, path))
    elif not model.has_head:
        raise ConfigError(
            f"architectures: {model.architecture!r} has no language-model head; start it with --is-embedding"
        )
    return agree_with_weights(path, model, config.source.load_format, config.source.quantization)


def _tokenizer_folder(config: EngineConfig, path: Path) -> Path:
    """Where the tokenizer is of the model at `path`."""
    return Path(config.source.tokenizer_path or path)


def _pooling_of(model: ModelConfig, path: Path) -> Pooling:
    """How an engine of --is-embedding pools; a model that classifies looks at a text's last token."""
    return Pooling.of(path) if model.classifier is None else Pooling("last", normalizes=False)


def _mesh(config: EngineConfig) -> Mesh:
    parallel, devices = config.parallel, jax.devices()
    tp_size, dp_size = parallel.rank_size, parallel.dp_size
    found = f"jax finds {len(devices)} ({devices[0].device_kind})"
    if tp_size > len(devices):
        raise ConfigError(
            f"--tp-size {tp_size} needs that many devices, but {found}; "
            f"use --tp-size {len(devices)}{' or less' if len(devices) > 1 else ''}"
        )
    if dp_size * tp_size > len(devices):
        most = len(devices) // tp_size
        raise ConfigError(
            f"--dp-size {dp_size} × --tp-size {tp_size} needs {dp_size * tp_size} devices, but {found}; "
            f"use --dp-size {most}{' or less' if most > 1 else ''}"
        )
    if jax.process_count() > 1 and dp_size * tp_size < len(devices):
        raise ConfigError(
            f"--tp-size {tp_size} leaves devices unused: --nnodes {jax.process_count()} hosts have "
            f"{len(devices)} in total; use --tp-size {len(devices) // dp_size}, or fewer hosts"
        )
    return make_mesh(tp_size, devices, dp_size, parallel.rank_parts, shares_experts=parallel.enable_dp_attention)


def device_shape(
    config: EngineConfig,
    layout: TensorLayout,
    limits: EngineLimits,
    dtypes: Dtypes,
    mesh: Mesh,
    num_valid_tokens: int,
    pooling: Pooling | None,
) -> DeviceShape:
    """The shape of a device's state.

    Args:
        num_valid_tokens: ids that may be sampled.
    """
    model = layout.config
    page_size = config.cache.page_size or fitting_page_size(
        model, dtype=dtypes.kv_cache, mesh=mesh, least_bytes=limits.least_page_bytes
    )
    num_slots = limits.max_running + 1
    cache = CacheLayout.of(
        model, page_size=page_size, dtype=dtypes.kv_cache, num_slots=num_slots, state_dtype=dtypes.activations
    )
    return DeviceShape(
        num_slots=num_slots,
        num_columns=-(-limits.context_length // cache.spec.page_size),
        vocab_size=model.vocab_size,
        num_valid_tokens=num_valid_tokens,
        num_decode_steps=config.scheduler.num_continuous_decode_steps or 1,
        checks_cache=config.cache.cache_self_check > 0,
        dtype=dtypes.activations,
        cache=cache,
        mesh=mesh,
        pooling=pooling,
        pooled_size=model.hidden_size if pooling is not None and pooling.reads_all else 0,
        proposer=proposer_of(config.speculative),
        has_plain_tier=limits.has_plain_tier,
        joined_rows=limits.joined_rows,
        num_embeds=pool_rows(limits.max_step_tokens) if config.source.enable_input_embeds else 0,
        hidden_size=model.hidden_size,
    )


def proposer_of(speculative: SpeculativeConfig) -> Proposer | None:
    """What the flags ask for."""
    return None if speculative.ngram is None else NgramProposer(*speculative.ngram)


def needs_of(
    config: EngineConfig,
    platform: str,
    limits: EngineLimits,
    shape: DeviceShape,
    weights: Weights,
    buckets: Buckets | None = None,
) -> MemoryNeeds:
    """What an engine has to place on each device. Args: buckets: None: not known yet."""
    return memory_needs(
        platform,
        shape,
        weights,
        num_mask_rows=0 if buckets is None or shape.pooling is not None else sum(buckets.sample),
        useful_tokens=limits.useful_pool_tokens,
        wanted_tokens=config.cache.max_total_tokens,
        fraction=config.cache.mem_fraction_static,
    )


def memory_needs(
    platform: str,
    shape: DeviceShape,
    weights: Weights,
    *,
    num_mask_rows: int,
    useful_tokens: int,
    wanted_tokens: int | None = None,
    fraction: float | None = None,
) -> MemoryNeeds:
    """What an engine of this shape has to place on each device; see MemoryNeeds.

    Args:
        num_mask_rows: of the masks that allow everything, see DeviceExecutor.
    """
    state = shape.abstract(weights, 1)
    of_slots = state._replace(weights=(), kv_cache=(), page_tokens=None)
    states = bytes_per_device(shape.cache.states(state.kv_cache))
    snapshots = states // (shape.num_slots + shape.num_snapshots) * shape.num_snapshots
    return MemoryNeeds(
        platform=platform,
        weights=bytes_per_device(weights),
        state=bytes_per_device(of_slots) + 4 * shape.mask_width * num_mask_rows,
        layer_states=states - snapshots,
        snapshots=snapshots,
        num_snapshots=shape.num_snapshots,
        bytes_per_page=bytes_per_device((shape.cache.pages(state.kv_cache), state.page_tokens)),
        page_size=shape.page_size,
        wanted_tokens=wanted_tokens,
        useful_tokens=useful_tokens,
        fraction=fraction,
        num_ranks=shape.ranks.num_ranks,
        num_tables=shape.num_tables,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Stores:
    """Where an engine looks for what was found or made before.

    Attributes:
        exports: --compiled-dir. notes: beside the persistent cache. None: there is none.
    """

    exports: ProgramStore | None
    notes: ProgramStore | None

    @classmethod
    def of(cls, config: EngineConfig, model: str, shape: DeviceShape) -> Self:
        devices = list(shape.mesh.devices.flat)
        cache, exports = config.execution.cache_path(), config.execution.compiled_dir
        return cls(
            None if exports is None else ProgramStore(Path(exports).expanduser(), model, devices),
            None if cache is None else ProgramStore(cache / "plans", model, devices),
        )

    def workspace(self, buckets: Buckets, declare: Callable[[], StepPrograms]) -> int:
        """Bytes that the programs need, as noted, or measured with those that `declare` gives.

        Raises:
            ConfigError: one is too large for the device.
        """
        stores = [store for store in (self.exports, self.notes) if store is not None]
        noted = next((size for store in stores if (size := store.load_workspace(buckets)) is not None), None)
        if noted is not None:
            return noted
        programs = declare()
        logger.info("Compiling the largest programs to measure their workspace")
        programs.build(programs.largest_keys())
        if self.notes is not None:
            try:
                self.notes.save_workspace(buckets, programs.workspace)
            except OSError as error:
                logger.warning("Cannot save the measured workspace; the next start measures it again: %s", error)
        return programs.workspace


def _num_valid_tokens(config: EngineConfig, path: Path, vocab_size: int) -> int:
    """Ids that the tokenizer knows; the checkpoint's vocabulary may be padded beyond them."""
    file = _tokenizer_folder(config, path) / "tokenizer.json"
    if config.source.skip_tokenizer_init or not file.is_file():
        return vocab_size
    return min(vocab_size, max(vocabulary(file).values(), default=vocab_size - 1) + 1)
