"""The pool program: what a prefill step adds to its requests' embeddings, and those of the prompts that it ends."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from palladio.model.pooling.pool import PackedRows, pool_rows
from palladio.model.pooling.pooling_spec import PoolingSpec
from palladio.runtime.execution.batch.batch_builder import ForwardLayout


def pool_step(
    pooled: jax.Array,
    hidden: jax.Array,
    packed: jax.Array,
    *,
    layout: ForwardLayout,
    pooling: PoolingSpec,
    weights: Sequence[jax.Array] = (),
) -> tuple[jax.Array, jax.Array]:
    """Pools the hidden states of a prefill step.

    A row that begins with its request's first token begins anew, so what an earlier owner of the slot left, or the
    request itself before it was retracted, is never read.

    Args:
        pooled: f32[slots, num_carried · D], what was pooled of each slot's request by earlier steps.
        hidden: [T, D], after the final norm.
        packed: i32[layout.size], see ForwardLayout.
        weights: the tensors of `pooling.tensors`.

    Returns:
        The new `pooled`, and f32[B, D']: the embedding of each row as if its prompt ended with this step. It is not
        finite where a hidden state that went into it is not.
    """
    _, slots, starts, stops, _, _ = (packed[part] for part in layout.sections)
    lengths = stops - starts
    ends = jnp.cumsum(lengths, dtype=jnp.int32)
    rows = PackedRows(ends - lengths, ends, starts)
    carried, vectors = pool_rows(pooling, hidden, rows, pooled[slots], weights)
    return pooled.at[slots].set(carried) if pooling.num_carried else pooled, vectors
