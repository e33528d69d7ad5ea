"""Attention of an encoder: every token sees its own text, in both directions, and nothing is kept."""

import dataclasses
import functools
import math
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.base.sharding import ShardingRules, on_each_device
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.config.config import ModelConfig
from palladio.model.layers.linear import Linear
from palladio.model.layers.norm import key_norm, query_norm
from palladio.model.layers.rope import Rotations
from palladio.model.spec.encoder_spec import DistanceBias
from palladio.model.spec.layer_spec import AttentionSpec
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.segment_attention import Segments, segment_attention


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SegmentStep:
    """The values of a step that every layer of an encoder receives.

    Attributes:
        segments: the text of each token.
        rotations: rotations of queries and keys.
        distances: f32[N, 2·M+1], bias of scores by distance, see segment_attention; None: there is none.
    """

    segments: Segments
    rotations: Rotations
    distances: jax.Array | None

    @classmethod
    def of(cls, batch: ForwardBatch, config: ModelConfig, distances: jax.Array | None) -> Self:
        """Plan a step of whole texts."""
        segments = Segments.of_ends(batch.query_start[1:], batch.token_ids.shape[0])
        return cls(segments, Rotations.of(config.ropes, config.head_size, batch.positions), distances)


class SegmentAttention(Module):
    """Grouped-query attention within each text. Parameters are those of `Attention`."""

    def __init__(
        self, context: Context, config: ModelConfig, spec: AttentionSpec, kernels: Kernels, mesh: Mesh
    ) -> None:
        D, N, K, H = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_size
        self.qkv = Linear(context, (D, K, N // K + 2, H), (None, "kv_heads", None, None), bias=spec.qkv_bias)
        self.output = Linear(context, (N * H, D), ("heads", None), bias=spec.output_bias)
        norm, counts = spec.qk_norm, config.head_counts
        self.query_norm = None if norm is None else query_norm(context, N, H, norm, counts)
        self.key_norm = None if norm is None else key_norm(context, K, H, norm, counts)
        # See Attention: kinds of weights that count padding take what such heads make as any other input.
        counts_padding = any(kind.counts_padding for kind in config.weight_kinds.all)
        self.real_heads = counts.is_query if counts is not None and counts_padding else None
        self.spec = spec
        self.kernels = kernels
        self.mesh = mesh

    def __call__(self, x: jax.Array, step: SegmentStep) -> jax.Array:
        """Attend: x [T, D] → [T, D]."""
        qkv = self.qkv(x)  # [T, K, G+2, H]
        T, K, slots, H = qkv.shape
        G = slots - 2
        q, k, v = qkv[:, :, :G].reshape(T, K * G, H), qkv[:, :, G], qkv[:, :, G + 1]
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = step.rotations.rotate(q, self.spec.rope), step.rotations.rotate(k, self.spec.rope)
        rules = ShardingRules()
        own, whole = rules.spec((None, "kv_heads")), rules.spec(())
        attend = functools.partial(
            segment_attention,
            scale=self.spec.scale,
            window=self.spec.window,
            backend=self.kernels.segment_attention,
            target=self.kernels.target,
        )
        if step.distances is None:
            on_devices = on_each_device(attend, self.mesh, in_specs=(own, own, own, whole), out_specs=own)
            out = on_devices(q, k, v, step.segments)
        else:

            def add_distances(q: jax.Array, k: jax.Array, v: jax.Array, by: Segments, bias: jax.Array) -> jax.Array:
                return attend(q, k, v, by, bias=bias)

            in_specs = (own, own, own, whole, rules.spec(("query_heads",)))
            out = on_each_device(add_distances, self.mesh, in_specs=in_specs, out_specs=own)(
                q, k, v, step.segments, step.distances
            )
        if self.real_heads is not None:
            out = jnp.where(jnp.array(self.real_heads)[:, None], out, 0)
        back: jax.Array = self.output(out.reshape(T, -1))
        return back


class DistanceTable(Module):
    """A bias [buckets, N] of scores for each bucket of distances."""

    def __init__(self, context: Context, spec: DistanceBias, num_heads: int) -> None:
        shape = (spec.num_buckets, num_heads)
        self.table = context.param(shape, (None, "query_heads"), Initializer("uniform", fan_in=0))
        self.spec = spec

    def of_distances(self) -> jax.Array:
        """Return the bias by distance: f32[N, 2·M+1], column M + d for a key d tokens after the query."""
        by_distance: jax.Array = self.table[...].astype(jnp.float32)[buckets(self.spec)].T
        return by_distance


def buckets(spec: DistanceBias) -> NDArray[np.int32]:
    """Return the bucket of each distance: i32[2·M+1], from M tokens before the query to M after it. Half of the
    buckets of each side are of one distance each, the others grow by a factor."""
    most, side = spec.max_distance, spec.num_buckets // 2
    distance = np.arange(-most, most + 1)
    exact, size = side // 2, np.abs(distance)
    wide = np.maximum(size, 1).astype(np.float32) / exact
    grown = exact + (np.log(wide) / math.log(most / exact) * (side - exact)).astype(np.int32)
    within = np.where(size < exact, size, np.minimum(grown, side - 1))
    found: NDArray[np.int32] = (within + np.where(distance > 0, side, 0)).astype(np.int32)
    return found
