"""The kernels that a model's programs use on one device, with the cases of their trials."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from palladio.model.base.sharding import num_expert_parts, num_shards, num_sharing
from palladio.model.config.config import ModelConfig
from palladio.model.functional import ModelStructure, unflatten_model
from palladio.model.layers.moe import routing_of
from palladio.model.spec.layer_spec import AttentionSpec, LatentSpec, SparseSpec
from palladio.model.weights.scaled import Scaled
from palladio.model.weights.weight import Dense
from palladio.pallas_kernels.block_matmul.api import OP as BLOCK_MATMUL
from palladio.pallas_kernels.block_matmul.api import order_of as order_of_blocks
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.expert_routing import can_route_experts, can_sum_experts
from palladio.pallas_kernels.expert_routing.api import OP as EXPERT_ROUTING
from palladio.pallas_kernels.expert_routing.api import OP_OF_SUMS as EXPERT_SUM
from palladio.pallas_kernels.expert_routing.api import backend_of
from palladio.pallas_kernels.grouped_matmul.api import OP as GROUPED_MATMUL
from palladio.pallas_kernels.grouped_matmul.api import order_of as order_of_groups
from palladio.pallas_kernels.head_rotation import can_rotate_heads
from palladio.pallas_kernels.head_rotation.api import OP as HEAD_ROTATION
from palladio.pallas_kernels.kv_cache_update.api import OP as CACHE_UPDATE
from palladio.pallas_kernels.latent_attention.api import OP as LATENT_ATTENTION
from palladio.pallas_kernels.ragged_paged_attention import AttentionShape, ScaledPages
from palladio.pallas_kernels.ragged_paged_attention.api import OP as ATTENTION
from palladio.pallas_kernels.segment_attention.api import OP as SEGMENT_ATTENTION
from palladio.runtime.core.trials.attention_cases import AttentionLayer
from palladio.runtime.core.trials.case import PORTABLE, Case, Kernel, first_taken
from palladio.runtime.core.trials.expert_cases import ExpertSum, Rotation, Router
from palladio.runtime.core.trials.latent_cases import LatentLayer
from palladio.runtime.core.trials.product_cases import MOST_GROUPS, BlockProduct, GroupedProduct
from palladio.runtime.core.trials.segment_cases import SegmentLayer
from palladio.runtime.core.trials.write_cases import CacheWrite
from palladio.runtime.execution.state.device_state import DeviceShape, Weights

STEP_TOKENS = 16, 256  # of steps that are tried where an op has one kernel for both kinds

_Found = Iterator[tuple[str, str, list[Case]]]  # op, backend, cases


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelOnDevice:
    """What the shapes of kernels follow from.

    Attributes:
        kernels: backends of the model's ops.
        model: laid out over the devices.
        shape: shape of the devices' state.
        structure, weights: of the model, without values.
        for_speed: adds cases that measure the speed of long steps.
    """

    kernels: Kernels
    model: ModelConfig
    shape: DeviceShape
    structure: ModelStructure
    weights: Weights
    for_speed: bool = False

    def kernels_in_use(self) -> list[Kernel]:
        """Return the kernels that a trial covers, in the order of a step. Backends that XLA compiles from plain
        operations are none."""
        found: dict[tuple[str, str], dict[str, Case]] = {}
        for op, backend, cases in self._found():
            if backend not in PORTABLE:
                found.setdefault((op, backend), {}).update({case.signature(): case for case in cases})
        return [Kernel(op, backend, tuple(cases.values())) for (op, backend), cases in found.items()]

    def _found(self) -> _Found:
        if self.model.encoder is not None:
            yield from self._of_segments()
        else:
            yield from self._of_latents() if self.model.latent is not None else self._of_attention()
        yield from self._of_rotation()
        yield from self._of_products()
        yield from self._of_experts()

    def _of_attention(self) -> _Found:
        model, backend, target = self.model, self.kernels.attention, self.kernels.target
        shards, pages = num_shards(self.shape.mesh), self.shape.cache.spec.device_pages(2, self.shape.mesh)
        sizes = AttentionShape(
            num_heads=model.num_heads // shards,
            num_kv_heads=model.num_kv_heads // shards,
            head_size=model.head_size,
            page_size=pages.shape[2],
            table_width=self.shape.num_columns,
            num_rows=0,
            dtype=self.shape.dtype,
            kv_dtype=jnp.dtype(pages.dtype),
        )
        is_float8 = not isinstance(pages, ScaledPages) and jnp.dtype(pages.dtype).name.startswith("float8")
        specs = dict.fromkeys(one.attention for one in model.layers if isinstance(one.attention, AttentionSpec))
        for spec in specs:
            by_scales = spec.has_cache_scales and is_float8
            layer = AttentionLayer(sizes, spec.scale, spec.window, spec.soft_cap, spec.has_sinks, by_scales)
            if backend not in PORTABLE:
                yield ATTENTION, backend, layer.cases(backend, target)
            if backend not in PORTABLE and self.for_speed:
                yield ATTENTION, backend, [layer.speed_case()]
            head = (sizes.num_kv_heads, sizes.head_size)
            write = CacheWrite(pages, (head, head), self.shape.dtype, by_scales)
            yield CACHE_UPDATE, self.kernels.cache_update, write.cases()

    def _of_segments(self) -> _Found:
        model, backend, shards = self.model, self.kernels.segment_attention, num_shards(self.shape.mesh)
        assert model.encoder is not None
        heads = model.num_heads // shards, model.num_kv_heads // shards, model.head_size
        has_bias = model.encoder.distances is not None
        for spec in dict.fromkeys(one.attention for one in model.layers):
            assert isinstance(spec, AttentionSpec)
            layer = SegmentLayer(*heads, self.shape.dtype, spec.scale, spec.window, has_bias)
            yield SEGMENT_ATTENTION, backend, layer.cases()

    def _of_latents(self) -> _Found:
        latent, backend = self.model.latent, self.kernels.latent_attention
        assert latent is not None
        pages = self.shape.cache.spec.device_pages(2, self.shape.mesh)
        layer = LatentLayer(
            num_heads=self.model.num_heads // num_shards(self.shape.mesh),
            latent_size=latent.latent_size,
            rotated_size=latent.rotated_size,
            page_size=pages.shape[1],
            table_width=self.shape.num_columns,
            dtype=self.shape.dtype,
            kv_dtype=pages.dtype,
            scale=next(one.attention.scale for one in self.model.layers if isinstance(one.attention, LatentSpec)),
        )
        if backend not in PORTABLE:
            yield LATENT_ATTENTION, backend, layer.cases(backend, self.kernels.target)
        if backend not in PORTABLE and self.for_speed:
            yield LATENT_ATTENTION, backend, [layer.speed_case()]
        rows = (latent.latent_size,), (latent.rotated_size,)
        yield CACHE_UPDATE, self.kernels.cache_update, CacheWrite(pages, rows, self.shape.dtype).cases()

    def _of_rotation(self) -> _Found:
        model, T = self.model, STEP_TOKENS[-1]
        shards = num_shards(self.shape.mesh)
        group = model.num_heads // model.num_kv_heads
        rotation = Rotation(model.num_kv_heads // shards, group, model.head_size, self.shape.dtype)
        for spec in dict.fromkeys(layer.attention for layer in model.layers):
            if not isinstance(spec, AttentionSpec) or spec.rope is None or spec.qk_norm is not None or spec.has_gate:
                continue
            rotated = spec.rope.rotated(model.head_size)
            by: dict[str, Any] = {"backend": self.kernels.attention, "target": self.kernels.target}
            if not spec.rope.is_interleaved and can_rotate_heads(rotation.shape(T), rotated, **by):
                yield HEAD_ROTATION, "tpu", [rotation.case(T)]

    def _of_products(self) -> _Found:
        """Find the products that kernels may compute: experts, and matrices with scales of groups."""
        nodes = nnx.iter_graph(unflatten_model(self.structure, self.weights))
        for product in dict.fromkeys(_products(nodes, self.shape)):
            if isinstance(product, BlockProduct):
                op, backend, order = BLOCK_MATMUL, self.kernels.block_matmul, order_of_blocks(self.kernels.target)
            else:
                op, backend, order = GROUPED_MATMUL, self.kernels.grouped_matmul, order_of_groups(self.kernels.target)
            names = order if backend == "auto" else (backend,)
            if all(name in PORTABLE for name in names):
                continue
            for case in product.cases():
                taken = first_taken(case.call, names, self.kernels.target, case.abstract())
                yield op, taken or PORTABLE[0], [case]

    def _of_experts(self) -> _Found:
        experts, mesh = self.model.experts, self.shape.mesh
        if experts is None or num_sharing(mesh) > 1:
            return
        backend, target, D = self.kernels.attention, self.kernels.target, self.model.hidden_size
        here, C = experts.num_places // num_expert_parts(mesh), experts.num_chosen
        for spec in dict.fromkeys(layer.mlp for layer in self.model.layers if isinstance(layer.mlp, SparseSpec)):
            routing = routing_of(spec.router, C, here)
            router = Router(routing, experts.num_experts, D, self.shape.dtype)
            for T in STEP_TOKENS:
                x = jax.ShapeDtypeStruct((T, D), self.shape.dtype)
                by: dict[str, Any] = {"backend": backend, "target": target}
                if not can_route_experts(x, experts.num_experts, routing, **by):  # type: ignore[arg-type]
                    continue
                yield EXPERT_ROUTING, backend_of(target), [router.case(T)]
                products = jax.ShapeDtypeStruct((T * C, D), self.shape.dtype)
                places = jax.ShapeDtypeStruct((T, C), jnp.int32)
                rows = T * C // num_expert_parts(mesh)
                if can_sum_experts(products, places, rows, target=target):  # type: ignore[arg-type]
                    out = self.shape.dtype if spec.shared_expert is None else jnp.float32
                    yield EXPERT_SUM, "tpu", [ExpertSum(C, D, self.shape.dtype, out).case(T)]


def _products(nodes: Iterable[tuple[Any, Any]], shape: DeviceShape) -> Iterator[GroupedProduct | BlockProduct]:
    """Find the products of a model's weights that grouped_matmul or block_matmul computes, with one device's sizes."""
    for _, node in nodes:
        if not isinstance(node, Scaled | Dense):
            continue
        values = node.values.get_value()
        sizes: Sequence[int] = values.sharding.shard_shape(values.shape)
        is_expert = node.inputs == 1 and len(sizes) == 3
        if isinstance(node, Dense):
            if is_expert:
                E, D, F = sizes
                yield GroupedProduct(min(E, MOST_GROUPS), D, F, shape.dtype, shape.dtype)
        elif is_expert:
            E, D, F = sizes
            scales = node.group or D, node.kind.has_zeros, node.kind.is_float4
            yield GroupedProduct(min(E, MOST_GROUPS), D, F, shape.dtype, jnp.dtype(values.dtype), *scales)
        elif node.group is not None and node.inputs == 0 and len(sizes) == 2:
            if node.multiplies_blocks:
                yield BlockProduct(sizes[1], sizes[0], shape.dtype, node.group)
            else:
                D, F = sizes
                scales = node.group, node.kind.has_zeros, node.kind.is_float4
                yield GroupedProduct(1, D, F, shape.dtype, jnp.dtype(values.dtype), *scales)
