"""The masks of a step: for each row that samples, the tokens that its request may have next."""

import numpy as np
import numpy.typing as npt

from palladio.runtime.grammar.backend import GrammarBackend
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledStep
from palladio.runtime.scheduling.state.request import Request

Int32Array = npt.NDArray[np.int32]


def build_masks(
    step: ScheduledStep, num_rows: int, width: int, backend: GrammarBackend | None
) -> tuple[list[Int32Array], list[tuple[Request, str]]]:
    """Masks from what the requests' constraints have accepted so far.

    Args:
        num_rows: at least as many as any rank samples; the others are padding.
        width: words of a mask: ⌈V / 32⌉.
        backend: None: no row has a grammar.

    Returns:
        i32[num_rows, width] of each rank, a bit a token; and the requests that cannot go on, each with the reason:
        their rows, like those of requests that want no token of this step, allow everything.
    """
    masks: list[Int32Array] = []
    failures: list[tuple[Request, str]] = []
    for batch in step.batches:
        masks.append(np.full((num_rows, width), -1, np.int32))
        if batch is not None:
            failures += _fill(batch, masks[-1], backend)
    return masks, failures


def _fill(batch: ScheduledBatch, masks: Int32Array, backend: GrammarBackend | None) -> list[tuple[Request, str]]:
    """Fills one rank's masks; returns who cannot go on."""
    numbers = [i for i, request in enumerate(batch.requests) if request.constraint is not None]
    sampling = ((i, row) for i in numbers if (row := batch.row(i)).samples and not row.is_void)
    rows = [(i, row.request, constraint) for i, row in sampling if (constraint := row.request.constraint) is not None]
    to_fill = [(matcher, i) for i, _, constraint in rows if (matcher := constraint.matcher) is not None]
    if to_fill:
        assert backend is not None
        backend.fill(to_fill, masks)
    failures = []
    for i, request, constraint in rows:
        constraint.amend(masks[i])
        if constraint.error is not None or not masks[i].any():
            failures.append((request, constraint.error or "no token is allowed next"))
            masks[i] = -1
    return failures
