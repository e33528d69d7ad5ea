"""The programs of an engine: everything that a running engine calls on the device."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

import jax
import jax.numpy as jnp

from palladio.runtime.execution.batch_builder import EARLY_UPDATES, NUM_COLUMNS, ForwardLayout
from palladio.runtime.execution.device_state import DeviceState, Weights
from palladio.runtime.execution.pooler import pool_step
from palladio.runtime.execution.program import TIERS, Program, ProgramDesign, ProgramKey, Results, host_array
from palladio.runtime.execution.sampler import MASKED_TIERS, SampleTier, sample
from palladio.runtime.execution.sampler_state import MAX_SUPPRESSED_IDS, SamplerState, SlotRules, SlotTokens, reset_slot
from palladio.runtime.execution.scoring import score_tokens
from palladio.runtime.execution.step_functions import (
    decode_steps,
    forward_step,
    page_difference,
    unpack_sampling,
    update_tables,
)
from palladio.runtime.interface.sampling_params import MAX_LOGIT_BIAS
from palladio.runtime.scheduling.buckets import Buckets, PrefillBucket

# A mask is for one step: it depends on the token before.
DECODE_TIERS: tuple[SampleTier, ...] = tuple(tier for tier in TIERS if tier != "masked")
COMPARED_PAGES = 64  # pages that one compare program compares
RESET_TOKENS = 1024  # tokens of a request's history that one reset program counts


class Forward(Program):
    """One pass over the model, of a prefill step or of a decode step whose tokens `Sample` makes.

    Takes packed i32[layout.size]; keeps hidden states for what follows: sample, score or pool.
    """

    kind = "forward"
    runs_layers = True

    def __init__(self, design: ProgramDesign, layout: ForwardLayout) -> None:
        super().__init__(design, layout.num_requests, layout.num_tokens)
        self._layout = layout

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        decode = design.layouts.decode.values() if design.generates else ()
        layouts = [*decode, *design.layouts.prefill.values()]
        return [cls(design, layout) for layout in layouts if layout.num_steps == 1]

    def is_needed(self, buckets: Buckets) -> bool:
        return _is_prefill(self.key, buckets) if self.key.num_tokens else self.key.num_requests in buckets.decode

    def whole(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.weights,)

    def donated(self, state: DeviceState) -> tuple[Any, ...]:
        return state.kv_cache, state.tables

    def read(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.sampler.last_token,)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self._layout.size),)

    def compute(
        self,
        weights: Weights,
        kv_cache: tuple[jax.Array, ...],
        tables: jax.Array,
        last_token: jax.Array,
        packed: jax.Array,
    ) -> Results:
        model, page_size = self.design.unflatten(weights), self.design.shape.page_size
        kv_cache, tables, *hidden = forward_step(
            model, kv_cache, tables, last_token, packed, layout=self._layout, page_size=page_size
        )
        return (kv_cache, tables), hidden, None

    def update(self, state: DeviceState, new: tuple[Any, ...], kept: Any) -> DeviceState:
        (kv_cache, tables), (last_hidden, hidden) = new, kept
        return state._replace(
            kv_cache=kv_cache,
            tables=tables,
            last_hidden=dict(zip(self._layout.sample_sizes, last_hidden, strict=True)),
            hidden={self.key.num_tokens: hidden},
        )


class _Sampling(Program):
    """A program that samples. Tiers below "full" read and write nothing of the sampler but the last tokens."""

    def sampler(self, state: DeviceState) -> Any:
        """The part that this tier takes and overwrites."""
        return state.sampler if self.key.tier == "full" else state.sampler.last_token

    def as_state(self, sampler: Any) -> SamplerState:
        return sampler if self.key.tier == "full" else SamplerState.of_last_token(sampler)

    def as_part(self, sampler: SamplerState) -> Any:
        return sampler if self.key.tier == "full" else sampler.last_token

    def with_part(self, state: DeviceState, part: Any) -> DeviceState:
        sampler = part if self.key.tier == "full" else dataclasses.replace(state.sampler, last_token=part)
        return state._replace(sampler=sampler)


class Decode(_Sampling):
    """Several decode steps in one. Takes both vectors, of forward and of sample; gives SampleOutput, stacked."""

    kind = "decode"
    runs_layers = True

    def __init__(self, design: ProgramDesign, layout: ForwardLayout, tier: SampleTier) -> None:
        super().__init__(design, layout.num_requests, tier=tier)
        self._layout = layout

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        layouts = [layout for layout in design.layouts.decode.values() if layout.num_steps > 1 and design.generates]
        return [cls(design, layout, tier) for layout in layouts for tier in DECODE_TIERS]

    def is_needed(self, buckets: Buckets) -> bool:
        return self.key.tier == "full" and self.key.num_requests in buckets.decode

    def whole(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.weights,)

    def donated(self, state: DeviceState) -> tuple[Any, ...]:
        return state.kv_cache, state.tables, self.sampler(state)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return host_array(self._layout.size), host_array(self.key.num_requests, NUM_COLUMNS)

    def compute(
        self,
        weights: Weights,
        kv_cache: tuple[jax.Array, ...],
        tables: jax.Array,
        sampler: Any,
        packed: jax.Array,
        packed_sampling: jax.Array,
    ) -> Results:
        design, tier = self.design, self.key.tier
        assert tier is not None
        (kv_cache, tables, state), outputs = decode_steps(
            design.unflatten(weights),
            (kv_cache, tables, self.as_state(sampler)),
            packed,
            packed_sampling,
            lambda hidden: design.logits(design.head.select(weights), hidden),
            layout=self._layout,
            page_size=design.shape.page_size,
            tier=tier,
        )
        return (kv_cache, tables, self.as_part(state)), None, outputs

    def update(self, state: DeviceState, new: tuple[Any, ...], kept: Any) -> DeviceState:
        kv_cache, tables, sampler = new
        return self.with_part(state._replace(kv_cache=kv_cache, tables=tables), sampler)


class Sample(_Sampling):
    """One token for each row. Takes packed i32[B, NUM_COLUMNS] and, unless all tokens are allowed, masks
    i32[B, mask_width]; gives SampleOutput."""

    kind = "sample"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        sizes = design.buckets.sample if design.generates else ()
        return [cls(design, size, tier=tier) for size in sizes for tier in TIERS]

    def is_needed(self, buckets: Buckets) -> bool:
        return self.key.tier == "full" and self.key.num_requests in buckets.sample

    def whole(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.head,)

    def donated(self, state: DeviceState) -> tuple[Any, ...]:
        return (self.sampler(state),)

    def read(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.last_hidden[self.key.num_requests],)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        size = self.key.num_requests
        masks = (host_array(size, self.design.shape.mask_width),) if self.key.tier in MASKED_TIERS else ()
        return host_array(size, NUM_COLUMNS), *masks

    def pack(self, state: DeviceState, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        is_unmasked = len(arrays) == 1 and self.key.tier in MASKED_TIERS
        return (*arrays, state.all_allowed[self.key.num_requests]) if is_unmasked else arrays

    def compute(
        self, head: Weights, sampler: Any, hidden: jax.Array, packed: jax.Array, allowed: jax.Array | None = None
    ) -> Results:
        assert self.key.tier is not None
        logits, columns = self.design.logits(head, hidden), unpack_sampling(packed)
        output, state = sample(logits, self.as_state(sampler), columns, self.key.tier, allowed)
        return (self.as_part(state),), None, output

    def update(self, state: DeviceState, new: tuple[Any, ...], kept: Any) -> DeviceState:
        return self.with_part(state, *new)


class Score(Program):
    """Log-probabilities of a prompt's tokens. Takes targets i32[T]; gives logprobs [T], top ids [T, 20] and top
    logprobs [T, 20]."""

    kind = "score"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        buckets = design.buckets.prefill if design.generates else ()
        return [cls(design, num_tokens=bucket.num_tokens) for bucket in buckets]

    def is_needed(self, buckets: Buckets) -> bool:
        return any(bucket.num_tokens == self.key.num_tokens for bucket in buckets.prefill)

    def whole(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.head,)

    def read(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.hidden[self.key.num_tokens],)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self.key.num_tokens),)

    def compute(self, head: Weights, hidden: jax.Array, targets: jax.Array) -> Results:
        return (), None, score_tokens(lambda rows: self.design.logits(head, rows), hidden, targets)


class Pool(Program):
    """Embeddings, after a forward step. Takes that step's vector; gives embeddings f32[B, D]."""

    kind = "pool"

    def __init__(self, design: ProgramDesign, layout: ForwardLayout) -> None:
        super().__init__(design, layout.num_requests, layout.num_tokens)
        self._layout = layout

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return () if design.generates else [cls(design, layout) for layout in design.layouts.prefill.values()]

    def is_needed(self, buckets: Buckets) -> bool:
        return _is_prefill(self.key, buckets)

    def donated(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.pooled,)

    def read(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.hidden[self.key.num_tokens],)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self._layout.size),)

    def compute(self, pooled: jax.Array, hidden: jax.Array, packed: jax.Array) -> Results:
        pooling = self.design.shape.pooling
        assert pooling is not None, "see `declare`"
        pooled, vectors = pool_step(pooled, hidden, packed, layout=self._layout, pooling=pooling)
        return (pooled,), None, vectors

    def update(self, state: DeviceState, new: tuple[Any, ...], kept: Any) -> DeviceState:
        return state._replace(pooled=new[0])


class Reset(Program):
    """Fills a slot of the sampler. Takes slot i32[], and the arrays of SlotTokens and of SlotRules."""

    kind = "reset"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)] if design.generates else ()

    def donated(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.sampler,)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        flag = host_array(dtype=jnp.bool_)
        tokens = host_array(RESET_TOKENS), host_array(RESET_TOKENS, dtype=jnp.bool_), host_array(), flag
        bias = host_array(MAX_LOGIT_BIAS), host_array(MAX_LOGIT_BIAS, dtype=jnp.float32)
        return host_array(), *tokens, *bias, host_array(MAX_SUPPRESSED_IDS)

    def pack(self, state: DeviceState, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        slot, *others = arrays
        count = len(dataclasses.fields(SlotTokens))
        return slot, SlotTokens(*others[:count]), SlotRules(*others[count:])

    def compute(self, sampler: SamplerState, slot: jax.Array, tokens: SlotTokens, rules: SlotRules) -> Results:
        return (reset_slot(sampler, slot, tokens, rules),), None, None

    def update(self, state: DeviceState, new: tuple[Any, ...], kept: Any) -> DeviceState:
        return state._replace(sampler=new[0])


class Tables(Program):
    """Changes of the block tables that do not fit a step's vector. Takes updates i32[EARLY_UPDATES, 3]."""

    kind = "tables"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)]

    def donated(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.tables,)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(EARLY_UPDATES, 3),)

    def compute(self, tables: jax.Array, updates: jax.Array) -> Results:
        return (update_tables(tables, updates),), None, None

    def update(self, state: DeviceState, new: tuple[Any, ...], kept: Any) -> DeviceState:
        return state._replace(tables=new[0])


class Compare(Program):
    """Compares pages with others, see CacheSelfCheck. Takes pages i32[2, COMPARED_PAGES]; gives f32[]."""

    kind = "compare"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)] if design.shape.checks_cache else ()

    def read(self, state: DeviceState) -> tuple[Any, ...]:
        return (state.kv_cache,)

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(2, COMPARED_PAGES),)

    def compute(self, kv_cache: tuple[jax.Array, ...], pages: jax.Array) -> Results:
        return (), None, page_difference(kv_cache, pages)


PROGRAMS: Final[tuple[type[Program], ...]] = (Forward, Decode, Score, Pool, Sample, Reset, Tables, Compare)


def declare_programs(design: ProgramDesign) -> Sequence[Program]:
    """The closed set of programs."""
    return [program for kind in PROGRAMS for program in kind.declare(design)]


def _is_prefill(key: ProgramKey, buckets: Buckets) -> bool:
    return PrefillBucket(key.num_tokens, key.num_requests) in buckets.prefill
