"""The cache of layers with a recurrent state: a state of fixed size a slot. Pools: model/cache/kv_cache.py."""

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
    """The states of a layer.

    Attributes:
        tokens: [slots, K, W-1, C], the newest tokens, which the convolution sees.
        memory: f32[slots, K, R, dk, dv], the recurrent state: rounded at each token, errors would add up.
    """

    tokens: jax.Array
    memory: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateSpec:
    """The states of a layer, one for each slot; the state of the scratch slot stays zeros. Devices of a group share the
    heads.

    States are never cleared: the first tokens of a request start from zeros, whatever its slot held before.

    Attributes:
        sizes: sizes of heads, as laid out.
        dtype: dtype of `DeltaState.tokens`.
        num_slots: slots of each data-parallel rank, the scratch slot included.
    """

    AXES: ClassVar = ("ranks", "state_heads")

    sizes: DeltaConfig
    dtype: np.dtype
    num_slots: int

    def arrays(self, mesh: Mesh) -> DeltaState:
        """Return the states of all ranks without memory: a DeltaState of ShapeDtypeStructs."""
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
    """Plan of a step's reads and writes of states, shared by all layers."""

    rows: DeltaRows

    @classmethod
    def of(cls, batch: ForwardBatch) -> Self:
        """Plan a step.

        Args:
            batch: a batch with slots.
        """
        assert batch.slots is not None, "the model's layers have states"
        num_tokens = batch.token_ids.shape[0]
        return cls(
            DeltaRows.of(batch.query_start, batch.kv_len, batch.slots, num_tokens, batch.num_decodes, batch.kind)
        )
