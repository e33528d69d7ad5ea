"""Programs that a step calls: to run the layers, to score what they give, and to sample."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from palladio.runtime.execution.batch.batch_builder import NUM_COLUMNS, ForwardLayout
from palladio.runtime.execution.batch.media_rows import ROWS_PER_CALL
from palladio.runtime.execution.programs.program import (
    Program,
    ProgramDesign,
    Results,
    SamplingOfRows,
    SamplingProgram,
    Takes,
    host_array,
    part_of_sampler,
    whole_sampler,
)
from palladio.runtime.execution.sampling.sampler import SampleTier, sample
from palladio.runtime.execution.sampling.sampler_state import (
    MAX_SUPPRESSED_IDS,
    SamplerState,
    SlotRules,
    SlotTokens,
    reset_slot,
)
from palladio.runtime.execution.sampling.scoring import score_tokens
from palladio.runtime.execution.state.device_state import DeviceState, SlotInputs, Weights
from palladio.runtime.execution.steps.step_functions import decode_steps, forward_step, unpack_sampling
from palladio.runtime.interface.request.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROB_IDS
from palladio.runtime.scheduling.batch.buckets import Buckets


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
        """Run the forward step.

        Args:
            arguments: those of forward_step after the model.
        """
        model, page_size = self.design.unflatten(weights), self.design.shape.page_size
        state, *hidden = forward_step(model, *arguments, layout=self._layout, page_size=page_size)
        return state, hidden, None

    def update(self, state: DeviceState, new: Mapping[str, Any], kept: Any) -> DeviceState:
        last_hidden = dict(zip(self._layout.sample_sizes, kept[0], strict=True))
        return state._replace(**new, last_hidden=last_hidden, hidden={self.key.num_tokens: kept[1]})


class Forward(_ForwardStep):
    """Forward pass of a prefill step, or of a decode step that `Sample` follows. Takes packed i32[layout.size]."""

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
    """Forward pass of a prefill step in which rows of the pool replace some tokens' embeddings.

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


# A mask is for one step: it depends on the token before.
RESET_TOKENS = 1024  # tokens of a request's history that one reset program counts


class Decode(SamplingProgram):
    """Decode steps that sample: several, or a small one, which two programs would take longer to start than to run.
    Takes both vectors, of forward and of sample, as one; gives SampleOutput, of several steps stacked."""

    kind = "decode"
    runs_layers = True

    def __init__(self, design: ProgramDesign, layout: ForwardLayout, tier: SampleTier) -> None:
        super().__init__(design, layout.num_requests, tier=tier)
        self._layout = layout

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        layouts = design.layouts.decode.values() if design.generates else ()
        each = [(layout, tier) for layout in layouts for tier in design.tiers if tier != "masked"]
        return [cls(design, *one) for one in each if one[0].num_steps > 1 or design.joins(*one)]

    def is_needed(self, buckets: Buckets) -> bool:
        return self._layout.num_steps > 1 and super().is_needed(buckets)

    def takes(self, state: DeviceState) -> Takes:
        donated = {"kv_cache": state.kv_cache, "tables": state.tables, "lengths": state.lengths}
        return Takes((state.weights,), {**donated, "sampler": self.sampler_of(state)})

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self._layout.size + self.key.num_requests * NUM_COLUMNS),)

    def compute(
        self,
        weights: Weights,
        kv_cache: tuple[jax.Array, ...],
        tables: jax.Array,
        lengths: jax.Array,
        sampler: Any,
        packed: jax.Array,
    ) -> Results:
        design, tier = self.design, self.key.tier
        assert tier is not None
        packed, packed_sampling = packed[: self._layout.size], packed[self._layout.size :].reshape(-1, NUM_COLUMNS)
        (kv_cache, tables, lengths, state), outputs = decode_steps(
            design.unflatten(weights),
            (kv_cache, tables, lengths, whole_sampler(sampler)),
            packed,
            packed_sampling,
            lambda hidden: design.logits(design.head.select(weights), hidden),
            layout=self._layout,
            page_size=design.shape.page_size,
            tier=tier,
            target=design.sampler_target,
        )
        return (kv_cache, tables, lengths, part_of_sampler(state, sampler)), None, outputs


class Sample(SamplingOfRows):
    """One token for each row. Takes packed i32[B, NUM_COLUMNS] and, unless all tokens are allowed, masks
    i32[B, mask_width]; gives SampleOutput."""

    kind = "sample"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        sizes = design.buckets.sample if design.generates else ()
        return [cls(design, size, tier=tier) for size in sizes for tier in design.tiers]

    def takes(self, state: DeviceState) -> Takes:
        read = state.last_hidden[self.key.num_requests], state.lengths
        return Takes((state.head,), {"sampler": self.sampler_of(state)}, read)

    def compute(
        self,
        head: Weights,
        sampler: Any,
        hidden: jax.Array,
        lengths: jax.Array,
        packed: jax.Array,
        allowed: jax.Array | None = None,
    ) -> Results:
        assert self.key.tier is not None
        logits, columns = self.design.logits(head, hidden), unpack_sampling(packed, lengths)
        state = whole_sampler(sampler)
        output, state = sample(logits, state, columns, self.key.tier, allowed, target=self.design.sampler_target)
        return (part_of_sampler(state, sampler),), None, output


class Score(Program):
    """Log-probabilities of a prompt's tokens. Takes targets i32[T] and slots i32[T]; gives logprobs [T], top ids
    [T, 20], top logprobs [T, 20] and those of the slots' asked ids [T, MAX_LOGPROB_IDS]."""

    kind = "score"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        buckets = design.buckets.prefill if design.generates else ()
        return [cls(design, num_tokens=bucket.num_tokens) for bucket in buckets]

    def takes(self, state: DeviceState) -> Takes:
        return Takes((state.head,), read=(state.hidden[self.key.num_tokens], state.sampler.asked_ids))

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return host_array(self.key.num_tokens), host_array(self.key.num_tokens)

    def compute(
        self, head: Weights, hidden: jax.Array, asked_ids: jax.Array, targets: jax.Array, slots: jax.Array
    ) -> Results:
        return (), None, score_tokens(lambda rows: self.design.logits(head, rows), hidden, targets, asked_ids, slots)


class Reset(Program):
    """Fills a slot of the sampler. Takes slot i32[], and the arrays of SlotTokens and of SlotRules."""

    kind = "reset"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)] if design.generates else ()

    def takes(self, state: DeviceState) -> Takes:
        return Takes(donated={"sampler": state.sampler})

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        flag = host_array(dtype=jnp.bool_)
        tokens = host_array(RESET_TOKENS), host_array(RESET_TOKENS, dtype=jnp.bool_), host_array(), flag
        bias = host_array(MAX_LOGIT_BIAS), host_array(MAX_LOGIT_BIAS, dtype=jnp.float32)
        return host_array(), *tokens, *bias, host_array(MAX_SUPPRESSED_IDS), host_array(MAX_LOGPROB_IDS)

    def pack(self, state: DeviceState, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        slot, *others = arrays
        count = len(dataclasses.fields(SlotTokens))
        return slot, SlotTokens(*others[:count]), SlotRules(*others[count:])

    def compute(self, sampler: SamplerState, slot: jax.Array, tokens: SlotTokens, rules: SlotRules) -> Results:
        return (reset_slot(sampler, slot, tokens, rules),), None, None


def slot_rules(
    logit_bias: Mapping[int, float], stop_ids: Sequence[int], asked_ids: Sequence[int], vocab_size: int
) -> SlotRules:
    """Pads a request's rules to their rows, on the host.

    Args:
        logit_bias: token id in 0 … V-1 → bias; at most MAX_LOGIT_BIAS.
        stop_ids: in 0 … V-1; at most MAX_SUPPRESSED_IDS.
        asked_ids: in 0 … V-1; at most MAX_LOGPROB_IDS.
        vocab_size: V, columns of the logits.

    Raises:
        ValueError: more entries than the rows hold.
    """
    if len(logit_bias) > MAX_LOGIT_BIAS or len(stop_ids) > MAX_SUPPRESSED_IDS:
        raise ValueError(
            f"at most {MAX_LOGIT_BIAS} logit biases and {MAX_SUPPRESSED_IDS} stop token ids are supported, "
            f"got {len(logit_bias)} and {len(stop_ids)}"
        )
    bias_ids = np.full(MAX_LOGIT_BIAS, vocab_size, np.int32)
    bias_values = np.zeros(MAX_LOGIT_BIAS, np.float32)
    suppressed_ids = np.full(MAX_SUPPRESSED_IDS, vocab_size, np.int32)
    bias_ids[: len(logit_bias)] = list(logit_bias)
    bias_values[: len(logit_bias)] = list(logit_bias.values())
    suppressed_ids[: len(stop_ids)] = stop_ids
    asked = np.zeros(MAX_LOGPROB_IDS, np.int32)
    asked[: len(asked_ids)] = asked_ids
    return SlotRules(bias_ids, bias_values, suppressed_ids, asked)
