"""One step as the host sees it: which requests take part with which tokens, and what the device answered."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Literal

from palladio.runtime.interface.outputs import TokenLogprob
from palladio.runtime.scheduling.request import Request


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One request's part of a step: its tokens [start, start + num_tokens).

    Attributes:
        samples: whether the step samples a token after the last of them (of a decode row: after each).
        decodes: its first token is the one sampled last, which only the device may know yet; else the host knows all.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool
    decodes: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step of one data-parallel rank.

    Attributes:
        kind: "decode": only decode rows, each with up to `num_steps` tokens; "prefill": rows of known tokens, after
            decode rows of one token each, if any.
        rows: decode rows first; rows that sample before those that don't.
        table_updates: changes of the block table that must be applied before the step.
        num_waiting: length of the queue after scheduling (for the log).
        num_decodes: how many of the rows decode.
    """

    kind: Literal["decode", "prefill"]
    rows: list[ScheduledRow]
    table_updates: list[tuple[int, int, int]]
    num_waiting: int
    num_decodes: int

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """What of its bucket it fills: rows of a decode step, tokens of a prefill step."""
        return len(self.rows) if self.kind == "decode" else self.num_tokens

    @property
    def is_constrained(self) -> bool:
        """Whether a mask has to be computed for a row that samples."""
        return any(row.request.constraint is not None and row.samples for row in self.rows)

    @property
    def num_sampled_rows(self) -> int:
        return len(self.rows) if self.kind == "decode" else sum(row.samples for row in self.rows)


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
    def kind(self) -> Literal["decode", "prefill"]:
        """That of the batches."""
        return self.parts[0][1].kind

    @property
    def rows(self) -> list[ScheduledRow]:
        """Of all ranks."""
        return list(itertools.chain.from_iterable(batch.rows for _, batch in self.parts))

    @property
    def num_tokens(self) -> int:
        """Of the rank that has most."""
        return max(batch.num_tokens for _, batch in self.parts)

    @property
    def num_rows(self) -> int:
        """Of the rank that has most."""
        return max(len(batch.rows) for _, batch in self.parts)

    @property
    def num_sampled_rows(self) -> int:
        """Of the rank that has most."""
        return max(batch.num_sampled_rows for _, batch in self.parts)

    @property
    def is_constrained(self) -> bool:
        """Whether a mask has to be computed for a row that samples."""
        return any(batch.is_constrained for _, batch in self.parts)


@dataclasses.dataclass(frozen=True, slots=True)
class StepTokens:
    """What the device sampled for a batch, row by row; of a decode step that ran several times, once.

    Attributes:
        token_ids: one for each row that samples.
        is_finite: the same; False where the logits were NaN or infinite, so that the token means nothing.
        logprobs: the same, where any row asked for them.
        prompt_logprobs: for each row: of the prompt tokens that this step's rows predict; None where not asked for.
        embeddings: in place of tokens: float32, little-endian, of each row that samples.
    """

    token_ids: Sequence[int]
    is_finite: Sequence[bool]
    logprobs: list[TokenLogprob | None] | None = None
    prompt_logprobs: list[list[TokenLogprob] | None] | None = None
    embeddings: list[bytes] | None = None
