"""ModelRunner: a ScheduledStep as calls of programs, and their results as tokens."""

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any, Literal

import jax
import numpy as np

from palladio.runtime.execution.batch_builder import (
    BatchBuilder,
    ForwardLayout,
    HostBatch,
    Int32Array,
    SlotColumns,
    num_scored,
    slot_rules,
)
from palladio.runtime.execution.device_executor import DeviceExecutor, HostArray, for_groups
from palladio.runtime.execution.device_state import DeviceShape
from palladio.runtime.execution.program_keys import TIERS, ProgramKey
from palladio.runtime.execution.programs import COMPARED_PAGES, RESET_TOKENS
from palladio.runtime.execution.sampler import MASKED_TIERS, SampleOutput, SampleTier
from palladio.runtime.interface.outputs import TokenLogprob
from palladio.runtime.scheduling.buckets import Buckets
from palladio.runtime.scheduling.request import Request
from palladio.runtime.scheduling.scheduled_batch import ScheduledBatch, ScheduledStep
from palladio.runtime.scheduling.token_acceptance import StepTokens


@dataclasses.dataclass(frozen=True, slots=True)
class InFlightStep:
    """A dispatched step; its arrays, here of one group, are computed, or will be.

    Attributes:
        output: None if no row samples; stacked if the step decoded several times (`num_steps` > 1).
        scores: of prompt tokens: logprobs f32[T], likeliest ids i32[T, 20] and theirs f32[T, 20]; None: not asked for.
        bucket_size: tokens of each group, or rows of a decode step, padding included.
        num_steps: how often it sampled.
        last_array: what it computes last.
        embeddings: f32[B, D] in place of tokens; None: no row samples, or the engine generates text.
    """

    planned: ScheduledStep
    output: SampleOutput | None
    scores: tuple[jax.Array, jax.Array, jax.Array] | None
    bucket_size: int
    num_steps: int
    last_array: jax.Array
    embeddings: jax.Array | None = None

    @property
    def is_done(self) -> bool:
        """Whether the device has computed all of it."""
        done: bool = self.last_array.is_ready()  # type: ignore[attr-defined]  # jax.Array's stub lacks it
        return done


@dataclasses.dataclass(frozen=True, slots=True)
class ForwardedStep:
    """The first half of a step, dispatched.

    Attributes:
        tier: that its rows ask for; known only now: a request may end before the second half, and give up its slot.
        last_array: what was dispatched last; None if the step decodes several times: all of it is the second half.
    """

    planned: ScheduledStep
    host: HostBatch
    tier: SampleTier
    last_array: jax.Array | None


class _Slots:
    """What the host knows of one group's slots.

    Attributes:
        columns: for sampling. tiers: in which each is sampled.
        holders: the request that each was last filled for, and how often that had been retracted then.
    """

    def __init__(self, num_slots: int) -> None:
        self.columns = SlotColumns(num_slots)
        self.tiers: list[SampleTier] = ["greedy"] * num_slots
        self.holders: list[tuple[Request | None, int]] = [(None, 0)] * num_slots


class ModelRunner:
    """Turns scheduled steps into calls of programs. `forward` and `sample` only dispatch; `read` waits for tokens.

    Args:
        eos_ids: the model's: no output that has to go on (min_tokens) shows them, whether they would end it or not.
        is_lazy: programs are built when a step first needs them.

    Attributes:
        executor: makes the calls. programs: that it runs.
    """

    def __init__(
        self, executor: DeviceExecutor, shape: DeviceShape, eos_ids: Iterable[int] = (), *, is_lazy: bool
    ) -> None:
        self.executor = executor
        self._eos_ids = frozenset(eos_ids)
        self.programs = programs = executor.programs
        self._shape = shape
        self._groups = [_Slots(shape.num_slots) for _ in range(shape.num_groups)]
        self._builder = BatchBuilder(programs.buckets, programs.layouts, [slots.columns for slots in self._groups])
        self._num_built = -1  # never looked at
        self._is_lazy = is_lazy

    def buckets(self) -> Buckets:
        """Those that steps can use now: of the programs that are built, or of all if calls build them."""
        num_built = len(self.programs.built)
        if self._num_built != num_built and not self._is_lazy:
            self._builder.use(self.programs.open_buckets())
            self._num_built = num_built
        return self._builder.buckets

    def forward(self, step: ScheduledStep) -> ForwardedStep:
        """Dispatches the first half of a step, all but sampling; returns before the device has run it."""
        if step.kind == "prefill" and self._shape.pooling is None:
            for group, batch in step.parts:
                for row in batch.rows[batch.num_decodes :]:
                    self._fill_slot(group, row.request)
        host = self._builder.build(step)
        for updates in host.early_updates:
            self._run(ProgramKey("tables"), updates)
        last_array = None
        if host.layout.num_steps == 1:
            last_array = self._run(self._key("forward", host.layout), host.forward)
        return ForwardedStep(step, host, self._tier(step), last_array)

    def sample(self, forwarded: ForwardedStep, masks: list[Int32Array] | None) -> InFlightStep:
        """Dispatches the second half.

        Args:
            masks: i32[forwarded.host.num_sampled, mask_width] of each group, the tokens that each row may sample; None:
                all of them.
        """
        if self._shape.pooling is not None:
            step = self._pool(forwarded)
        elif forwarded.host.layout.num_steps > 1:
            step = self._decode(forwarded)
        else:
            step = self._sample(forwarded, masks)
        for array in jax.tree.leaves((step.output, step.scores, step.embeddings)):
            array.copy_to_host_async()
        return step

    def read(self, step: InFlightStep) -> list[list[StepTokens]]:
        """Waits for a step and returns the tokens of each of its batches (`ScheduledStep.parts`), one StepTokens for
        each time that it sampled.

        Raises:
            JaxRuntimeError: the step failed; its requests have no further tokens.
        """
        step.last_array.block_until_ready()  # of a step without tokens too: its error is not the next step's
        return [self._read_batch(step, group, batch) for group, batch in step.planned.parts]

    def page_difference(self, group: int, pages: list[int], others: list[int]) -> float:
        """The largest relative difference of these pages' keys and values, page by page; waits for the device.

        Compares as many as `others` has. Exists with --cache-self-check only.
        """
        nothing = np.zeros((2, COMPARED_PAGES), np.int32)
        largest = 0.0
        for begin in range(0, len(others), COMPARED_PAGES):
            part = others[begin : begin + COMPARED_PAGES]
            numbers = [nothing.copy() for _ in self._groups]
            numbers[group][:, : len(part)] = pages[begin : begin + len(part)], part
            found = self._of_group(group, self._run(ProgramKey("compare"), numbers))
            largest = max(largest, float(found))
        return largest

    def _run(self, key: ProgramKey, *arrays: list[Any]) -> Any:
        """See DeviceExecutor.run. Args: arrays: of each group."""
        return self.executor.run(key, *map(for_groups, arrays))

    def _of_group(self, group: int, tree: Any) -> Any:
        """One group's part of what a program gives to the host."""
        if len(self._groups) == 1:
            return tree
        return jax.tree.map(lambda array: np.asarray(array)[group], tree)

    def _read_batch(self, step: InFlightStep, group: int, batch: ScheduledBatch) -> list[StepTokens]:
        if step.embeddings is not None:
            return [_read_embeddings(batch, self._of_group(group, step.embeddings))]
        output = self._of_group(group, step.output)
        if step.num_steps == 1:
            return [_read_tokens(batch, output, self._of_group(group, step.scores))]
        stacked = jax.tree.map(np.asarray, output)
        return [
            _read_tokens(batch, jax.tree.map(operator.itemgetter(number), stacked), None)
            for number in range(max(row.num_tokens for row in batch.rows))
        ]

    def _pool(self, forwarded: ForwardedStep) -> InFlightStep:
        step, host = forwarded.planned, forwarded.host
        vectors = self._run(self._key("pool", host.layout), host.forward)
        return InFlightStep(step, None, None, host.bucket_size, 1, vectors, vectors if step.num_sampled_rows else None)

    def _sample(self, forwarded: ForwardedStep, masks: list[Int32Array] | None) -> InFlightStep:
        host, tier, last_array = forwarded.host, forwarded.tier, forwarded.last_array
        assert last_array is not None, "a step of one forward pass"
        output: SampleOutput | None = None
        if host.sampling is not None:
            num_rows = host.num_sampled
            if masks is not None and tier not in MASKED_TIERS:
                tier = "masked"
            if not self._is_lazy:
                tier = self.programs.sample_tier(num_rows, tier)
            allowed = () if masks is None else (masks,)
            output = self._run(ProgramKey("sample", num_rows, tier=tier), host.sampling, *allowed)
            last_array = output.token_ids
        scores = None
        if host.score_targets is not None:
            scores = self._run(ProgramKey("score", num_tokens=host.layout.num_tokens), host.score_targets)
            last_array = scores[0]
        return InFlightStep(forwarded.planned, output, scores, host.bucket_size, 1, last_array)

    def _decode(self, forwarded: ForwardedStep) -> InFlightStep:
        host, tier = forwarded.host, forwarded.tier
        assert host.sampling is not None, "every row of a decode step samples"
        if not self._is_lazy:
            tier = self.programs.decode_tier(host.layout, tier)
        key = ProgramKey("decode", host.layout.num_requests, tier=tier)
        output: SampleOutput = self._run(key, host.forward, host.sampling)
        return InFlightStep(forwarded.planned, output, None, host.bucket_size, host.layout.num_steps, output.token_ids)

    @staticmethod
    def _key(name: Literal["forward", "pool"], layout: ForwardLayout) -> ProgramKey:
        return ProgramKey(name, layout.num_requests, layout.num_tokens)

    def _tier(self, step: ScheduledStep) -> SampleTier:
        tiers = {
            self._groups[group].tiers[row.request.slot]
            for group, batch in step.parts
            for row in batch.rows
            if row.samples
        }
        return next((tier for tier in reversed(TIERS) if tier in tiers), "greedy")

    def _fill_slot(self, group: int, request: Request) -> None:
        """Fills the host's and the device's columns of a slot when a request first runs in it."""
        slots, slot, params = self._groups[group], request.slot, request.given.params
        holder, num_retractions = slots.holders[slot]
        if holder is request and num_retractions == request.num_retractions:
            return
        slots.holders[slot] = request, request.num_retractions
        assert params.seed is not None, "the front sets the seed"
        slots.columns.assign(slot, params, seed=params.seed, num_prompt_tokens=request.num_prompt_tokens)
        has_history = params.has_history
        if has_history or params.logprobs is not None:
            slots.tiers[slot] = "full"
        else:
            slots.tiers[slot] = "greedy" if params.is_greedy else "random"
        if has_history:
            self._load_history(group, request)

    def _load_history(self, group: int, request: Request) -> None:
        """Counts a request's tokens and sets its bias and stop ids in the device's row of its slot."""
        suppressed = frozenset(request.given.stop_token_ids) | (
            self._eos_ids if request.given.params.min_tokens else frozenset()
        )
        rules = slot_rules(request.given.params.logit_bias, sorted(suppressed), self._shape.vocab_size)
        rule_arrays = [np.asarray(array) for array in (rules.bias_ids, rules.bias_values, rules.stop_ids)]
        slots = [np.array(0, np.int32) for _ in self._groups]  # the others' scratch slot may be given anything
        slots[group] = np.array(request.slot, np.int32)
        for begin in range(0, len(request.token_ids), RESET_TOKENS):
            ids = request.token_ids[begin : begin + RESET_TOKENS]
            token_ids = np.zeros(RESET_TOKENS, np.int32)
            token_ids[: len(ids)] = ids
            is_prompt = np.arange(begin, begin + RESET_TOKENS) < request.num_prompt_tokens
            tokens = (token_ids, is_prompt, np.array(len(ids), np.int32), np.array(begin == 0))
            arrays: list[HostArray] = [*tokens, *rule_arrays]
            self._run(ProgramKey("reset"), slots, *([array] * len(self._groups) for array in arrays))


def _top(ids: np.ndarray, logprobs: np.ndarray, count: int) -> tuple[tuple[int, float], ...]:
    return tuple(zip(ids[:count].tolist(), logprobs[:count].tolist(), strict=True))


def _read_tokens(
    batch: ScheduledBatch, output: SampleOutput | None, scores: tuple[jax.Array, jax.Array, jax.Array] | None
) -> StepTokens:
    prompt_logprobs = None if scores is None else _read_scores(batch, *scores)
    if output is None:
        return StepTokens([], [], prompt_logprobs=prompt_logprobs)
    token_ids: list[int] = np.asarray(output.token_ids).tolist()
    is_finite: list[bool] = np.asarray(output.is_finite).tolist()
    logprobs = None
    if any(row.request.given.params.logprobs is not None for row in batch.rows[: batch.num_sampled_rows]):
        logprobs = _read_logprobs(batch, output, token_ids)
    return StepTokens(token_ids, is_finite, logprobs, prompt_logprobs)


def _read_embeddings(batch: ScheduledBatch, vectors: jax.Array) -> StepTokens:
    found = np.asarray(vectors)[: batch.num_sampled_rows]
    is_finite: list[bool] = np.isfinite(found).all(axis=1).tolist()
    return StepTokens([], is_finite, embeddings=[vector.tobytes() for vector in found.astype("<f4", copy=False)])


def _read_logprobs(batch: ScheduledBatch, output: SampleOutput, token_ids: list[int]) -> list[TokenLogprob | None]:
    assert output.logprobs is not None, "a request with logprobs runs in tier full"
    chosen = np.asarray(output.logprobs).tolist()
    top_ids, top_logprobs = np.asarray(output.top_ids), np.asarray(output.top_logprobs)
    result: list[TokenLogprob | None] = []
    for i, row in enumerate(batch.rows[: batch.num_sampled_rows]):
        count = row.request.given.params.logprobs
        if count is None:
            result.append(None)
        else:
            result.append(TokenLogprob(token_ids[i], chosen[i], _top(top_ids[i], top_logprobs[i], count)))
    return result


def _read_scores(batch: ScheduledBatch, *arrays: jax.Array) -> list[list[TokenLogprob] | None]:
    logprobs, top_ids, top_logprobs = (np.asarray(array) for array in arrays)
    result: list[list[TokenLogprob] | None] = []
    begin = 0
    for row in batch.rows:
        request, width = row.request, row.request.given.params.prompt_logprobs
        if request.prompt_logprobs is None or width is None:
            result.append(None)
        else:
            targets = request.given.prompt_ids[row.start + 1 :]
            result.append(
                [
                    TokenLogprob(
                        targets[t], float(logprobs[begin + t]), _top(top_ids[begin + t], top_logprobs[begin + t], width)
                    )
                    for t in range(num_scored(request, row.start, row.num_tokens))
                ]
            )
        begin += row.num_tokens
    return result
