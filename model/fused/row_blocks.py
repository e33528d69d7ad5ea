"""Half a layer as one call of our C++, for the few rows of a decode step on a CPU.

XLA:CPU starts an operation for each norm, rotation, sum and copy, and most of them take less time than their start.
The modules compute all that a call cannot: more rows, several devices, other caches and other weights.
"""

import math
from typing import Any, Final

import jax
import jax.numpy as jnp

from palladio.model.cache.paged_cache import PagedStep
from palladio.model.decoder import DecoderLayer
from palladio.model.layers.attention import Attention, LayerContext
from palladio.model.layers.linear import Linear
from palladio.model.layers.mlp import GatedMLP, PlainMLP
from palladio.model.layers.moe import SparseMLP
from palladio.model.layers.norm import HeadNorm, Norm
from palladio.model.weights.narrow import Narrow
from palladio.model.weights.scaled import Scaled
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.cpu_native.block_calls import (
    BLOCK_ACTIVATIONS,
    BlockEnds,
    BlockHeads,
    BlockMatrix,
    BlockNorm,
    BlockPages,
    NormKind,
    attention_block,
    mlp_block,
)
from palladio.pallas_kernels.narrow_matmul import NarrowProducts

LARGEST_DENSE: Final = 1 << 20  # numbers of a float32 matrix: larger ones are XLA's, whose products read memory faster
MOST_ROWS: Final = 128  # a call keeps all that lies between its products in memory of its own

Norms = tuple[Norm | None, Norm | None]
"""Before and after; None: there is none."""


def layer_type(kernels: Kernels) -> type[DecoderLayer]:
    """Return the class of layers that a model with these kernels is made of."""
    is_native = kernels.target.is_native and kernels.attention in ("cpu_native", "auto")
    return BlockLayer if is_native else DecoderLayer


class BlockLayer(DecoderLayer):
    """A layer that computes each half in one call, if a call can do it."""

    def attend(self, x: jax.Array, by: LayerContext, kept: Any) -> tuple[jax.Array, Any]:
        """Compute the first half, in one call if a call can do it."""
        done = None
        if isinstance(self.attention, Attention) and _are_few(x):
            norms = self.attention_norm, self.attention_output_norm
            done = attention_rows(self.attention, norms, self.residual_scale, x, by, kept)
        return super().attend(x, by, kept) if done is None else done

    def feed(self, x: jax.Array, residual: jax.Array, by: LayerContext) -> jax.Array:
        """Compute the second half, in one call if a call can do it."""
        done = None
        if not isinstance(self.mlp, SparseMLP) and _are_few(x):
            norms = self.input_norm, self.mlp_output_norm
            done = mlp_rows(self.mlp, norms, self.residual_scale, x, residual)
        return super().feed(x, residual, by) if done is None else done


def attention_rows(
    attention: Attention, norms: Norms, factor: float, x: jax.Array, by: LayerContext, kept: Any
) -> tuple[jax.Array, Any] | None:
    """Return x + factor · norm(attention(norm(x))), and the cache; None: a call cannot do it."""
    spec, step = attention.spec, by.step
    qkv, output, ends = _matrix(attention.qkv, x), _matrix(attention.output, x), _ends(norms, factor, x, x)
    is_plain_cache = isinstance(kept, jax.Array) and kept.dtype == jnp.float32
    is_usual = attention.mesh.size == 1 and spec.query_growth is None and _has_own_means(attention)
    if qkv is None or output is None or ends is None:
        return None
    if not (is_plain_cache and is_usual and isinstance(step, PagedStep)):
        return None
    H = attention.qkv.shape[-1]
    rotation = None if spec.rope is None else by.rotations.of_rope(spec.rope)
    query_norm, key_norm = attention.query_norm, attention.key_norm
    heads = BlockHeads(
        num_heads=attention.output.shape[0] // H,
        head_size=H,
        form="none" if query_norm is None else query_norm.form,
        kind=NormKind() if query_norm is None else _kind(query_norm),
        query_norm=_parameters(query_norm),
        key_norm=_parameters(key_norm),
        cos=None if rotation is None else rotation[0],
        sin=None if rotation is None else rotation[1],
        is_interleaved=spec.rope is not None and spec.rope.is_interleaved,
        has_gate=spec.has_gate,
        scale=spec.scale,
        window=spec.window,
        soft_cap=spec.soft_cap,
    )
    writes, metadata = step.writes, step.metadata
    sinks = None if attention.sinks is None else attention.sinks[...]
    reads = (metadata.query_start, metadata.kv_len, metadata.block_table, sinks)
    cache = BlockPages(kept, writes.page_ids, writes.page_offsets, *reads)
    return attention_block(ends, qkv, output, heads, cache)


def mlp_rows(
    mlp: GatedMLP | PlainMLP, norms: Norms, factor: float, x: jax.Array, residual: jax.Array
) -> jax.Array | None:
    """Return residual + factor · norm(mlp(norm(x))); None: a call cannot do it."""
    is_gated, activation = isinstance(mlp, GatedMLP), mlp.spec.activation
    first = mlp.gate_up if isinstance(mlp, GatedMLP) else mlp.up
    up, down, ends = _matrix(first, x), _matrix(mlp.down, x), _ends(norms, factor, x, residual)
    if up is None or down is None or ends is None or activation not in BLOCK_ACTIVATIONS:
        return None
    return mlp_block(ends, up, down, width=mlp.down.shape[0], activation=activation, is_gated=is_gated)


def _are_few(x: jax.Array) -> bool:
    """Return whether calls take these rows."""
    return x.dtype == jnp.float32 and x.shape[0] <= MOST_ROWS


def _has_own_means(attention: Attention) -> bool:
    """Whether norms of heads are of all heads that there are, none of them a copy."""
    norms = (norm for norm in (attention.query_norm, attention.key_norm) if norm is not None)
    return all(norm.form != "all_heads" or (norm.counts is None and norm.spec.kind == "rms") for norm in norms)


def _ends(norms: Norms, factor: float, x: jax.Array, residual: jax.Array) -> BlockEnds | None:
    before, after = norms
    kinds = {_kind(norm) for norm in norms if norm is not None} or {NormKind()}
    if len(kinds) > 1:
        return None
    return BlockEnds(x, residual, _parameters(before), _parameters(after), kinds.pop(), factor)


def _kind(norm: Norm) -> NormKind:
    added = 1.0 if norm.spec.scaling == "plus_one" else 0.0
    return NormKind(norm.spec.eps, added, norm.spec.kind == "layer")


def _parameters(norm: Norm | HeadNorm | None) -> BlockNorm:
    if norm is None:
        return BlockNorm()
    return BlockNorm(norm.scale[...], None if norm.bias is None else norm.bias[...])


def _matrix(linear: Linear, x: jax.Array) -> BlockMatrix | None:
    """Return a projection as an argument of a call; None: no call multiplies this kind of weight, or this many rows."""
    weight: Weight = linear.kernel
    bias = None if linear.bias is None else linear.bias[...].reshape(-1)
    values, *factors = weight.arrays()
    if isinstance(weight, Dense):
        fits = values.dtype == jnp.float32 and weight.inputs == 0 and math.prod(values.shape) <= LARGEST_DENSE
        return BlockMatrix(values.reshape(values.shape[0], -1), bias=bias) if fits else None
    flat = values.reshape(-1, values.shape[-1])
    if isinstance(weight, Narrow) and values.dtype == jnp.bfloat16:
        is_few = x.shape[0] <= weight.products.native_rows
        return BlockMatrix(flat, bias=bias) if is_few else None
    if isinstance(weight, Scaled) and weight.multiplies_bytes:
        if x.shape[0] > NarrowProducts.of(weight.kernels.target).native_int8_rows:
            return None
        scales, *zeros = (factor.reshape(-1) for factor in factors)
        return BlockMatrix(flat, scales, zeros[0] if zeros else None, bias, weight.kind.activation_bits)
    return None
