"""The masks of a step: for each row that samples, the tokens that its request may have next."""

import numpy as np
import numpy.typing as npt

from palladio.runtime.grammar_backend import GrammarBackend
from palladio.runtime.request import Request, RequestStatus
from palladio.runtime.scheduled_batch import ScheduledBatch

Int32Array = npt.NDArray[np.int32]


def build_masks(
    batch: ScheduledBatch, num_rows: int, width: int, backend: GrammarBackend | None
) -> tuple[Int32Array, list[tuple[Request, str]]]:
    """Masks from what the requests' constraints have accepted so far.

    Args:
        num_rows: at least as many as sample; the others are padding.
        width: words of a mask: ⌈V / 32⌉.
        backend: None: no row has a grammar.

    Returns:
        i32[num_rows, width], a bit a token; and the requests that cannot go on, each with the reason: their rows, like
        those of requests that want no token of this step, allow everything.
    """
    masks = np.full((num_rows, width), -1, np.int32)
    rows = [
        (i, request, request.constraint)
        for i, request in enumerate(row.request for row in batch.rows[: batch.num_sampled_rows])
        if request.constraint is not None and request.status is not RequestStatus.FINISHED and not request.num_void
    ]
    to_fill = [(matcher, i) for i, _, constraint in rows if (matcher := constraint.matcher) is not None]
    if to_fill:
        assert backend is not None
        backend.fill(to_fill, masks)
    failures = []
    for i, request, constraint in rows:
        constraint.amend(masks[i])
        if constraint.error is not None or not masks[i].any():
            failures.append((request, constraint.error or "no token is left to continue with"))
            masks[i] = -1
    return masks, failures
