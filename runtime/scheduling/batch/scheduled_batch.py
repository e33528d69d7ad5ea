"""What a step holds: the rows of each data-parallel rank."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Literal

from palladio.runtime.scheduling.batch.state_copies import StateCopies
from palladio.runtime.scheduling.batch.step_rows import DecodeRows, ScheduledRow
from palladio.runtime.scheduling.state.request import Request

StepKind = Literal["decode", "verify", "prefill"]


@dataclasses.dataclass(frozen=True)
class ScheduledBatch:
    """One step of one data-parallel rank.

    Attributes:
        kind: "decode": only decode rows, each with up to `num_steps` tokens; "verify": only decode rows, with drafts;
            "prefill": rows of known tokens, after decode rows of one token each, if any.
        decodes: its first rows.
        chunks: of known tokens; those that sample before those that don't.
        table_updates: changes of the block table that must be applied before the step.
        num_waiting: length of the queue after scheduling (for the log).
        copies: of states; None: no layer keeps any, or nothing is copied ever.
    """

    kind: StepKind
    decodes: DecodeRows
    chunks: list[ScheduledRow]
    table_updates: list[tuple[int, int, int]]
    num_waiting: int
    copies: StateCopies | None = None

    @property
    def rows(self) -> list[ScheduledRow]:
        """All of them, for who looks at each: few steps are looked at so."""
        return [*map(self.decodes.row, range(self.num_decodes)), *self.chunks]

    def row(self, number: int) -> ScheduledRow:
        """One of them."""
        num_decodes = self.num_decodes
        return self.decodes.row(number) if number < num_decodes else self.chunks[number - num_decodes]

    @property
    def requests(self) -> Iterator[Request]:
        """Of all rows."""
        return itertools.chain(self.decodes.requests, (row.request for row in self.chunks))

    @property
    def num_decodes(self) -> int:
        return len(self.decodes)

    @functools.cached_property
    def num_tokens(self) -> int:
        return self.decodes.total + sum([row.num_tokens for row in self.chunks])

    @property
    def num_rows(self) -> int:
        return len(self.decodes) + len(self.chunks)

    @functools.cached_property
    def num_passes(self) -> int:
        """Forward passes that its rows need."""
        if self.kind != "decode" or self.decodes.total == len(self.decodes):
            return 1
        return int(self.decodes.num_tokens.max())

    @property
    def size(self) -> int:
        """What of its bucket it fills: rows of a decode step, tokens of a prefill step."""
        return self.num_rows if self.kind == "decode" else self.num_tokens

    @property
    def is_constrained(self) -> bool:
        """Whether a mask has to be computed for a row that samples; of a batch that has just been planned."""
        has_chunk = any(row.samples and row.request.constraint is not None for row in self.chunks)
        return has_chunk or self.decodes.is_constrained

    @property
    def num_sampled_rows(self) -> int:
        return len(self.decodes) + (sum([row.samples for row in self.chunks]) if self.chunks else 0)


@dataclasses.dataclass(frozen=True)
class ScheduledStep:
    """One step of all ranks: one shape serves them all, that of the largest batch.

    Attributes:
        batches: of each rank, all of one kind; None: the rank has nothing to do. One at least has.
    """

    batches: tuple[ScheduledBatch | None, ...]

    @functools.cached_property
    def parts(self) -> list[tuple[int, ScheduledBatch]]:
        """The batches, each with the number of its rank."""
        return [(rank, batch) for rank, batch in enumerate(self.batches) if batch is not None]

    @property
    def kind(self) -> StepKind:
        """That of the batches."""
        return self.parts[0][1].kind

    @property
    def rows(self) -> list[ScheduledRow]:
        """Of all ranks."""
        return list(itertools.chain.from_iterable(batch.rows for _, batch in self.parts))

    @property
    def requests(self) -> Iterator[Request]:
        """Of all rows."""
        return itertools.chain.from_iterable(batch.requests for _, batch in self.parts)

    @property
    def num_tokens(self) -> int:
        """Of the rank that has most."""
        return max(batch.num_tokens for _, batch in self.parts)

    @property
    def num_rows(self) -> int:
        """Of the rank that has most."""
        return max([batch.num_rows for _, batch in self.parts])

    @functools.cached_property
    def num_passes(self) -> int:
        """Of the rank that needs most."""
        return max(batch.num_passes for _, batch in self.parts)

    @property
    def num_waiting(self) -> int:
        """Of all ranks together."""
        return sum(batch.num_waiting for _, batch in self.parts)

    @property
    def num_sampled_rows(self) -> int:
        """Of the rank that has most."""
        return max(batch.num_sampled_rows for _, batch in self.parts)

    @functools.cached_property
    def is_constrained(self) -> bool:
        """Whether a mask has to be computed for a row that samples."""
        return any(batch.is_constrained for _, batch in self.parts)
