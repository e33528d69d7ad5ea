"""The TPU backend: one pass over the product, which writes queries and rows of the cache in their final layout.

XLA rotates in float32 with halves of heads along the sublanes, or as arrays of half a row of lanes, and lays out its
results in passes of their own: ten operations a layer, and arrays of 32 MiB in 2,048 tokens of Llama-3.1-8B.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import interpret_mode, require

LANES = 128
ROW_TILE = 16  # tokens of a native tile of 16 bits, and two of 32 bits
MAX_TOKENS = 256  # of a block
BLOCK_BYTES = 2**21  # of what comes in; there are two buffers of it, and two of what goes out


def takes(shape: tuple[int, ...], rotated: int) -> bool:
    """Return whether tokens are whole tiles, and heads one row of lanes, all of which is rotated.

    Args:
        shape, rotated: see can_rotate_heads.
    """
    T, _, _, H = shape
    return rotated == H == LANES and T % ROW_TILE == 0


def rotate(projected: jax.Array, cos: jax.Array, sin: jax.Array, target: Target) -> tuple[jax.Array, jax.Array]:
    """Rotate projected [K, G+2, T, 128], cos and sin f32[T, 64] → [K, G, T, 128] and [K, T, 256].

    Raises:
        NotImplementedError: the target is no TPU.
    """
    require(target)
    K, slots, T, H = projected.shape
    G = slots - 2
    size = _block(T, K * slots * H * projected.dtype.itemsize)
    angles = pl.BlockSpec((size, H // 2), lambda i: (i, 0))
    call = pl.pallas_call(
        _kernel,
        grid=(T // size,),
        in_specs=[angles, angles, pl.BlockSpec((K, slots, size, H), lambda i: (0, 0, i, 0))],
        out_specs=[
            pl.BlockSpec((K, G, size, H), lambda i: (0, 0, i, 0)),
            pl.BlockSpec((K, size, 2 * H), lambda i: (0, i, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((K, G, T, H), projected.dtype),
            jax.ShapeDtypeStruct((K, T, 2 * H), projected.dtype),
        ],
        scratch_shapes=[pltpu.VMEM((size, H), jnp.float32), pltpu.VMEM((size, H), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        cost_estimate=pl.CostEstimate(
            flops=4 * projected.size, bytes_accessed=2 * projected.nbytes + 2 * cos.nbytes, transcendentals=0
        ),
        interpret=interpret_mode(target),
        name=f"rotate_heads_{size}",
    )
    heads, rows = call(cos, sin, projected)
    return heads, rows


def _block(num_tokens: int, token_bytes: int) -> int:
    """Return the tokens of a block: whole tiles that divide all of them."""
    most = max(min(MAX_TOKENS, BLOCK_BYTES // token_bytes), ROW_TILE)
    return next(size for size in range(most // ROW_TILE * ROW_TILE, 0, -ROW_TILE) if num_tokens % size == 0)


def _kernel(
    cos: jax.Array,
    sin: jax.Array,
    projected: jax.Array,
    heads: jax.Array,
    rows: jax.Array,
    own: jax.Array,
    other: jax.Array,
) -> None:
    """Rotate a block. Refs: see rotate; own and other f32[block, 128]: factors of each number, and of the other number
    of its pair."""
    K, G, _, H = heads.shape
    own[...] = jnp.concatenate([cos[...], cos[...]], axis=1)
    other[...] = jnp.concatenate([-sin[...], sin[...]], axis=1)

    def rotated_head(head: jax.Array, slot: int) -> jax.Array:
        x = projected[head, slot].astype(jnp.float32)
        both: jax.Array = x * own[...] + pltpu.roll(x, H // 2, 1) * other[...]
        return both.astype(heads.dtype)

    def rotate_head(head: jax.Array, _: None) -> None:
        for group in range(G):
            heads[head, group] = rotated_head(head, group)
        rows[head, :, :H] = rotated_head(head, G)
        rows[head, :, H:] = projected[head, G + 1]

    lax.fori_loop(0, K, rotate_head, None)
