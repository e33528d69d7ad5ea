"""Log-probabilities of a step's tokens, from the device's arrays: of the rows whose requests ask for them."""

from collections.abc import Sequence

import jax
import numpy as np
import numpy.typing as npt

from palladio.runtime.execution.sampling.sampler import SampleOutput
from palladio.runtime.execution.sampling.scoring import Scores
from palladio.runtime.interface.outputs.token_output import TokenLogprob
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduling.state.request import Request

Int32Array = npt.NDArray[np.int32]


class _Rows:
    """Arrays by row (of several steps: one after the other): of the chosen token, of the likeliest, and of those that a
    request asks for. Of the latter, none is read unless a request has some."""

    def __init__(self, logprobs: jax.Array, top_ids: jax.Array, top_logprobs: jax.Array, asked: jax.Array) -> None:
        self._logprobs = np.asarray(logprobs).reshape(-1)
        self._top_ids = _by_row(top_ids)
        self._top_logprobs = _by_row(top_logprobs)
        self._asked = asked

    def of(self, row: int, token_id: int, num_top: int, asked_ids: Sequence[int]) -> TokenLogprob:
        top = zip(self._top_ids[row, :num_top].tolist(), self._top_logprobs[row, :num_top].tolist(), strict=True)
        asked: tuple[tuple[int, float], ...] = ()
        if asked_ids:
            values = _by_row(self._asked)[row, : len(asked_ids)].tolist()
            asked = tuple(zip(asked_ids, values, strict=True))
        return TokenLogprob(token_id, float(self._logprobs[row]), tuple(top), asked)


def _by_row(array: jax.Array) -> np.ndarray:
    return np.asarray(array).reshape(-1, array.shape[-1])


def read_logprobs(
    requests: Sequence[Request], output: SampleOutput, token_ids: Sequence[Sequence[int]]
) -> list[list[TokenLogprob] | None]:
    """Of the tokens of each row that samples; None: not asked for."""
    arrays = (output.logprobs, output.top_ids, output.top_logprobs, output.asked_logprobs)
    found = [array for array in arrays if array is not None]
    assert len(found) == len(arrays), "a request with logprobs runs in tier full"
    rows, num_rows = _Rows(*found), output.token_ids.shape[-1]
    result: list[list[TokenLogprob] | None] = []
    for i, (request, ids) in enumerate(zip(requests, token_ids, strict=False)):
        params = request.given.params
        width, asked_ids = params.logprobs, params.logprob_token_ids or ()
        if width is None or request.max_tokens == 0:
            result.append(None)
        else:
            result.append([rows.of(step * num_rows + i, one, width, asked_ids) for step, one in enumerate(ids)])
    return result


def num_scored(request: Request, start: int, num_tokens: int) -> int:
    """How many of a row's positions predict a prompt token whose logprob is asked for."""
    if request.prompt_logprobs is None:
        return 0
    return max(0, min(start + num_tokens, request.num_prompt_tokens - 1) - start)


def read_scores(batch: ScheduledBatch, scores: Scores) -> list[list[TokenLogprob] | None]:
    """Of each row: of the prompt tokens that its positions predict; None: not asked for."""
    rows = _Rows(*scores)
    result: list[list[TokenLogprob] | None] = []
    begin = 0
    for row in batch.rows:
        request, params = row.request, row.request.given.params
        if request.prompt_logprobs is None or params.prompt_logprobs is None:
            result.append(None)
        else:
            width, asked_ids = params.prompt_logprobs, params.logprob_token_ids or ()
            targets = request.given.prompt_ids[row.start + 1 :]
            count = num_scored(request, row.start, row.num_tokens)
            result.append([rows.of(begin + t, targets[t], width, asked_ids) for t in range(count)])
        begin += row.num_tokens
    return result


def score_vectors(batch: ScheduledBatch | None, num_tokens: int) -> tuple[Int32Array, Int32Array]:
    """Targets and slots of a step of `num_tokens` that scores prompts."""
    targets, slots = np.zeros((2, num_tokens), np.int32)
    begin = 0
    for row in [] if batch is None else batch.rows:
        count = num_scored(row.request, row.start, row.num_tokens)
        targets[begin : begin + count] = row.request.given.prompt_ids[row.start + 1 : row.start + 1 + count]
        slots[begin : begin + count] = row.request.slot
        begin += row.num_tokens
    return targets, slots
