"""Calls of the library that compute half a layer for a few rows: norm, products, the operations between them, residual
sum."""

import dataclasses
from collections.abc import Iterable
from typing import Final, Literal

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.cpu_native.calls import ATTENTION_BLOCK, MLP_BLOCK, name_of
from palladio.pallas_kernels.cpu_native.forms import Form

BlockActivation = Literal["silu", "gelu_tanh", "relu2"]
HeadForm = Literal["none", "head", "own_scales", "all_heads"]
BLOCK_ACTIVATIONS: Final[tuple[BlockActivation, ...]] = ("silu", "gelu_tanh", "relu2")
_HEAD_FORMS: Final[tuple[HeadForm, ...]] = ("none", "head", "own_scales", "all_heads")
_NOTHING: Final = np.zeros(0, np.float32)
Parameter = jax.Array | None


@dataclasses.dataclass(frozen=True)
class BlockNorm:
    """The parameters of a norm, f32 or bf16[size]. scale: None: there is no norm. bias: None: it has none."""

    scale: Parameter = None
    bias: Parameter = None

    @property
    def arrays(self) -> tuple[Parameter, ...]:
        """The arguments of the call."""
        return self.scale, self.bias


@dataclasses.dataclass(frozen=True)
class BlockMatrix:
    """A matrix of a block.

    Attributes:
        values: f32[in, out], or bf16 or int8[out, in].
        scales, zeros: [out], for int8; f32, and zeros int8 too. None: there are none.
        bias: f32 or bf16[out]; None: there is none.
        bits: bits of the rows that int8 is multiplied with.
    """

    values: jax.Array
    scales: Parameter = None
    zeros: Parameter = None
    bias: Parameter = None
    bits: Literal[8, 16] = 16

    @property
    def arrays(self) -> tuple[Parameter, ...]:
        """The arguments of the call."""
        return self.values, self.scales, self.zeros, self.bias


@dataclasses.dataclass(frozen=True)
class NormKind:
    """The kind of the norms of a block, or of heads.

    Attributes:
        eps: added to the mean of squares.
        added: added to the scale.
        is_centered: the mean is subtracted first.
    """

    eps: float = 0.0
    added: float = 0.0
    is_centered: bool = False


@dataclasses.dataclass(frozen=True)
class BlockEnds:
    """The beginning and the end of a block: residual + factor · after(block(before(x))).

    Attributes:
        x, residual: f32[T, D].
        before, after: norms of `kind`.
    """

    x: jax.Array
    residual: jax.Array
    before: BlockNorm
    after: BlockNorm
    kind: NormKind
    factor: float

    @property
    def arrays(self) -> tuple[Parameter, ...]:
        """The arguments of the call after x."""
        return self.residual, *self.before.arrays, *self.after.arrays

    @property
    def attributes(self) -> dict[str, object]:
        """The attributes of the call."""
        kind = self.kind
        norms = {"eps": np.float32(kind.eps), "added": np.float32(kind.added), "is_centered": kind.is_centered}
        return {**norms, "factor": np.float32(self.factor)}


def mlp_block(
    ends: BlockEnds,
    up: BlockMatrix,
    down: BlockMatrix,
    *,
    width: int,
    activation: BlockActivation,
    is_gated: bool,
    form: Form | None = None,
) -> jax.Array:
    """Compute down(activation(gate(x)) · up(x)), or without a gate down(activation(up(x))).

    Args:
        up: the gate's outputs first, if there is one.
        width: F, inputs of `down`.
        form: as in `rows_times_bfloat16`.

    Returns:
        f32[T, D].
    """
    call = jax.ffi.ffi_call(name_of(MLP_BLOCK, form), jax.ShapeDtypeStruct(ends.x.shape, jnp.float32))
    arrays = (*ends.arrays, *up.arrays, *down.arrays)
    out: jax.Array = call(
        ends.x,
        *_present(arrays),
        **ends.attributes,
        width=np.int64(width),
        activation=np.int64(BLOCK_ACTIVATIONS.index(activation)),
        is_gated=is_gated,
        up_bits=np.int64(up.bits),
        down_bits=np.int64(down.bits),
    )
    return out


@dataclasses.dataclass(frozen=True)
class BlockHeads:
    """The operations on queries and keys before attention, and its options.

    Attributes:
        num_heads, head_size: N, H.
        form: the heads that share a mean and scales of a norm.
        kind, query_norm, key_norm: the kind of these norms, and their parameters.
        cos, sin: f32[T, R/2]; None: nothing is rotated.
        is_interleaved: the numbers of a pair are neighbours.
        has_gate: after each kv head's value come as many gates as it has queries.
        scale, window, soft_cap: options of attention, see `paged_attention`.
    """

    num_heads: int
    head_size: int
    form: HeadForm
    kind: NormKind
    query_norm: BlockNorm
    key_norm: BlockNorm
    cos: Parameter
    sin: Parameter
    is_interleaved: bool
    has_gate: bool
    scale: float
    window: int | None
    soft_cap: float | None

    @property
    def attributes(self) -> dict[str, object]:
        """The attributes of the call."""
        return {
            "heads": np.int64(self.num_heads),
            "head_size": np.int64(self.head_size),
            "pairs": np.int64(0 if self.cos is None else self.cos.shape[-1]),
            "head_norm": np.int64(_HEAD_FORMS.index(self.form)),
            "head_eps": np.float32(self.kind.eps),
            "head_added": np.float32(self.kind.added),
            "is_head_centered": self.kind.is_centered,
            "is_interleaved": self.is_interleaved,
            "has_gate": self.has_gate,
            "scale": np.float32(self.scale),
            "window": np.int64(self.window or 0),
            "soft_cap": np.float32(self.soft_cap or 0.0),
        }


@dataclasses.dataclass(frozen=True)
class BlockPages:
    """The cache f32[P, K, S, 2·Hp], the cells that a step writes, and the rows that each request reads: see
    `cache_write` and `paged_attention`."""

    pages: jax.Array
    page_ids: jax.Array
    page_offsets: jax.Array
    query_start: jax.Array
    kv_len: jax.Array
    block_table: jax.Array
    sinks: Parameter

    @property
    def arrays(self) -> tuple[Parameter, ...]:
        """The arguments of the call after the cache."""
        return self.page_ids, self.page_offsets, self.query_start, self.kv_len, self.block_table, self.sinks


def attention_block(
    ends: BlockEnds,
    qkv: BlockMatrix,
    output: BlockMatrix,
    heads: BlockHeads,
    cache: BlockPages,
    *,
    form: Form | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute attention with the projections around it, and write keys and values before it; rows of page 0 are not
    written.

    Args:
        qkv: outputs [K, slots, H]: of each kv head its queries, its key, its value, its gates.
        form: as in `rows_times_bfloat16`.

    Returns:
        f32[T, D], and the cache.
    """
    results = jax.ShapeDtypeStruct(ends.x.shape, jnp.float32), jax.ShapeDtypeStruct(cache.pages.shape, jnp.float32)
    call = jax.ffi.ffi_call(name_of(ATTENTION_BLOCK, form), results, input_output_aliases={1: 1})
    norms = (*heads.query_norm.arrays, *heads.key_norm.arrays)
    arrays = (*ends.arrays, *qkv.arrays, *output.arrays, *norms, heads.cos, heads.sin, *cache.arrays)
    own = {"qkv_bits": np.int64(qkv.bits), "output_bits": np.int64(output.bits)}
    out, pages = call(ends.x, cache.pages, *_present(arrays), **ends.attributes, **heads.attributes, **own)
    return out, pages


def _present(arrays: Iterable[Parameter]) -> Iterable[jax.Array | np.ndarray]:
    """Replace None with empty arrays."""
    return (_NOTHING if array is None else array for array in arrays)
