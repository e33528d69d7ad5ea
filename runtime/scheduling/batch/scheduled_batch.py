"""What a step holds, of one data-parallel rank or several: prefill rows one by one, decode rows as columns."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np

from palladio.runtime.interface.outputs.token_output import PlainTokens
from palladio.runtime.scheduling.batch.state_copies import StateCopies
from palladio.runtime.scheduling.state.new_tokens import SampledRows
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.running import RunningRequests, SteadyRows
from palladio.runtime.scheduling.state.slot_columns import Counts, Mask, Objects, SlotColumns, Slots


class ScheduledRow(NamedTuple):
    """One request's part of a step: its tokens [start, start + num_tokens).

    Attributes:
        start: of a decode row: at most; the device knows where it starts.
        samples: whether the step samples a token after the last of them (of a decode row: after each).
        decodes: its first token is the one sampled last, which only the device may know yet; else the host knows all.
        revision: its request's when it was planned.
        num_drafts: of a decode row: how many of its tokens, the last ones, may turn out to be wrong.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool
    decodes: bool = False
    revision: int = 0
    num_drafts: int = 0

    @property
    def num_sampled(self) -> int:
        """Tokens that it gives, at most."""
        return self.num_tokens if self.decodes else int(self.samples)

    @property
    def end(self) -> int:
        """Where its tokens end at most."""
        end = self.start + self.num_tokens
        return min(end, self.request.max_computed) if self.num_drafts else end

    @property
    def is_void(self) -> bool:
        """Whether what it samples is dropped: its request has ended, or has gone on without it."""
        return self.revision != self.request.revision

    def read(self, count: int) -> None:
        """Note that the row has been read.

        Args:
            count: tokens that it gave.
        """
        columns, slot = self.request.columns, self.request.slot
        self.request.note_unread(-1)
        if self.num_drafts and columns is not None:  # one that is retracted has none
            columns.correct(slot, self.num_tokens, self.num_drafts, count)


class Pages(Protocol):
    """Gives requests pages.

    Attributes:
        snapshots: copies of states at the ends of pages; None without states.
    """

    @property
    def snapshots(self) -> object | None: ...

    def grow(self, request: Request, num_tokens: int, /) -> bool:
        """Gives a request pages for `num_tokens` tokens. Returns whether there were enough."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of a step whose first token is the one that their request sampled last, column by column: as the fields of
    ScheduledRow. The requests may have left their slots since.

    Attributes:
        slots: of the requests, when the rows were planned.
        total: of num_tokens.
        is_constrained: whether one of the requests had a grammar then.
        has_drafts: whether any row of the engine ever has some.
        steady: what rows of all running requests have in common from step to step; None: these are of some only.
    """

    columns: SlotColumns
    slots: Slots
    requests: Objects
    starts: Counts
    num_tokens: Counts
    revisions: Counts
    num_drafts: Counts
    total: int
    is_constrained: bool
    has_drafts: bool = False
    steady: SteadyRows | None = None

    @classmethod
    def plan(
        cls,
        columns: SlotColumns,
        slots: Slots,
        num_tokens: Counts,
        num_drafts: Counts | None = None,
        steady: SteadyRows | None = None,
        computed: Counts | None = None,
    ) -> Self:
        """Plan a row for each slot.

        Args:
            num_drafts: tokens of each row that may be wrong; None: no row of the engine ever has any.
            steady: what the rows have in common; None: the columns say it.
            computed: that of the slots, if the caller has it.
        """
        starts = columns.plan(slots, num_tokens, num_drafts, computed)
        has_drafts = num_drafts is not None
        drafts = np.zeros_like(num_tokens) if num_drafts is None else num_drafts
        if steady is None:
            requests, revisions = columns.requests[slots], columns.revision[slots]
            is_constrained = bool(columns.constrained(slots).any())
        else:
            requests, revisions, is_constrained = steady.requests, steady.revisions, steady.is_constrained
        common = (int(num_tokens.sum()), is_constrained, has_drafts, steady)
        return cls(columns, slots, requests, starts, num_tokens, revisions, drafts, *common)

    @classmethod
    def plan_one_each(cls, running: RunningRequests, slots: Slots, *, has_drafts: bool) -> Self:
        """Plans a row of one token, without drafts, for each slot.

        Args:
            slots: of running requests. has_drafts: as the attribute.
        """
        steady = running.steady_rows(slots)
        if steady is None or has_drafts:
            slots = slots if steady is None else steady.slots
            num_tokens = np.ones(len(slots), np.int64)
            drafts = np.zeros_like(num_tokens) if has_drafts else None
            return cls.plan(running.columns, slots, num_tokens, drafts, steady)
        fields = steady.requests, steady.plan(), steady.num_tokens, steady.revisions, steady.num_drafts
        return cls(running.columns, steady.slots, *fields, len(slots), steady.is_constrained, steady=steady)

    @classmethod
    def plan_several(cls, running: RunningRequests, slots: Slots, most: int, pages: Pages) -> Self:
        """Plan a row of `most` tokens for each slot, or fewer at its end; one token where there are too few pages.

        Where states are copied, no row goes over the end of a page.

        Args:
            slots: slots of running requests.
        """
        columns, steady = running.columns, running.steady_rows(slots)
        slots = slots if steady is None else steady.slots
        computed = columns.computed[slots]
        remaining = columns.max_computed[slots] - np.maximum(computed, columns.known[slots] - 1)
        num_tokens = np.minimum(remaining, most)
        if pages.snapshots is not None:
            num_tokens = np.minimum(num_tokens, columns.page_size - computed % columns.page_size)
        for row in np.flatnonzero(computed + num_tokens > columns.free_until[slots]).tolist():
            if not pages.grow(columns.requests[slots[row]], int(computed[row] + num_tokens[row])):
                num_tokens[row] = 1
        return cls.plan(columns, slots, num_tokens, None, steady, computed)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def ends(self) -> Counts:
        """Where their tokens end at most."""
        ends: Counts = self.starts + self.num_tokens
        if not self.has_drafts:
            return ends
        return np.where(self.num_drafts > 0, np.minimum(ends, self.columns.max_computed[self.slots]), ends)

    def row(self, number: int) -> ScheduledRow:
        """One of them."""
        start, num_tokens = int(self.starts[number]), int(self.num_tokens[number])
        revision, num_drafts = int(self.revisions[number]), int(self.num_drafts[number])
        return ScheduledRow(self.requests[number], start, num_tokens, True, True, revision, num_drafts)

    def cut(self, max_rows: int) -> Self:
        """The same rows with a token each, of a step that is not dispatched yet. If there are too many, those with the
        longest outputs are no part of it."""
        places = np.arange(len(self))
        if len(self) > max_rows:
            order = np.argsort([request.num_output_tokens for request in self.requests], kind="stable")
            places, left = order[:max_rows], order[max_rows:]
            self.columns.correct(self.slots[left], self.num_tokens[left], self.num_drafts[left], 0)
            self.columns.add_unread(self.slots[left], -1)
        slots, ones = self.slots[places], np.ones(len(places), np.int64)
        self.columns.correct(slots, self.num_tokens[places], self.num_drafts[places], 1)
        return dataclasses.replace(
            self,
            slots=slots,
            requests=self.requests[places],
            starts=self.starts[places],
            num_tokens=ones,
            revisions=self.revisions[places],
            num_drafts=np.zeros_like(ones),
            total=len(ones),
            is_constrained=bool(self.columns.constrained(slots).any()),
            steady=None,
        )

    def take_steady(self, sampled: SampledRows) -> PlainTokens | None:
        """Takes what was read of steady rows, if they have a token each and nothing follows from any of these. None: it
        takes nothing."""
        steady, token_ids = self.steady, sampled.token_ids
        if steady is None or self.has_drafts or sampled.counts is not None or sampled.alone or token_ids.shape[1] != 1:
            return None
        own = token_ids[: len(self.slots), 0]
        return PlainTokens(steady.request_ids, own.tobytes()) if steady.take(own) else None

    def take(self, sampled: SampledRows) -> Mask:
        """Takes what was read of them into their requests, as far as nothing follows from it. Returns of which rows."""
        number, counts, columns = len(self), sampled.counts, self.columns
        counts = None if counts is None else counts[:number]
        alone = [place for place in sampled.alone if place < number] if sampled.alone else []
        taken = columns.take_tokens(self.slots, sampled.token_ids[:number], counts, alone)
        if self.has_drafts and counts is not None:
            drafted = taken & (self.num_drafts > 0)
            slots, given = self.slots[drafted], counts[drafted]
            columns.correct(slots, self.num_tokens[drafted], self.num_drafts[drafted], given)
        return taken


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
        """The batch of each rank: this one."""
        return (self,)

    @property
    def parts(self) -> list[tuple[int, "ScheduledBatch"]]:
        """Each rank that runs, with its batch: rank 0 with this one."""
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
        """The requests of all rows."""
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
        """The rows of all ranks."""
        return list(itertools.chain.from_iterable(batch.rows for _, batch in self.parts))

    @property
    def requests(self) -> Iterator[Request]:
        """The requests of all rows."""
        return itertools.chain.from_iterable(batch.requests for _, batch in self.parts)


ScheduledStep = ScheduledBatch | JointStep
"""What the device runs next: the batch of the only rank, or those of several."""
