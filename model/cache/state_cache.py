"""What layers with a recurrent state keep: a state of fixed size a slot. For pools see model/cache/kv_cache.py."""

import dataclasses
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from palladio.model.base.sharding import ShardingRules, num_ranks
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.spec.delta_config import DeltaConfig
from palladio.pallas_kernels.gated_delta import DeltaRows


class DeltaState(NamedTuple):
    """A layer's states.

    Attributes:
        tokens: [slots, K, W-1, C], what the convolution sees of the newest tokens.
        memory: f32[slots, K, R, dk, dv], the recurrent state: rounded at each token, errors would add up.
    """

    tokens: jax.Array
    memory: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateSpec:
    """A layer's states, one for each slot; that of the scratch slot stays zeros. Devices of a group share the heads.

    Nothing of them is cleared: the first tokens of a request go on from zeros, whatever its slot held before.

    Attributes:
        sizes: of heads, as laid out.
        dtype: of `DeltaState.tokens`.
        num_slots: of each data-parallel rank, the scratch slot included.
    """

    AXES: ClassVar = ("ranks", "state_heads")

    sizes: DeltaConfig
    dtype: np.dtype
    num_slots: int

    def arrays(self, mesh: Mesh) -> DeltaState:
        """Of all ranks, without memory. (NamedTuple of ShapeDtypeStructs.)"""
        sizes, slots = self.sizes, num_ranks(mesh) * self.num_slots
        K, sharding = sizes.num_key_heads, ShardingRules().sharding(mesh, self.AXES)
        tokens = (slots, K, sizes.width - 1, sizes.num_channels)
        memory = (slots, K, sizes.group, sizes.key_size, sizes.value_size)
        return DeltaState(
            jax.ShapeDtypeStruct(tokens, self.dtype, sharding=sharding),  # type: ignore[arg-type]
            jax.ShapeDtypeStruct(memory, jnp.float32, sharding=sharding),  # type: ignore[arg-type]
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StateStep:
    """How a step reads and writes the states of all layers."""

    rows: DeltaRows

    @classmethod
    def of(cls, batch: ForwardBatch) -> Self:
        """Args: batch: with slots."""
        assert batch.slots is not None, "the model's layers have states"
        num_tokens = batch.token_ids.shape[0]
        return cls(
            DeltaRows.of(batch.query_start, batch.kv_len, batch.slots, num_tokens, batch.num_decodes, batch.kind)
        )
