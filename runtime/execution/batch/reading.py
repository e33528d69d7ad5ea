"""A dispatched step, and what its results on the device say of the rows of its batches."""

import dataclasses
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from palladio.runtime.execution.sampling.sampler import SampleOutput
from palladio.runtime.execution.sampling.scoring import Scores
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob, TokenOutput
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledStep
from palladio.runtime.scheduling.state.new_tokens import NOT_FINITE, SampledRows
from palladio.runtime.scheduling.state.request import Request

Int32Array = npt.NDArray[np.int32]


class _Rows:
    """Arrays by row (of several steps: one after the other): log-probabilities of the chosen token, of the likeliest
    tokens, and of the tokens that a request asks for. The last ones are read only if a request has some."""

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
    """Log-probabilities of the tokens of each row that samples; None: not asked for."""
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
    """Log-probabilities of the prompt tokens that each row's positions predict; None: not asked for."""
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


NO_TOKENS = np.zeros((0, 1), np.int32)
_NO_VECTOR = np.zeros(0, np.float32)


class Pooled(NamedTuple):
    """What an engine that makes embeddings gives in place of tokens.

    Attributes:
        vectors: f32[B, D], of each row; None: the model makes none.
        of_tokens: f32[T, D'], of each token of the step; None: no row asks for them.
    """

    vectors: jax.Array | None
    of_tokens: jax.Array | None


def wants_tokens(step: ScheduledStep) -> bool:
    """Whether a row of the step asks for a vector of each token."""
    return any("tokens" in row.request.given.pooling.kinds for _, batch in step.parts for row in batch.rows)


@dataclasses.dataclass(frozen=True, slots=True)
class InFlightStep:
    """A dispatched step; its arrays, here of one rank, are computed, or will be.

    Attributes:
        output: None if no row samples.
        scores: of prompt tokens, see `scoring.score_tokens`; None: not asked for.
        bucket_size: tokens of each rank, or rows of a decode step, padding included.
        num_steps: forward passes.
        last_array: what it computes last.
        embeddings: in place of tokens; None: no row samples, or the engine generates text.
        dispatched: when, by time.perf_counter.
    """

    planned: ScheduledStep
    output: SampleOutput | None
    scores: Scores | None
    bucket_size: int
    num_steps: int
    last_array: jax.Array
    embeddings: Pooled | None = None
    dispatched: float = dataclasses.field(default_factory=time.perf_counter)

    @property
    def is_done(self) -> bool:
        """Whether the device has computed all of it."""
        done: bool = self.last_array.is_ready()  # type: ignore[attr-defined]  # jax.Array's stub lacks it
        return done


def read_batch(
    batch: ScheduledBatch, output: SampleOutput | None, scores: Scores | None, pooled: Pooled | None
) -> SampledRows:
    """What one rank's results say of the rows of its batch."""
    if pooled is not None:
        return SampledRows(NO_TOKENS, None, _read_embeddings(batch, pooled))
    scored = [] if scores is None else read_scores(batch, scores)
    with_scores = [(number, of_row) for number, of_row in enumerate(scored) if of_row is not None]
    if output is None:
        return SampledRows(
            NO_TOKENS, None, {i: batch.rows[i].request.output([], prompt_logprobs=found) for i, found in with_scores}
        )
    number, token_ids, counts = batch.num_sampled_rows, np.asarray(output.token_ids), None
    token_ids = token_ids.reshape(-1, token_ids.shape[-1]).T[:number]
    if output.counts is not None:
        counts = np.asarray(output.counts)[:number].astype(np.int64)
        most = int(counts.max())
        if batch.kind == "decode" and np.count_nonzero(counts == most) == number:  # drafts are corrected by counts
            token_ids, counts = token_ids[:, :most], None
    read = SampledRows(token_ids, counts, {})
    alone = _looked_at(batch, read, output)
    for i, found in with_scores:
        one = alone.get(i) or read.output(i, batch.rows[i].request)
        alone[i] = dataclasses.replace(one, prompt_logprobs=found)
    return dataclasses.replace(read, alone=alone) if alone else read


def _looked_at(batch: ScheduledBatch, read: SampledRows, output: SampleOutput) -> dict[int, TokenOutput]:
    """The outputs of rows whose log-probabilities are asked for, or whose tokens mean nothing."""
    is_finite = np.asarray(output.is_finite)
    has_logprobs = output.logprobs is not None and any(r.given.params.logprobs is not None for r in batch.requests)
    if np.count_nonzero(is_finite) == is_finite.size and not has_logprobs:
        return {}
    requests = list(batch.requests)[: len(read.token_ids)]
    token_ids = [read.tokens(number) for number in range(len(requests))]
    finishes: list[FinishReason | None] = [None] * len(requests)
    for i, of_row in enumerate(is_finite.reshape(-1, is_finite.shape[-1]).T[: len(requests)]):
        if not of_row[: len(token_ids[i])].all():
            finishes[i] = NOT_FINITE
            del token_ids[i][of_row.argmin() + 1 :]
    logprobs: Sequence[list[TokenLogprob] | None] = [None] * len(requests)
    if has_logprobs:
        logprobs = read_logprobs(requests, output, token_ids)
    outputs = map(Request.output, requests, token_ids, finishes, logprobs)
    return {i: one for i, one in enumerate(outputs) if one.finish is not None or one.logprobs is not None}


def _read_embeddings(batch: ScheduledBatch, pooled: Pooled) -> dict[int, TokenOutput]:
    """Embeddings of the rows whose prompt ends in this step, and vectors of their tokens if they ask for them."""
    vectors, of_tokens = (None if array is None else np.asarray(array) for array in pooled)
    read: list[TokenOutput] = []
    begin = 0
    for number, row in enumerate(batch.rows[: batch.num_sampled_rows]):
        end, kinds = begin + row.num_tokens, row.request.given.pooling.kinds
        dense = _NO_VECTOR if vectors is None or "dense" not in kinds else vectors[number]
        tokens = _NO_VECTOR if of_tokens is None or "tokens" not in kinds else of_tokens[begin:end]
        if np.isfinite(dense).all() and np.isfinite(tokens).all():
            output = row.request.output([], embedding=dense.astype("<f4", copy=False).tobytes())
            if "tokens" in kinds:
                output = dataclasses.replace(output, token_vectors=tokens.astype("<f4", copy=False).tobytes())
            read.append(output)
        else:
            read.append(row.request.output([], NOT_FINITE))
        begin = end
    return dict(enumerate(read))
