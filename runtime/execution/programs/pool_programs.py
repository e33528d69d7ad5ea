"""Programs of engines that make embeddings: what becomes of a forward step's hidden states."""

from collections.abc import Iterable
from typing import Self

import jax
import jax.numpy as jnp

from palladio.model.pooling.pool import token_vectors
from palladio.runtime.execution.batch.batch_builder import ForwardLayout
from palladio.runtime.execution.programs.program import Program, ProgramDesign, Results, Takes, host_array
from palladio.runtime.execution.state.device_state import DeviceState, Weights
from palladio.runtime.execution.steps.pooler import pool_step


class Pool(Program):
    """Embeddings, or the logits of labels, after a forward step. Takes that step's vector; gives f32[B, D], or
    f32[B, L]."""

    kind = "pool"

    def __init__(self, design: ProgramDesign, layout: ForwardLayout) -> None:
        super().__init__(design, layout.num_requests, layout.num_tokens)
        self._layout = layout

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        pooling = design.shape.pooling
        has_methods = pooling is not None and bool(pooling.methods)
        return [cls(design, layout) for layout in design.layouts.prefill.values()] if has_methods else ()

    def takes(self, state: DeviceState) -> Takes:
        read = (state.hidden[self.key.num_tokens],)
        return Takes((state.head, state.pooling_weights), {"pooled": state.pooled}, read)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self._layout.size),)

    def compute(
        self, head: Weights, weights: Weights, pooled: jax.Array, hidden: jax.Array, packed: jax.Array
    ) -> Results:
        pooling = self.design.shape.pooling
        assert pooling is not None, "see `declare`"
        pooled, vectors = pool_step(pooled, hidden, packed, layout=self._layout, pooling=pooling, weights=weights)
        return (pooled,), None, self.design.classify(head, vectors)


class PoolTokens(Program):
    """A vector for each token of a forward step, f32[T, D']."""

    kind = "pool_tokens"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        pooling = design.shape.pooling
        layouts = design.layouts.prefill.values() if pooling is not None and pooling.gives_tokens else ()
        return [cls(design, layout.num_requests, layout.num_tokens) for layout in layouts]

    def takes(self, state: DeviceState) -> Takes:
        return Takes((state.pooling_weights,), read=(state.hidden[self.key.num_tokens],))

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return ()

    def compute(self, weights: Weights, hidden: jax.Array) -> Results:
        pooling = self.design.shape.pooling
        assert pooling is not None, "see `declare`"
        return (), None, token_vectors(pooling, hidden, weights).astype(jnp.float32)
