"""One step as the host sees it: which requests take part with which tokens, and what the device answered."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from palladio.runtime.outputs import TokenLogprob
from palladio.runtime.request import Request


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
    """One step.

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
    def is_constrained(self) -> bool:
        """Whether a mask has to be computed for a row that samples."""
        return any(row.request.constraint is not None and row.samples for row in self.rows)

    @property
    def num_sampled_rows(self) -> int:
        return len(self.rows) if self.kind == "decode" else sum(row.samples for row in self.rows)


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
