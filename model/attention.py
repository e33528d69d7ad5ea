"""Attention: one fused projection, rotation, the cache write, the kernel, and the projection back."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from palladio.model.config import ModelConfig
from palladio.model.kv_cache import PagedStep
from palladio.model.latent_cache import LatentStep
from palladio.model.layer_spec import AttentionSpec, QueryGrowth
from palladio.model.linear import Linear
from palladio.model.module import Context, Initializer, Module
from palladio.model.norm import key_norm, query_norm
from palladio.model.rope import Rotations
from palladio.model.sharding import ShardingRules, on_each_device
from palladio.pallas_kernels.choice import Kernels


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerContext:
    """What a step brings to every layer.

    Attributes:
        positions: i32[T], of each token in its sequence.
        rotations: of queries and keys.
        step: how the layer's pages are written and read, by layers of its kind.
        num_tokens: i32[], real tokens of T; the others are padding.
    """

    positions: jax.Array
    rotations: Rotations
    step: PagedStep | LatentStep
    num_tokens: jax.Array


def _growth(spec: QueryGrowth, positions: jax.Array) -> jax.Array:
    """positions i32[T] → f32[T]"""
    return 1.0 + spec.rate * jnp.log(1.0 + (positions // spec.length).astype(jnp.float32))


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
        self.sinks = context.param((N,), ("query_heads",), Initializer("zeros")) if spec.has_sinks else None
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
        if self.spec.query_growth is not None:
            q *= _growth(self.spec.query_growth, by.positions)[:, None, None].astype(q.dtype)
        rules = ShardingRules()
        own, whole = rules.spec((None, "kv_heads")), rules.spec(())  # heads are second in all of them
        sinks = None if self.sinks is None else self.sinks[...]
        in_specs = (own, own, own, whole, own, rules.spec(("query_heads",)))
        attend = on_each_device(self._write_and_attend, self.mesh, in_specs=in_specs, out_specs=(own, own))
        out, kv_pages = attend(q, k, v, by.step, kv_pages, sinks)
        return self.output(out.reshape(T, -1)), kv_pages

    def _write_and_attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, step: PagedStep, kv_pages: jax.Array, sinks: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """q [T, N, H], k and v [T, K, H], kv_pages [P, K, S, 2·Hp], sinks [N] → [T, N, H] and the cache."""
        kv_pages = step.write(kv_pages, k, v, self.kernels)
        return step.attend(q, kv_pages, self.spec, self.kernels, sinks), kv_pages
