"""Which kernels an engine runs on: chosen at start-up, so that no request finds out what they cannot take."""

import dataclasses
import functools
import logging
import math
from collections.abc import Collection, Iterator

import jax
import jax.numpy as jnp

from palladio.model.base.sharding import num_expert_parts, num_shards, num_sharing
from palladio.model.config.config import ModelConfig
from palladio.model.spec.experts_config import ExpertsConfig
from palladio.model.spec.latent_config import LatentConfig
from palladio.model.spec.layer_spec import AttentionSpec
from palladio.model.weights.narrow import lies_narrow
from palladio.model.weights.outputs_first import multiplies_bytes
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.cpu_native import NativeError
from palladio.pallas_kernels.cpu_native import load as load_native
from palladio.pallas_kernels.grouped_matmul import grouped_matmul
from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update
from palladio.pallas_kernels.latent_attention import latent_attention, latent_cache_update
from palladio.pallas_kernels.latent_attention.api import OP as LATENT_ATTENTION
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata, ragged_paged_attention
from palladio.pallas_kernels.ragged_paged_attention.api import OP as ATTENTION
from palladio.pallas_kernels.ragged_paged_attention.api import PALLAS, auto_order
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_triton import addressable_pages
from palladio.pallas_kernels.segment_attention import Segments, segment_attention
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryNeeds, MemoryPlan, plan_memory
from palladio.runtime.execution.state.device_state import DeviceShape
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.errors import ConfigError

logger = logging.getLogger("palladio.engine")


def kernels_of(
    execution: ExecutionConfig,
    device: jax.Device,
    dtypes: Dtypes,
    model: ModelConfig,
    shape: DeviceShape,
    skipped: Collection[str] = (),
) -> Kernels:
    """The kernels of an engine: `choose_kernels`, and on one CPU our C++ where the model gains from it.

    Args:
        skipped: kernels that failed their trial on this device.

    Raises:
        ConfigError: as `choose_kernels` and `with_native_kernels`.
    """
    target = Target.of(device).without(skipped)
    if (
        target.platform == "cpu"
        and shape.mesh.size == 1
        and _gains_from_native(execution, target, dtypes, model, shape)
    ):
        target = with_native_kernels(execution, target, int8=_has_bytes(target, model, shape))
    return choose_kernels(execution.attention_backend, target, model, shape)


def _gains_from_native(
    execution: ExecutionConfig, target: Target, dtypes: Dtypes, model: ModelConfig, shape: DeviceShape
) -> bool:
    """Whether an engine uses native kernels. For a tiny model they do not pay: compiling them takes seconds, and steps
    gain little. Deterministic engines use none: they add up attention to one new token in another order than attention
    to a chunk.
    """
    if execution.deterministic:
        return False
    if execution.cpu_kernels == "native" or execution.attention_backend == "cpu_native":
        return True
    smallest = NarrowProducts.of(target).min_native_hidden_size
    is_large = smallest is not None and model.hidden_size >= smallest
    is_narrow = lies_narrow(dtypes.activations, dtypes.weights, target, shape.mesh)
    return is_large or is_narrow or _has_bytes(target, model, shape)


def _has_bytes(target: Target, model: ModelConfig, shape: DeviceShape) -> bool:
    """Whether the layers keep weights as bytes: a plain file may become int8, and a file of another format need not."""
    return any(kind.has_bytes for kind in model.weight_kinds.all) and multiplies_bytes(target, shape.mesh)


def choose_kernels(backend: str, target: Target, model: ModelConfig, shape: DeviceShape) -> Kernels:
    """The kernels that --attention-backend asks for, or under auto the best that this target, model and cache allow.

    On a device that they were not made for, Pallas kernels are interpreted: right, and very slow.

    Raises:
        ConfigError: the backend cannot run this; the message gives the reason and the flag to change.
    """
    if backend == "auto":
        for name in auto_order(target):
            kernels = Kernels(name, target)
            reason = refusal(kernels, model, shape)
            if reason is None:
                return kernels
            logger.warning("Attention backend %s cannot run this model; using a slower one: %s", name, reason)
        raise ConfigError(f"no attention backend can run this model on this device: {reason}")
    platform = PALLAS.get(backend, target.platform)
    if platform != target.platform:
        logger.warning(
            "--attention-backend %s has kernels for %s only; on a %s they run in Pallas interpret mode (very slow)",
            backend,
            platform.upper(),
            target.platform.upper(),
        )
        target = dataclasses.replace(target, kind="", interpret="plain")
    kernels = Kernels(backend, target)
    reason = refusal(kernels, model, shape)
    if reason is not None:
        raise ConfigError(
            f"--attention-backend {backend} cannot run this model: {reason}; or use --attention-backend auto"
        )
    return kernels


def with_native_kernels(execution: ExecutionConfig, target: Target, *, int8: bool = True) -> Target:
    """A CPU with our C++, if --cpu-kernels allows it and there is a compiler.

    Args:
        int8: with its products of int8 weights, which take their seconds to compile.

    Raises:
        ConfigError: --cpu-kernels asks for it, and it cannot be used.
    """
    if execution.cpu_kernels == "xla":
        return target
    folder = execution.cache_path()
    try:
        load_native(None if folder is None else folder / "native", int8=int8)
    except NativeError as error:
        if execution.cpu_kernels == "native":
            raise ConfigError(f"--cpu-kernels native: {error}; use --cpu-kernels auto") from error
        logger.info("Native kernels are off: %s", error)
        return target
    return dataclasses.replace(target, is_native=True, has_native_int8=int8)


def plan_cache(
    attention: str, shape: DeviceShape, memory: DeviceMemory, needs: MemoryNeeds, workspace: int
) -> MemoryPlan:
    """plan_memory, with no more pages than the kernels of a backend of attention can address.

    Raises:
        ConfigError: as plan_memory, or --max-total-tokens asks for pages that they cannot address.
    """
    plan = plan_memory(memory, needs, workspace)
    if attention != "gpu_triton":
        return plan
    page = shape.cache.spec.device_pages(1, shape.mesh)
    pages = addressable_pages(plan.num_pages, math.prod(page.shape), page.dtype.itemsize)
    if pages == plan.num_pages:
        return plan
    tokens = needs.tokens_of(pages - 1)
    total = tokens * needs.num_ranks
    if needs.wanted_tokens is not None:
        raise ConfigError(
            f"--max-total-tokens {needs.wanted_tokens} is too large: gpu_triton cannot address 8-bit KV caches of 2 to "
            f"4 GiB per layer; {total} would fit, or --kv-cache-dtype bfloat16, or --attention-backend xla"
        )
    logger.warning(
        "KV cache limited to %d tokens (2 GiB per layer): gpu_triton cannot address 8-bit caches of 2 to 4 GiB", total
    )
    return plan_memory(memory, dataclasses.replace(needs, useful_tokens=tokens), workspace)


def refusal(kernels: Kernels, model: ModelConfig, shape: DeviceShape) -> str | None:
    """Why these kernels cannot serve a model with this cache; None: they can. Nothing is compiled."""
    op, backend = (
        (ATTENTION, kernels.attention) if model.latent is None else (LATENT_ATTENTION, kernels.latent_attention)
    )
    if kernels.target.skips(op, backend):
        return f"kernel {op}/{backend} failed its trial on this device (--kernel-check)"
    try:
        if model.experts is not None:
            _try_experts(kernels, model.experts, model.hidden_size, shape)
        if model.latent is not None:
            _try_latents(kernels, model.num_heads, model.latent, shape)
        elif model.encoder is not None:
            _try_segments(kernels, model, shape)
        else:
            _try_attention(kernels, model, shape)
    except NotImplementedError as error:
        return str(error)
    return None


def _try_experts(kernels: Kernels, experts: ExpertsConfig, hidden_size: int, shape: DeviceShape) -> None:
    shards, parts, num_rows = num_shards(shape.mesh), num_expert_parts(shape.mesh), shape.num_slots - 1
    num_rows *= num_sharing(shape.mesh)  # of all ranks
    E, F, C = (
        experts.num_places // parts // num_sharing(shape.mesh),
        experts.intermediate_size * parts // shards,
        experts.num_chosen,
    )
    multiply = functools.partial(grouped_matmul, backend=kernels.grouped_matmul, target=kernels.target)
    for D, columns in ((hidden_size, F), (F, hidden_size)):
        sizes = (num_rows * C, D), (E, D, columns)
        jax.eval_shape(multiply, *(jax.ShapeDtypeStruct(size, shape.dtype) for size in sizes), _ints(E))


def _try_attention(kernels: Kernels, model: ModelConfig, shape: DeviceShape) -> None:
    T, shards, H = shape.num_slots - 1, num_shards(shape.mesh), model.head_size
    N, K = model.num_heads // shards, model.num_kv_heads // shards  # what one device has

    def rows(heads: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((T, heads, H), shape.dtype)

    pages = shape.cache.spec.device_pages(2, shape.mesh)
    attend = functools.partial(ragged_paged_attention, backend=kernels.attention, target=kernels.target)
    attentions = (layer.attention for layer in model.layers)
    masks = {(one.window, one.soft_cap) for one in attentions if isinstance(one, AttentionSpec)}
    write = functools.partial(kv_cache_update, backend=kernels.cache_update, target=kernels.target)
    for window, cap in masks:
        layer = functools.partial(attend, scale=1.0, sliding_window=window, soft_cap=cap)
        for metadata in _metadata(shape):
            jax.eval_shape(layer, rows(N), pages, metadata)
    jax.eval_shape(write, pages, rows(K), rows(K), CacheWrites(_ints(T), _ints(T), one_each=True))  # type: ignore[arg-type]


def _try_segments(kernels: Kernels, model: ModelConfig, shape: DeviceShape) -> None:
    """Attention of an encoder, in a step of the longest text."""
    T, shards = max(shape.num_slots - 1, shape.num_columns * shape.page_size), num_shards(shape.mesh)
    H, segments = model.head_size, Segments(_ints(T), _ints(T))  # type: ignore[arg-type]  # in place of arrays
    q, k = (
        jax.ShapeDtypeStruct((T, heads // shards, H), shape.dtype) for heads in (model.num_heads, model.num_kv_heads)
    )
    assert model.encoder is not None, "the caller knows"
    has_bias = model.encoder.distances is not None
    bias = jax.ShapeDtypeStruct((model.num_heads // shards, 3), jnp.float32) if has_bias else None
    attend = functools.partial(segment_attention, scale=1.0, backend=kernels.segment_attention, target=kernels.target)
    for window in {layer.attention.window for layer in model.layers}:
        jax.eval_shape(functools.partial(attend, window=window), q, k, k, segments, bias=bias)


def _try_latents(kernels: Kernels, num_heads: int, sizes: LatentConfig, shape: DeviceShape) -> None:
    T, N = shape.num_slots - 1, num_heads // num_shards(shape.mesh)
    queries = (jax.ShapeDtypeStruct((T, N, size), shape.dtype) for size in (sizes.latent_size, sizes.rotated_size))
    attend = functools.partial(latent_attention, scale=1.0, backend=kernels.latent_attention, target=kernels.target)
    pages, both = shape.cache.spec.device_pages(2, shape.mesh), tuple(queries)
    for metadata in _metadata(shape):
        jax.eval_shape(attend, *both, pages, metadata)
    write = functools.partial(latent_cache_update, backend=kernels.cache_update, target=kernels.target)
    rows = (jax.ShapeDtypeStruct((T, size), shape.dtype) for size in (sizes.latent_size, sizes.rotated_size))
    jax.eval_shape(write, pages, *rows, CacheWrites(_ints(T), _ints(T), one_each=True))  # type: ignore[arg-type]


def _metadata(shape: DeviceShape) -> Iterator[AttentionMetadata]:
    """The metadata of a decode and of a prefill step, which have kernels and block sizes of their own."""
    B = shape.num_slots - 1
    rest = (_ints(B + 1), _ints(B), _ints(B, shape.num_columns), _ints(), _ints())
    for kind in ("decode", "prefill"):
        yield AttentionMetadata(*rest, kind)  # type: ignore[arg-type]


def _ints(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.int32)
