"""The layout of latents in the paged cache. No other file depends on it.

A layer's cache is one array [P, S, W]: page, row in the page, then the latent in lanes 0:L and the rotated part of the
key in lanes L:L+R. W is L + R in whole TPU rows of 128 lanes (512 + 64 → 640), and lanes beyond L + R are 0 in every
row that was written. There are no heads: every head reads the whole row, as its key, and lanes 0:L again, as its value.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.target import Target

LANES = 128
DTYPES = ("float32", "bfloat16", "float16")  # of 8 bits a row would need a scale


@dataclasses.dataclass(frozen=True, slots=True)
class LatentOptions:
    """Options that all tokens of a layer share.

    Attributes:
        size: lanes of a row that are its value (L).
        rotated: lanes after these that belong to the key alone (R).
        scale: factor on q·row before the softmax.
        target: the device that kernels are compiled for.
    """

    size: int
    rotated: int
    scale: float
    target: Target = Target()


def latent_page_shape(num_pages: int, page_size: int, latent_size: int, rotated_size: int) -> tuple[int, int, int]:
    """Return the shape of one layer's cache: [P, S, W]."""
    return num_pages, page_size, -(-(latent_size + rotated_size) // LANES) * LANES


def latent_shape(
    num_heads: int, pages: jax.Array | jax.ShapeDtypeStruct, block_table: jax.Array, dtype: DTypeLike
) -> AttentionShape:
    """Return the shape that block sizes depend on: one kv head, whose size is that of a whole row.

    Args:
        num_heads: heads of one device.
        pages: [P, S, W].
        dtype: dtype of queries.
    """
    (num_rows, table_width), (_, page_size, width) = block_table.shape, pages.shape
    return AttentionShape(num_heads, 1, width, page_size, table_width, num_rows, dtype, pages.dtype)


def pack_rows(latent: jax.Array, rotated: jax.Array, width: int, dtype: DTypeLike) -> jax.Array:
    """Pack […, L] and […, R] → […, width], rows of a cache of that dtype."""
    row = jnp.concatenate([latent.astype(dtype), rotated.astype(dtype)], axis=-1)
    return jnp.pad(row, [*[(0, 0)] * (row.ndim - 1), (0, width - row.shape[-1])])
