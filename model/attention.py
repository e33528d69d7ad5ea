"""Attention: one fused projection, rotation, the cache write, the kernel, and the projection back."""

import dataclasses
from typing import Self

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.config import ModelConfig
from palladio.model.forward_batch import ForwardBatch
from palladio.model.layer_spec import AttentionSpec
from palladio.model.linear import Linear
from palladio.model.module import Context, Module
from palladio.model.norm import key_norm, query_norm
from palladio.model.rope import Rotations
from palladio.model.sharding import ShardingRules, on_each_device
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update, plan_writes
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    AttentionShape,
    plan_attention,
    ragged_paged_attention,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedStep:
    """How a step writes and reads the cache: planned once, the same for every layer."""

    writes: CacheWrites
    metadata: AttentionMetadata

    @classmethod
    def of(
        cls,
        batch: ForwardBatch,
        config: ModelConfig,
        dtype: DTypeLike,
        kv_pages: jax.Array,
        kernels: Kernels,
        num_shards: int = 1,
    ) -> Self:
        """Args: dtype: of activations. kv_pages: one layer's cache. num_shards: devices that share its heads."""
        shape = AttentionShape(
            num_heads=config.num_heads // num_shards,
            num_kv_heads=config.num_kv_heads // num_shards,
            head_size=config.head_size,
            page_size=kv_pages.shape[2],
            table_width=batch.block_table.shape[1],
            num_rows=batch.kv_len.shape[0],
            dtype=dtype,
            kv_dtype=kv_pages.dtype,
        )
        return cls(
            plan_writes(batch.cache_writes(kv_pages.shape[2]), backend=kernels.cache_update, target=kernels.target),
            plan_attention(
                batch.attention_metadata(),
                batch.token_ids.shape[0],
                shape,
                backend=kernels.attention,
                target=kernels.target,
            ),
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerContext:
    """What a step brings to every layer.

    Attributes:
        positions: i32[T], of each token in its sequence.
        rotations: of queries and keys.
        step: how the cache is written and read.
        num_tokens: i32[], real tokens of T; the others are padding.
    """

    positions: jax.Array
    rotations: Rotations
    step: PagedStep
    num_tokens: jax.Array


class Attention(Module):
    """Grouped-query attention over the paged cache.

    The fused kernel is [D, K, G+2, H]: each kv head's G query heads, then its key, then its value. So it shards over K
    like the cache, and one product makes all three.
    """

    def __init__(
        self, context: Context, config: ModelConfig, spec: AttentionSpec, kernels: Kernels, mesh: Mesh
    ) -> None:
        D, N, K, H = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_size
        self.qkv = Linear(context, (D, K, N // K + 2, H), (None, "kv_heads", None, None), bias=spec.qkv_bias)
        self.output = Linear(context, (N * H, D), ("heads", None), bias=spec.output_bias)
        norm, counts = spec.qk_norm, config.head_counts
        self.query_norm = None if norm is None else query_norm(context, N, H, norm, counts)
        self.key_norm = None if norm is None else key_norm(context, K, H, norm, counts)
        self.spec = spec
        self.kernels = kernels
        self.mesh = mesh

    def __call__(self, x: jax.Array, by: LayerContext, kv_pages: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x [T, D], kv_pages [P, K, S, 2·Hp] → [T, D] and the cache with this step's keys and values."""
        qkv = self.qkv(x)  # [T, K, G+2, H]
        T, K, heads, H = qkv.shape
        q, k, v = qkv[:, :, :-2].reshape(T, K * (heads - 2), H), qkv[:, :, -2], qkv[:, :, -1]
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = by.rotations.rotate(q, self.spec.rope), by.rotations.rotate(k, self.spec.rope)
        rules = ShardingRules()
        own, whole = rules.spec((None, "kv_heads")), rules.spec(())  # heads are second in all of them
        attend = on_each_device(
            self._write_and_attend, self.mesh, in_specs=(own, own, own, whole, own), out_specs=(own, own)
        )
        out, kv_pages = attend(q, k, v, by.step, kv_pages)
        return self.output(out.reshape(T, -1)), kv_pages

    def _write_and_attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, step: PagedStep, kv_pages: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """q [T, N, H], k and v [T, K, H], kv_pages [P, K, S, 2·Hp] → [T, N, H] and the cache."""
        target = self.kernels.target
        kv_pages = kv_cache_update(kv_pages, k, v, step.writes, backend=self.kernels.cache_update, target=target)
        out = ragged_paged_attention(
            q,
            kv_pages,
            step.metadata,
            scale=self.spec.scale,
            sliding_window=self.spec.window,
            soft_cap=self.spec.soft_cap,
            backend=self.kernels.attention,
            target=target,
        )
        return out, kv_pages
