"""Attention: one fused projection, rotation, the cache write, the kernel, and the projection back."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.base.sharding import ShardingRules, on_each_device
from palladio.model.cache.latent_cache import LatentStep
from palladio.model.cache.paged_cache import CacheScales, PagedStep
from palladio.model.cache.state_cache import StateStep
from palladio.model.config.config import ModelConfig
from palladio.model.layers.divided_tokens import DividedTokens
from palladio.model.layers.linear import Linear
from palladio.model.layers.norm import key_norm, query_norm
from palladio.model.layers.rope import Rotations
from palladio.model.spec.layer_spec import AttentionSpec, QueryGrowth
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.head_rotation import can_rotate_heads, rotate_heads
from palladio.pallas_kernels.ragged_paged_attention import KVPages


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerContext:
    """The values of a step that every layer receives.

    Attributes:
        positions: i32[T], position of each token in its sequence.
        rotations: rotations of queries and keys.
        step: plan of cache writes and reads for layers of this kind.
        num_tokens: i32[], real tokens of T; the others are padding.
    """

    positions: jax.Array
    rotations: Rotations
    step: PagedStep | LatentStep | StateStep
    num_tokens: jax.Array


def growth_of(spec: QueryGrowth, positions: jax.Array) -> jax.Array:
    """Return the factors on queries: positions i32[T] → f32[T]."""
    return 1.0 + spec.rate * jnp.log(1.0 + (positions // spec.length).astype(jnp.float32))


class Attention(Module):
    """Grouped-query attention over the paged cache.

    The fused kernel is [D, K, G+2, H]: each kv head's G query heads, then its key, then its value, then, where results
    are gated, G gates. So it shards over K like the cache, and one product makes all of them.
    """

    def __init__(
        self, context: Context, config: ModelConfig, spec: AttentionSpec, kernels: Kernels, mesh: Mesh
    ) -> None:
        D, N, K, H = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_size
        slots = N // K * (1 + spec.has_gate) + 2
        self.qkv = Linear(context, (D, K, slots, H), (None, "kv_heads", None, None), bias=spec.qkv_bias)
        tokens = DividedTokens.of(config, kernels.target, mesh)
        self.output = Linear(context, (N * H, D), ("heads", None), bias=spec.output_bias, tokens=tokens)
        norm, counts = spec.qk_norm, config.head_counts
        self.query_norm = None if norm is None else query_norm(context, N, H, norm, counts)
        self.key_norm = None if norm is None else key_norm(context, K, H, norm, counts)
        one, f32 = Initializer("ones"), jnp.float32
        self.key_scale = context.param((1,), (None,), one, f32) if spec.has_cache_scales else None
        self.value_scale = context.param((1,), (None,), one, f32) if spec.has_cache_scales else None
        # Heads of padding see the real keys. Most kinds of weights multiply what such heads make by 0. Kinds that count
        # padding take it as any other input.
        counts_padding = any(kind.counts_padding for kind in config.weight_kinds.all)
        self.real_heads = counts.is_query if counts is not None and counts_padding else None
        self.sinks = context.param((N,), ("query_heads",), Initializer("zeros")) if spec.has_sinks else None
        self.spec = spec
        self.kernels = kernels
        self.mesh = mesh

    def __call__(self, x: jax.Array, by: LayerContext, kv_pages: KVPages) -> tuple[jax.Array, KVPages]:
        """Attend: x [T, D], kv_pages [P, K, S, 2·Hp] → [T, D] and the cache with this step's keys and values."""
        qkv = self.qkv(x)  # [T, K, G+2, H], or [T, K, 2·G+2, H]
        T, K, slots, H = qkv.shape
        G = (slots - 2) // (1 + self.spec.has_gate)
        q, k, v = qkv[:, :, :G].reshape(T, K * G, H), qkv[:, :, G], qkv[:, :, G + 1]
        if self._rotates_in_kernel(qkv.shape, by):
            q, k, v = self._rotate_in_kernel(qkv, by.rotations)
        else:
            is_late = self.spec.qk_norm is not None and self.spec.qk_norm.after_rotation
            q, k = (q, k) if is_late else self._normed(q, k)
            q, k = by.rotations.rotate(q, self.spec.rope), by.rotations.rotate(k, self.spec.rope)
            q, k = self._normed(q, k) if is_late else (q, k)
        if self.spec.query_growth is not None:
            q *= growth_of(self.spec.query_growth, by.positions)[:, None, None].astype(q.dtype)
        rules = ShardingRules()
        own, whole = rules.spec((None, "kv_heads")), rules.spec(())  # heads are second in all of them, also in scales
        sinks = None if self.sinks is None else self.sinks[...]
        in_specs = (own, own, own, whole, own, whole, rules.spec(("query_heads",)))
        attend = on_each_device(self._write_and_attend, self.mesh, in_specs=in_specs, out_specs=(own, own))
        out, kv_pages = attend(q, k, v, by.step, kv_pages, self._cache_scales(kv_pages.dtype), sinks)
        if self.real_heads is not None:
            out = jnp.where(jnp.array(self.real_heads)[:, None], out, 0)
        out = out.reshape(T, -1)
        if self.spec.has_gate:
            out *= jax.nn.sigmoid(qkv[:, :, G + 2 :].reshape(T, -1))
        return self.output(out), kv_pages

    def _normed(self, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Normalize queries [T, N, H] and keys [T, K, H], if the layer has norms for them."""
        if self.query_norm is None or self.key_norm is None:
            return q, k
        return self.query_norm(q), self.key_norm(k)

    def _rotates_in_kernel(self, shape: tuple[int, ...], by: LayerContext) -> bool:
        """Return whether a kernel rotates: in prefill steps, if there is one and no operation comes between projection
        and rotation."""
        rope, step = self.spec.rope, by.step
        if rope is None or rope.is_interleaved or self.query_norm is not None or self.spec.has_gate:
            return False
        if not isinstance(step, PagedStep) or step.metadata.kind == "decode":
            return False
        rotated = rope.rotated(shape[-1])
        return can_rotate_heads(shape, rotated, backend=self.kernels.attention, target=self.kernels.target)

    def _rotate_in_kernel(self, qkv: jax.Array, rotations: Rotations) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Rotate and split with the kernel: qkv [T, K, G+2, H] → q [T, N, H], k and v [T, K, H]."""
        assert self.spec.rope is not None
        rules = ShardingRules()
        own, whole = rules.spec((None, "kv_heads")), rules.spec(())
        rotate = functools.partial(rotate_heads, target=self.kernels.target)
        on_devices = on_each_device(rotate, self.mesh, in_specs=(own, whole, whole), out_specs=(own, own, own))
        rotated: tuple[jax.Array, jax.Array, jax.Array] = on_devices(qkv, *rotations.of_rope(self.spec.rope))
        return rotated

    def _cache_scales(self, dtype: jnp.dtype) -> CacheScales:
        """Return the divisors f32[] of keys and values in a cache of this dtype; None: 1."""
        if self.key_scale is None or self.value_scale is None or not jnp.dtype(dtype).name.startswith("float8"):
            return None
        return self.key_scale[...][0], self.value_scale[...][0]

    def _write_and_attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        step: PagedStep,
        kv_pages: KVPages,
        scales: CacheScales,
        sinks: jax.Array | None,
    ) -> tuple[jax.Array, KVPages]:
        """Write to the cache and attend: q [T, N, H], k and v [T, K, H], kv_pages [P, K, S, 2·Hp], sinks [N] → [T, N,
        H] and the cache."""
        kv_pages = step.write(kv_pages, k, v, self.kernels, scales)
        return step.attend(q, kv_pages, self.spec, self.kernels, scales, sinks), kv_pages
