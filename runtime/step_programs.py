"""StepPrograms: every compiled program that a running engine calls, by bucket."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.model.functional import LogitsHead, ModelStructure, unflatten_model
from palladio.runtime.batch_builder import EARLY_UPDATES, NUM_COLUMNS, ForwardLayout, StepLayouts
from palladio.runtime.buckets import Buckets
from palladio.runtime.compilation import CompileMonitor, CompileReport, ProgramSet
from palladio.runtime.sampler import SampleOutput, SampleTier
from palladio.runtime.sampler_state import (
    MAX_SUPPRESSED_IDS,
    SamplerState,
    SlotRules,
    SlotTokens,
    reset_slot,
)
from palladio.runtime.sampling_params import MAX_LOGIT_BIAS
from palladio.runtime.scoring import score_tokens
from palladio.runtime.step_functions import decode_steps, forward_step, page_difference, sample_step, update_tables

COMPARED_PAGES = 64  # pages that one compare program compares
RESET_TOKENS = 1024  # tokens of a request's history that one reset program counts
TIERS: tuple[SampleTier, ...] = ("greedy", "random", "full")

Weights = tuple[jax.Array, ...]


class ProgramKey(NamedTuple):
    """Names a compiled program: what it does, the sizes of its bucket, and the sampler's tier."""

    name: Literal["forward", "sample", "decode", "score", "reset", "tables", "compare"]
    num_requests: int = 0
    num_tokens: int = 0
    tier: SampleTier | None = None


class StaticModel(NamedTuple):
    """What a program knows of the model when it is traced: all but the weights.

    Attributes:
        structure: its modules.
        hidden: shape [D] and dtype of one token's hidden state.
        num_valid_tokens: ids from here on are padding of the vocabulary and are never sampled.
    """

    structure: ModelStructure
    hidden: jax.ShapeDtypeStruct
    num_valid_tokens: int


class DeviceState(NamedTuple):
    """What the programs read and update in place.

    Attributes:
        weights: of the model, as `flatten_model` orders them.
        kv_cache: one array a layer.
        tables: i32[slots, P], pages of each slot's request.
        sampler: one row a slot.
    """

    weights: Weights
    kv_cache: tuple[jax.Array, ...]
    tables: jax.Array
    sampler: SamplerState


class StepPrograms:
    """Declares the closed set of programs for a model and its buckets; `compile` builds them all.

    Attributes:
        head: picks the arrays that sampling and scoring take, out of the model's.
    """

    def __init__(
        self, model: StaticModel, state: DeviceState, buckets: Buckets, layouts: StepLayouts, page_size: int
    ) -> None:
        self._model = model
        self._state: DeviceState = _abstract(state)
        self._page_size = page_size
        self.head = LogitsHead.of(model.structure, len(state.weights))
        self._programs: ProgramSet[ProgramKey] = ProgramSet()
        for layout in layouts.decode.values():
            if layout.num_steps == 1:
                self._add_forward(layout)
            else:
                for tier in TIERS:
                    self._add_decode(layout, tier)
        for layout in layouts.prefill.values():
            self._add_forward(layout)
            self._add_score(layout.num_tokens)
        for num_rows in buckets.sample:
            for tier in TIERS:
                self._add_sample(num_rows, tier)
        self._add_reset()
        self._programs.add(
            ProgramKey("tables"),
            jax.jit(update_tables, donate_argnums=(0,)),
            self._state.tables,
            _ints(EARLY_UPDATES, 3),
        )

    def compile(self, monitor: CompileMonitor, progress: Callable[[int, int], None]) -> CompileReport:
        """Args: progress: called with (done, total) after each program."""
        return self._programs.compile(monitor, progress)

    def forward(self, layout: ForwardLayout) -> Callable[..., Any]:
        """(weights, kv_cache, tables, last_token, packed) → (kv_cache, tables, last hidden, hidden [T, D])

        Last hidden is [R, D] for each R in layout.sample_sizes. A decode step's hidden is None: it is the same.
        """
        return self._programs[ProgramKey("forward", layout.num_requests, layout.num_tokens)]

    def decode(self, layout: ForwardLayout, tier: SampleTier) -> Callable[..., Any]:
        """(weights, kv_cache, tables, state, packed, packed sampling) → (kv_cache, tables, state, SampleOutput)

        Several steps in one: outputs are stacked. The state is as for `sample`.
        """
        return self._programs[ProgramKey("decode", layout.num_requests, tier=tier)]

    def tables(self) -> Callable[..., Any]:
        """(tables, updates i32[EARLY_UPDATES, 3]) → tables"""
        return self._programs[ProgramKey("tables")]

    def add_compare(self) -> None:
        """Declares the program that compares pages."""
        self._programs.add(
            ProgramKey("compare"), jax.jit(page_difference), self._state.kv_cache, _ints(2, COMPARED_PAGES)
        )

    def compare(self) -> Callable[..., Any]:
        """(kv_cache, pages i32[2, COMPARED_PAGES]) → f32[]"""
        return self._programs[ProgramKey("compare")]

    def sample(self, num_requests: int, tier: SampleTier) -> Callable[..., Any]:
        """(head, state, hidden [B, D], packed) → (state, SampleOutput)

        The state is the whole SamplerState for tier "full" and last_token alone for the others: fewer arrays a call.
        """
        return self._programs[ProgramKey("sample", num_requests, tier=tier)]

    def score(self, num_tokens: int) -> Callable[..., Any]:
        """(head, hidden [T, D], targets [T]) → (logprobs, top ids, top logprobs)"""
        return self._programs[ProgramKey("score", num_tokens=num_tokens)]

    def reset(self) -> Callable[..., Any]:
        """(sampler, slot, SlotTokens, SlotRules) → sampler"""
        return self._programs[ProgramKey("reset")]

    def _add_forward(self, layout: ForwardLayout) -> None:
        structure, page_size = self._model.structure, self._page_size

        def forward(
            weights: Weights,
            kv_cache: tuple[jax.Array, ...],
            tables: jax.Array,
            last_token: jax.Array,
            packed: jax.Array,
        ) -> tuple[tuple[jax.Array, ...], jax.Array, tuple[jax.Array, ...], jax.Array | None]:
            model = unflatten_model(structure, weights)
            return forward_step(model, kv_cache, tables, last_token, packed, layout=layout, page_size=page_size)

        self._programs.add(
            ProgramKey("forward", layout.num_requests, layout.num_tokens),
            jax.jit(forward, donate_argnums=(1, 2)),
            self._state.weights,
            self._state.kv_cache,
            self._state.tables,
            self._state.sampler.last_token,
            _ints(layout.size),
        )

    def _add_decode(self, layout: ForwardLayout, tier: SampleTier) -> None:
        structure, head, num_valid_tokens = self._model.structure, self.head, self._model.num_valid_tokens
        page_size, full = self._page_size, tier == "full"

        def decode(
            weights: Weights,
            kv_cache: tuple[jax.Array, ...],
            tables: jax.Array,
            sampler: SamplerState | jax.Array,
            packed: jax.Array,
            packed_sampling: jax.Array,
        ) -> tuple[tuple[jax.Array, ...], jax.Array, SamplerState | jax.Array, SampleOutput]:
            state = sampler if isinstance(sampler, SamplerState) else SamplerState.of_last_token(sampler)
            (kv_cache, tables, state), outputs = decode_steps(
                unflatten_model(structure, weights),
                (kv_cache, tables, state),
                packed,
                packed_sampling,
                lambda hidden: head.logits(head.select(weights), hidden, num_valid_tokens),
                layout=layout,
                page_size=page_size,
                tier=tier,
            )
            return kv_cache, tables, state if full else state.last_token, outputs

        self._programs.add(
            ProgramKey("decode", layout.num_requests, tier=tier),
            jax.jit(decode, donate_argnums=(1, 2, 3)),
            self._state.weights,
            self._state.kv_cache,
            self._state.tables,
            self._state.sampler if full else self._state.sampler.last_token,
            _ints(layout.size),
            _ints(layout.num_requests, NUM_COLUMNS),
        )

    def _add_sample(self, num_requests: int, tier: SampleTier) -> None:
        head, num_valid_tokens = self.head, self._model.num_valid_tokens

        def sample(
            weights: Weights, state: SamplerState, hidden: jax.Array, packed: jax.Array
        ) -> tuple[SamplerState, SampleOutput]:
            return sample_step(head.logits(weights, hidden, num_valid_tokens), state, packed, tier=tier)

        def sample_lightly(
            weights: Weights, last_token: jax.Array, hidden: jax.Array, packed: jax.Array
        ) -> tuple[jax.Array, SampleOutput]:
            state, output = sample(weights, SamplerState.of_last_token(last_token), hidden, packed)
            return state.last_token, output

        full = tier == "full"
        self._programs.add(
            ProgramKey("sample", num_requests, tier=tier),
            jax.jit(sample if full else sample_lightly, donate_argnums=(1,)),
            head.select(self._state.weights),
            self._state.sampler if full else self._state.sampler.last_token,
            self._hidden(num_requests),
            _ints(num_requests, NUM_COLUMNS),
        )

    def _add_score(self, num_tokens: int) -> None:
        head, num_valid_tokens = self.head, self._model.num_valid_tokens

        def score(weights: Weights, hidden: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            return score_tokens(lambda rows: head.logits(weights, rows, num_valid_tokens), hidden, targets)

        self._programs.add(
            ProgramKey("score", num_tokens=num_tokens),
            jax.jit(score),
            head.select(self._state.weights),
            self._hidden(num_tokens),
            _ints(num_tokens),
        )

    def _add_reset(self) -> None:
        self._programs.add(
            ProgramKey("reset"),
            jax.jit(reset_slot, donate_argnums=(0,)),
            self._state.sampler,
            _ints(),
            SlotTokens(
                _ints(RESET_TOKENS),
                _abstract_array((RESET_TOKENS,), jnp.bool_),
                _ints(),
                _abstract_array((), jnp.bool_),
            ),
            SlotRules(
                _ints(MAX_LOGIT_BIAS), _abstract_array((MAX_LOGIT_BIAS,), jnp.float32), _ints(MAX_SUPPRESSED_IDS)
            ),
        )

    def _hidden(self, num_rows: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_rows, *self._model.hidden.shape), self._model.hidden.dtype)


def _ints(*shape: int) -> Any:
    return _abstract_array(shape, jnp.int32)


def _abstract_array(shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """Any: it stands where a jax.Array will."""
    return jax.ShapeDtypeStruct(shape, dtype)


def _abstract(tree: Any) -> Any:
    """The shapes, dtypes and shardings of a tree of arrays: what `jit(...).lower` needs of them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
