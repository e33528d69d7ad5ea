"""What a step holds: the rows of each data-parallel rank."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Literal

from palladio.runtime.scheduling.batch.state_copies import StateCopies
from palladio.runtime.scheduling.batch.step_rows import DecodeRows, ScheduledRow
from palladio.runtime.scheduling.state.request import Request

StepKind = Literal["decode", "verify", "prefill"]


@dataclasses.dataclass(frozen=True)
class ScheduledBatch:
    """The rows of one data-parallel rank in a step. Where there is one rank, they are the step: see ScheduledStep.

    Attributes:
        kind: "decode": only decode rows, each with up to `num_passes` tokens; "verify": only decode rows, with drafts;
            "prefill": rows of known tokens, after decode rows of one token each, if any.
        decodes: its first rows.
        chunks: of known tokens; those that sample before those that don't.
        table_updates: changes of the block table that must be applied before the step.
        num_waiting: length of the queue after scheduling (for the log).
        copies: of states; None: no layer keeps any, or nothing is copied ever.
        num_decodes, num_rows, num_tokens: in the batch. num_sampled_rows: rows that sample.
        num_passes: forward passes that its rows need.
        size: how much of its bucket it fills: rows of a decode step, tokens of a prefill step.
        is_constrained: whether a row that samples has a grammar, as of the plan: then it needs a mask.
    """

    kind: StepKind
    decodes: DecodeRows
    chunks: list[ScheduledRow]
    table_updates: list[tuple[int, int, int]]
    num_waiting: int
    copies: StateCopies | None = None
    num_decodes: int = dataclasses.field(init=False)
    num_rows: int = dataclasses.field(init=False)
    num_tokens: int = dataclasses.field(init=False)
    num_sampled_rows: int = dataclasses.field(init=False)
    num_passes: int = dataclasses.field(init=False)
    size: int = dataclasses.field(init=False)
    is_constrained: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        decodes, chunks, num_passes = self.decodes, self.chunks, 1
        num_decodes = num_rows = num_sampled = len(decodes.slots)
        num_tokens, is_constrained = decodes.total, decodes.is_constrained
        if chunks:
            num_rows += len(chunks)
            num_tokens += sum([row.num_tokens for row in chunks])
            num_sampled += sum([row.samples for row in chunks])
            is_constrained |= any(row.samples and row.request.constraint is not None for row in chunks)
        if self.kind == "decode" and num_tokens != num_decodes:
            num_passes = int(decodes.num_tokens.max())
        self.__dict__.update(  # once for each step: properties would count anew at each of many looks
            num_decodes=num_decodes,
            num_rows=num_rows,
            num_tokens=num_tokens,
            num_sampled_rows=num_sampled,
            num_passes=num_passes,
            size=num_rows if self.kind == "decode" else num_tokens,
            is_constrained=is_constrained,
        )

    @property
    def batches(self) -> tuple["ScheduledBatch | None", ...]:
        """See JointStep."""
        return (self,)

    @property
    def parts(self) -> list[tuple[int, "ScheduledBatch"]]:
        """See JointStep."""
        return [(0, self)]

    @property
    def rows(self) -> list[ScheduledRow]:
        """All of them, one by one: too slow for every step."""
        return [*map(self.decodes.row, range(self.num_decodes)), *self.chunks]

    def row(self, number: int) -> ScheduledRow:
        """One of them."""
        num_decodes = self.num_decodes
        return self.decodes.row(number) if number < num_decodes else self.chunks[number - num_decodes]

    @property
    def requests(self) -> Iterator[Request]:
        """Of all rows."""
        return itertools.chain(self.decodes.requests, (row.request for row in self.chunks))


@dataclasses.dataclass(frozen=True)
class JointStep:
    """One step of several data-parallel ranks: one shape serves them all, that of the largest batch.

    Attributes:
        batches: of each rank, all of one kind; None: the rank has nothing to do. One at least has.
        parts: the batches, each with the number of its rank.
        kind: that of the batches.
        num_tokens, num_rows, num_sampled_rows, num_passes: of the rank that has most.
        num_waiting: of all ranks together.
        is_constrained: whether one of the batches is.
    """

    batches: tuple[ScheduledBatch | None, ...]
    parts: list[tuple[int, ScheduledBatch]] = dataclasses.field(init=False)
    kind: StepKind = dataclasses.field(init=False)
    num_rows: int = dataclasses.field(init=False)
    num_tokens: int = dataclasses.field(init=False)
    num_sampled_rows: int = dataclasses.field(init=False)
    num_passes: int = dataclasses.field(init=False)
    num_waiting: int = dataclasses.field(init=False)
    is_constrained: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        batches = [batch for batch in self.batches if batch is not None]
        self.__dict__.update(
            parts=[(rank, batch) for rank, batch in enumerate(self.batches) if batch is not None],
            kind=batches[0].kind,
            num_rows=max(batch.num_rows for batch in batches),
            num_tokens=max(batch.num_tokens for batch in batches),
            num_sampled_rows=max(batch.num_sampled_rows for batch in batches),
            num_passes=max(batch.num_passes for batch in batches),
            num_waiting=sum(batch.num_waiting for batch in batches),
            is_constrained=any(batch.is_constrained for batch in batches),
        )

    @property
    def rows(self) -> list[ScheduledRow]:
        """Of all ranks."""
        return list(itertools.chain.from_iterable(batch.rows for _, batch in self.parts))

    @property
    def requests(self) -> Iterator[Request]:
        """Of all rows."""
        return itertools.chain.from_iterable(batch.requests for _, batch in self.parts)


ScheduledStep = ScheduledBatch | JointStep
"""What the device runs next: the batch of the only rank, or those of several."""
