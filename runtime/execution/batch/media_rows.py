"""The rows of media that a step computes: which tokens they stand for, and how they come into the device's pool."""

import dataclasses
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from palladio.runtime.interface.request.prompt_parts import Rows
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledStep

ROWS_PER_CALL: Final = 256  # that one program call writes into the pool


def pool_rows(max_step_tokens: int) -> int:
    """Rows of a pool that holds what a step computes, in whole calls."""
    return -(-max_step_tokens // ROWS_PER_CALL) * ROWS_PER_CALL


def has_media(step: ScheduledStep) -> bool:
    """Whether it computes rows of media."""
    return any(
        part.start < row.start + row.num_tokens and part.stop > row.start
        for _, batch in step.parts
        for row in batch.chunks
        for part in row.request.given.media
    )


@dataclasses.dataclass(frozen=True, slots=True)
class MediaRows:
    """The media rows of one rank.

    Attributes:
        places: i32[T], for each token of the step its row in the pool; -1: it has its own embedding.
        rows: f32[R, D], what the pool is to hold from row 0 on.
    """

    places: npt.NDArray[np.int32]
    rows: Rows

    @classmethod
    def of(cls, batch: ScheduledBatch | None, num_tokens: int, width: int) -> Self:
        """
        Args:
            batch: None: the rank has nothing to do.
            num_tokens: T. width: D.
        """
        places = np.full(num_tokens, -1, np.int32)
        pieces: list[Rows] = []
        num_rows = 0
        begin = 0 if batch is None else int(batch.decodes.num_tokens.sum())
        for row in [] if batch is None else batch.chunks:
            request, stop = row.request, row.start + row.num_tokens
            for part, rows in zip(request.given.media, request.rows, strict=True):
                low, high = max(part.start, row.start), min(part.stop, stop)
                if low >= high:
                    continue
                pieces.append(rows[low - part.start : high - part.start])
                first = begin + low - row.start
                places[first : first + high - low] = np.arange(num_rows, num_rows + high - low)
                num_rows += high - low
            begin += row.num_tokens
        return cls(places, np.concatenate(pieces) if pieces else np.zeros((0, width), np.float32))

    def piece(self, number: int) -> Rows:
        """f32[ROWS_PER_CALL, D], what the call of this number writes; zeros behind the last row."""
        piece = np.zeros((ROWS_PER_CALL, self.rows.shape[1]), np.float32)
        rows = self.rows[number * ROWS_PER_CALL : (number + 1) * ROWS_PER_CALL]
        piece[: len(rows)] = rows
        return piece


def num_calls(ranks: list[MediaRows]) -> int:
    """Calls that bring the rows of all ranks to the device."""
    return max(-(-len(media.rows) // ROWS_PER_CALL) for media in ranks)
