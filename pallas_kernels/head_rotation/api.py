"""The public interface of the rotation of heads, which says where there is a kernel."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.head_rotation import reference, tpu
from palladio.pallas_kernels.target import Target

OP = "head_rotation"
BACKENDS = {"tpu": tpu.rotate, "reference": reference.rotate}


def can_rotate_heads(shape: tuple[int, ...], rotated: int, *, backend: str, target: Target) -> bool:
    """Return whether there is a kernel. Otherwise XLA rotates, and fuses it with the operations before and after.

    Args:
        shape: shape of `projected`, see rotate_heads.
        rotated: dimensions of a head that are rotated.
        backend: backend of attention, whose layout the results have.
        target: the device that kernels are compiled for.
    """
    is_tpu = backend == "tpu" or (backend == "auto" and target.platform == "tpu")
    return is_tpu and not target.skips(OP, "tpu") and tpu.takes(shape, rotated)


def rotate_heads(
    projected: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    backend: str = "tpu",
    target: Target = Target(),
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rotate the product for q, k and v: the first half of a head's numbers with the second.

    Args:
        projected: [T, K, G+2, H], of each kv head its queries, its key, and its value.
        cos, sin: f32[T, H/2], of each token's angles.
        backend: the name of one.
        target: the device that kernels are compiled for.

    Returns:
        q [T, K·G, H] and k [T, K, H], rotated, and v [T, K, H]. From the kernel, tokens of one head follow each other
        in memory, and a value its key: the layout of chunks of prompts in attention, and of cache writes.
    """
    T, K, slots, H = projected.shape
    heads, rows = BACKENDS[backend](projected.transpose(1, 2, 0, 3), cos, sin, target)
    q = heads.transpose(2, 0, 1, 3).reshape(T, K * (slots - 2), H)
    rows = jnp.swapaxes(rows, 0, 1)  # before it is cut, so that XLA finds both parts to be one
    return q, rows[..., :H], rows[..., H:]
