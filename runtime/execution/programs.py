"""StepPrograms: every compiled program that a running engine calls, by bucket (DeviceExecutor calls them)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.model.functional import LogitsHead, ModelStructure, unflatten_model
from palladio.runtime.execution.batch_builder import EARLY_UPDATES, NUM_COLUMNS, ForwardLayout, StepLayouts
from palladio.runtime.execution.device_state import DeviceShape, DeviceState, Weights
from palladio.runtime.execution.dp_programs import over_groups
from palladio.runtime.execution.embedding_plan import (
    first_embedding_keys,
    largest_embedding_keys,
    open_embedding_buckets,
)
from palladio.runtime.execution.pooler import pool_step
from palladio.runtime.execution.program_cache import ProgramCache
from palladio.runtime.execution.program_keys import (
    TIERS,
    ProgramKey,
    cheapest_tier,
    first_keys,
    largest_keys,
    open_buckets,
)
from palladio.runtime.execution.sampler import MASKED_TIERS, SampleOutput, SampleTier
from palladio.runtime.execution.sampler_state import MAX_SUPPRESSED_IDS, SamplerState, SlotRules, SlotTokens, reset_slot
from palladio.runtime.execution.scoring import score_tokens
from palladio.runtime.execution.step_functions import (
    decode_steps,
    forward_step,
    page_difference,
    sample_step,
    update_tables,
)
from palladio.runtime.execution.workspace import ProgramMemory, workspace_of
from palladio.runtime.interface.pooling import Pooling
from palladio.runtime.interface.sampling_params import MAX_LOGIT_BIAS
from palladio.runtime.scheduling.buckets import Buckets

# A mask is for one step: it depends on the token before.
DECODE_TIERS: tuple[SampleTier, ...] = tuple(tier for tier in TIERS if tier != "masked")
COMPARED_PAGES = 64  # pages that one compare program compares
RESET_TOKENS = 1024  # tokens of a request's history that one reset program counts


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


class StepPrograms:
    """Declares the closed set of programs for a model and its buckets, and hands out those that steps call.

    Args:
        state: arrays, or ShapeDtypeStructs in their place.
        built: an empty set, which is filled and can then be built.

    Attributes:
        buckets: the shapes of steps. layouts: of their vectors.
        built: the programs, as far as they are built.
        head: picks the arrays that sampling and scoring take, out of the model's.
        mask_width: words of a row's mask of allowed tokens.
        num_groups: of devices, each of which runs these shapes.
    """

    def __init__(
        self,
        model: StaticModel,
        state: DeviceState,
        shape: DeviceShape,
        buckets: Buckets,
        built: ProgramCache[ProgramKey],
    ) -> None:
        self.buckets = buckets
        self.layouts = StepLayouts.of(buckets, shape.page_size, shape.num_decode_steps)
        self.built = built
        self.head = LogitsHead.of(model.structure, len(state.weights))
        self._model = model
        self._state: DeviceState = _abstract(state)
        self._shape = shape
        self._page_size = shape.page_size
        self._rows = shape.by_group
        self._exchanged = shape.exchanged
        self._cache_sharding = self._state.kv_cache[0].sharding
        self._sampler_shardings = jax.tree.map(lambda x: x.sharding, self._state.sampler)
        self.mask_width = shape.mask_width
        self.num_groups = shape.num_groups
        if shape.pooling is None:
            self._add_generation()
        else:
            for layout in self.layouts.prefill.values():
                self._add_forward(layout)
                self._add_pool(layout, shape.pooling)
        self._add_tables()
        if shape.checks_cache:
            self._add_compare()

    def first_keys(self, *, splits_prompts: bool) -> list[ProgramKey]:
        """The fewest programs that an engine can start with."""
        if self._shape.pooling is None:
            keys = first_keys(self.buckets, self._shape.num_decode_steps, splits_prompts=splits_prompts)
        else:
            keys = first_embedding_keys(self.buckets, splits_prompts=splits_prompts)
        return [*keys, ProgramKey("compare")] if self._shape.checks_cache else keys

    @property
    def workspace(self) -> int:
        """Bytes of device memory that all programs need beside their arguments, judged by those that are built."""
        needs = {key: ProgramMemory.of(program) for key, program in self.built.programs.items()}
        return workspace_of(needs, self.built.declared)

    def largest_keys(self) -> list[ProgramKey]:
        """Those that need most memory."""
        if self._shape.pooling is not None:
            return largest_embedding_keys(self.buckets)
        return largest_keys(self.buckets, self._shape.num_decode_steps)

    def open_buckets(self) -> Buckets:
        """The buckets whose programs are built."""
        if self._shape.pooling is not None:
            return open_embedding_buckets(self.buckets, self.built.__contains__)
        return open_buckets(self.buckets, self._shape.num_decode_steps, self.built.__contains__)

    def decode_tier(self, layout: ForwardLayout, wanted: SampleTier) -> SampleTier:
        """The tier to run several decode steps in; it is `wanted`, unless only a more general one is built yet."""
        return cheapest_tier(wanted, lambda tier: ProgramKey("decode", layout.num_requests, tier=tier) in self.built)

    def sample_tier(self, num_requests: int, wanted: SampleTier) -> SampleTier:
        """The same for sampling."""
        return cheapest_tier(wanted, lambda tier: ProgramKey("sample", num_requests, tier=tier) in self.built)

    def _add_generation(self) -> None:
        for layout in self.layouts.decode.values():
            if layout.num_steps == 1:
                self._add_forward(layout)
            else:
                for tier in DECODE_TIERS:
                    self._add_decode(layout, tier)
        for layout in self.layouts.prefill.values():
            self._add_forward(layout)
            self._add_score(layout.num_tokens)
        for num_rows in self.buckets.sample:
            for tier in TIERS:
                self._add_sample(num_rows, tier)
        self._add_reset()

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

        self.built.add(
            ProgramKey("forward", layout.num_requests, layout.num_tokens),
            jax.jit(
                self._of_groups(forward, 1, 3, results=False),
                donate_argnums=(1, 2),
                out_shardings=(self._cache_sharding, self._rows, self._rows, self._rows),
            ),
            self._state.weights,
            self._state.kv_cache,
            self._state.tables,
            self._state.sampler.last_token,
            self._ints(layout.size),
        )

    def _add_decode(self, layout: ForwardLayout, tier: SampleTier) -> None:
        structure, head, num_valid_tokens = self._model.structure, self.head, self._model.num_valid_tokens
        page_size, full = self._page_size, tier == "full"
        state_shardings = self._sampler_shardings if full else self._rows

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

        self.built.add(
            ProgramKey("decode", layout.num_requests, tier=tier),
            jax.jit(
                self._of_groups(decode, 1, 3, results=(False, False, False, True)),
                donate_argnums=(1, 2, 3),
                out_shardings=(self._cache_sharding, self._rows, state_shardings, self._exchanged),
            ),
            self._state.weights,
            self._state.kv_cache,
            self._state.tables,
            self._state.sampler if full else self._state.sampler.last_token,
            self._ints(layout.size),
            self._ints(layout.num_requests, NUM_COLUMNS),
        )

    def _add_sample(self, num_requests: int, tier: SampleTier) -> None:
        head, num_valid_tokens = self.head, self._model.num_valid_tokens

        def sample(
            weights: Weights, state: SamplerState, hidden: jax.Array, packed: jax.Array, *allowed: jax.Array
        ) -> tuple[SamplerState, SampleOutput]:
            return sample_step(head.logits(weights, hidden, num_valid_tokens), state, packed, *allowed, tier=tier)

        def sample_lightly(
            weights: Weights, last_token: jax.Array, hidden: jax.Array, packed: jax.Array, *allowed: jax.Array
        ) -> tuple[jax.Array, SampleOutput]:
            state, output = sample(weights, SamplerState.of_last_token(last_token), hidden, packed, *allowed)
            return state.last_token, output

        full = tier == "full"
        state_shardings = self._sampler_shardings if full else self._rows
        masks = (self._ints(num_requests, self.mask_width),) if tier in MASKED_TIERS else ()
        self.built.add(
            ProgramKey("sample", num_requests, tier=tier),
            jax.jit(
                self._of_groups(sample if full else sample_lightly, 1, 2, results=(False, True)),
                donate_argnums=(1,),
                out_shardings=(state_shardings, self._exchanged),
            ),
            head.select(self._state.weights),
            self._state.sampler if full else self._state.sampler.last_token,
            self._hidden(num_requests),
            self._ints(num_requests, NUM_COLUMNS),
            *masks,
        )

    def _add_score(self, num_tokens: int) -> None:
        head, num_valid_tokens = self.head, self._model.num_valid_tokens

        def score(weights: Weights, hidden: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            return score_tokens(lambda rows: head.logits(weights, rows, num_valid_tokens), hidden, targets)

        self.built.add(
            ProgramKey("score", num_tokens=num_tokens),
            jax.jit(self._of_groups(score, 1, 1, results=True), out_shardings=self._exchanged),
            head.select(self._state.weights),
            self._hidden(num_tokens),
            self._ints(num_tokens),
        )

    def _add_pool(self, layout: ForwardLayout, pooling: Pooling) -> None:
        def pool(pooled: jax.Array, hidden: jax.Array, packed: jax.Array) -> tuple[jax.Array, jax.Array]:
            return pool_step(pooled, hidden, packed, layout=layout, pooling=pooling)

        self.built.add(
            ProgramKey("pool", layout.num_requests, layout.num_tokens),
            jax.jit(
                self._of_groups(pool, 0, 2, results=(False, True)),
                donate_argnums=(0,),
                out_shardings=(self._rows, self._exchanged),
            ),
            self._state.pooled,
            self._hidden(layout.num_tokens),
            self._ints(layout.size),
        )

    def _add_reset(self) -> None:
        self.built.add(
            ProgramKey("reset"),
            jax.jit(
                self._of_groups(reset_slot, 0, 1, results=False),
                donate_argnums=(0,),
                out_shardings=self._sampler_shardings,
            ),
            self._state.sampler,
            self._ints(),
            SlotTokens(
                self._ints(RESET_TOKENS),
                self._from_host((RESET_TOKENS,), jnp.bool_),
                self._ints(),
                self._from_host((), jnp.bool_),
            ),
            SlotRules(
                self._ints(MAX_LOGIT_BIAS),
                self._from_host((MAX_LOGIT_BIAS,), jnp.float32),
                self._ints(MAX_SUPPRESSED_IDS),
            ),
        )

    def _add_tables(self) -> None:
        self.built.add(
            ProgramKey("tables"),
            jax.jit(self._of_groups(update_tables, 0, 1, results=False), donate_argnums=(0,), out_shardings=self._rows),
            self._state.tables,
            self._ints(EARLY_UPDATES, 3),
        )

    def _add_compare(self) -> None:
        self.built.add(
            ProgramKey("compare"),
            jax.jit(self._of_groups(page_difference, 0, 1, results=True), out_shardings=self._exchanged),
            self._state.kv_cache,
            self._ints(2, COMPARED_PAGES),
        )

    def _of_groups(
        self, function: Callable[..., Any], num_shared: int, num_state: int, *, results: tuple[bool, ...] | bool
    ) -> Callable[..., Any]:
        return over_groups(function, self._shape.mesh, num_shared=num_shared, num_state=num_state, results=results)

    def _hidden(self, num_rows: int) -> Any:
        """Of the tokens of each group. Any: it stands where a jax.Array will."""
        shape = (self._shape.num_groups * num_rows, *self._model.hidden.shape)
        return jax.ShapeDtypeStruct(shape, self._model.hidden.dtype, sharding=self._rows)

    def _ints(self, *shape: int) -> Any:
        return self._from_host(shape, jnp.int32)

    def _from_host(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """What each group gets one of, see DeviceExecutor.run."""
        if self._shape.num_groups > 1:
            shape = (self._shape.num_groups, *shape)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._exchanged)


def _abstract(tree: Any) -> Any:
    """The shapes, dtypes and shardings of a tree of arrays: what `jit(...).lower` needs of them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
