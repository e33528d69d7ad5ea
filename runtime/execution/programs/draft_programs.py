"""The programs of drafts: one proposes them, before the forward pass of a step that verifies; one samples after it, and
keeps what agrees."""

from collections.abc import Iterable
from typing import Any, Self

import jax

from palladio.runtime.execution.programs.program import (
    Program,
    ProgramDesign,
    Results,
    SamplingOfRows,
    Takes,
    host_array,
    part_of_sampler,
    whole_sampler,
)
from palladio.runtime.execution.sampling.sampler import SampleTier
from palladio.runtime.execution.state.device_state import DeviceState, SlotInputs, Weights
from palladio.runtime.execution.steps.verification import propose_drafts, verify_drafts
from palladio.runtime.scheduling.batch.buckets import Buckets, VerifyBucket


class Draft(Program):
    """Proposes tokens for each row of a step. Takes the vector of its forward pass."""

    kind = "draft"

    def __init__(self, design: ProgramDesign, bucket: VerifyBucket) -> None:
        super().__init__(design, bucket.num_requests)
        self._layout = design.layouts.prefill[bucket.forward]

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design, bucket) for bucket in design.buckets.verify]

    def is_needed(self, buckets: Buckets) -> bool:
        return any(bucket.num_requests == self.key.num_requests for bucket in buckets.verify)

    def takes(self, state: DeviceState) -> Takes:
        known = state.sampler.last_token, state.lengths, state.tables, state.page_tokens
        return Takes(donated={"drafts": state.drafts, "num_drafts": state.num_drafts}, read=(known,))

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(self._layout.size),)

    def compute(
        self, drafts: jax.Array, num_drafts: jax.Array, known: tuple[jax.Array, ...], packed: jax.Array
    ) -> Results:
        shape = self.design.shape
        assert shape.proposer is not None, "see `declare`"
        groups = shape.page_groups
        new = propose_drafts(
            (drafts, num_drafts),
            known,
            packed,
            shape.proposer,
            layout=self._layout,
            num_rows=self.key.num_requests,
            num_columns=shape.num_columns,
            window=None if groups.keeps_all else groups.windows[0].window,
        )
        return new, None, None


class Verify(SamplingOfRows):
    """A token for each row, and one more for each of its drafts that agrees. Takes packed i32[B, NUM_COLUMNS] and, like
    `Sample`, masks; gives SampleOutput, stacked."""

    kind = "verify"

    def __init__(self, design: ProgramDesign, bucket: VerifyBucket, tier: SampleTier) -> None:
        super().__init__(design, bucket.num_requests, tier=tier)
        self._bucket = bucket

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design, bucket, tier) for bucket in design.buckets.verify for tier in design.tiers]

    def is_needed(self, buckets: Buckets) -> bool:
        return self.key.tier == "full" and any(b.num_requests == self.key.num_requests for b in buckets.verify)

    def takes(self, state: DeviceState) -> Takes:
        donated = {"lengths": state.lengths, "sampler": self.sampler_of(state)}
        hidden = state.hidden[self._bucket.forward.num_tokens]
        return Takes((state.head,), donated, (hidden, state.drafts, state.num_drafts))

    def compute(
        self,
        head: Weights,
        lengths: jax.Array,
        sampler: Any,
        hidden: jax.Array,
        drafts: jax.Array,
        num_drafts: jax.Array,
        packed: jax.Array,
        allowed: jax.Array | None = None,
    ) -> Results:
        assert self.key.tier is not None
        state = whole_sampler(sampler)
        lengths, state, output = verify_drafts(
            lambda rows: self.design.logits(head, rows),
            (lengths, state),
            hidden,
            SlotInputs(state.last_token, drafts, num_drafts),
            packed,
            self.key.tier,
            allowed,
            target=self.design.sampler_target,
        )
        return (lengths, part_of_sampler(state, sampler)), None, output
