"""Programs that run the layers once, and what only they need: rows of embeddings before, pooling after."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp

from palladio.runtime.execution.batch.batch_builder import ForwardLayout
from palladio.runtime.execution.batch.media_rows import ROWS_PER_CALL
from palladio.runtime.execution.programs.program import Program, ProgramDesign, Results, Takes, host_array
from palladio.runtime.execution.state.device_state import DeviceState, SlotInputs, Weights
from palladio.runtime.execution.steps.pooler import pool_step
from palladio.runtime.execution.steps.step_functions import forward_step


class _ForwardStep(Program):
    """One pass over the model; keeps hidden states for what follows: sample, score or pool."""

    runs_layers = True

    def __init__(self, design: ProgramDesign, layout: ForwardLayout) -> None:
        super().__init__(design, layout.num_requests, layout.num_tokens)
        self._layout = layout

    def of_requests(self, state: DeviceState) -> tuple[Mapping[str, Any], SlotInputs]:
        """What it overwrites of the state, and what it reads of each slot."""
        donated = {"kv_cache": state.kv_cache, "tables": state.tables, "lengths": state.lengths}
        inputs = SlotInputs(state.sampler.last_token, state.drafts, state.num_drafts)
        return {**donated, "page_tokens": state.page_tokens}, inputs

    def step(self, weights: Weights, *arguments: Any) -> Results:
        """Args: arguments: of forward_step, after the model."""
        model, page_size = self.design.unflatten(weights), self.design.shape.page_size
        state, *hidden = forward_step(model, *arguments, layout=self._layout, page_size=page_size)
        return state, hidden, None

    def update(self, state: DeviceState, new: Mapping[str, Any], kept: Any) -> DeviceState:
        last_hidden = dict(zip(self._layout.sample_sizes, kept[0], strict=True))
        return state._replace(**new, last_hidden=last_hidden, hidden={self.key.num_tokens: kept[1]})


class Forward(_ForwardStep):
    """Of a prefill step, or of a decode step whose tokens `Sample` makes. Takes packed i32[layout.size]."""

    kind = "forward"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        decode = design.layouts.decode.values() if design.generates else ()
        layouts = [*decode, *(() if design.always_media else design.layouts.prefill.values())]
        return [cls(design, layout) for layout in layouts if layout.num_steps == 1]

    def takes(self, state: DeviceState) -> Takes:
        donated, inputs = self.of_requests(state)
        return Takes((state.weights,), donated, (inputs,))

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self._layout.size),)

    def compute(
        self,
        weights: Weights,
        kv_cache: tuple[jax.Array, ...],
        tables: jax.Array,
        lengths: jax.Array,
        page_tokens: jax.Array | None,
        inputs: SlotInputs,
        packed: jax.Array,
    ) -> Results:
        return self.step(weights, (kv_cache, tables, lengths, page_tokens), inputs, packed)


class ForwardMedia(_ForwardStep):
    """Of a prefill step in which rows of the pool stand in the place of some tokens' embeddings.

    Takes packed i32[layout.size] and the rows' numbers i32[T], see ForwardBatch.
    """

    kind = "forward_media"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        layouts = design.layouts.prefill.values() if design.shape.num_embeds else ()
        return [cls(design, layout) for layout in layouts]

    def takes(self, state: DeviceState) -> Takes:
        donated, inputs = self.of_requests(state)
        return Takes((state.weights,), donated, (inputs, state.embeds))

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return host_array(self._layout.size), host_array(self._layout.num_tokens)

    def compute(
        self,
        weights: Weights,
        kv_cache: tuple[jax.Array, ...],
        tables: jax.Array,
        lengths: jax.Array,
        page_tokens: jax.Array | None,
        inputs: SlotInputs,
        embeds: jax.Array,
        packed: jax.Array,
        embed_rows: jax.Array,
    ) -> Results:
        state = kv_cache, tables, lengths, page_tokens
        return self.step(weights, state, inputs, packed, (embeds, embed_rows))


class WriteEmbeds(Program):
    """Brings rows into the pool of embeddings. Takes the first one's number i32[] and f32[ROWS_PER_CALL, D]."""

    kind = "embeds"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)] if design.shape.num_embeds else ()

    def takes(self, state: DeviceState) -> Takes:
        return Takes(donated={"embeds": state.embeds})

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return host_array(), host_array(ROWS_PER_CALL, *self.design.model.hidden.shape, dtype=jnp.float32)

    def compute(self, embeds: jax.Array, first: jax.Array, rows: jax.Array) -> Results:
        return (jax.lax.dynamic_update_slice_in_dim(embeds, rows.astype(embeds.dtype), first, 0),), None, None


class Pool(Program):
    """Embeddings, or the logits of labels, after a forward step. Takes that step's vector; gives f32[B, D], or
    f32[B, L]."""

    kind = "pool"

    def __init__(self, design: ProgramDesign, layout: ForwardLayout) -> None:
        super().__init__(design, layout.num_requests, layout.num_tokens)
        self._layout = layout

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return () if design.generates else [cls(design, layout) for layout in design.layouts.prefill.values()]

    def takes(self, state: DeviceState) -> Takes:
        return Takes((state.head,), {"pooled": state.pooled}, (state.hidden[self.key.num_tokens],))

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self._layout.size),)

    def compute(self, head: Weights, pooled: jax.Array, hidden: jax.Array, packed: jax.Array) -> Results:
        pooling = self.design.shape.pooling
        assert pooling is not None, "see `declare`"
        pooled, vectors = pool_step(pooled, hidden, packed, layout=self._layout, pooling=pooling)
        return (pooled,), None, self.design.classify(head, vectors)
