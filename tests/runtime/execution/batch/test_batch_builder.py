"""What the host makes of parameters, and of a step's arrays: an output for each row, from which the scheduler drops
what nobody gets."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.runtime.execution.batch.batch_builder import (
    REPETITION,
    TEMPERATURE,
    BatchBuilder,
    ForwardLayout,
    StepForm,
)
from palladio.runtime.execution.batch.reading import Pooled, read_batch
from palladio.runtime.execution.sampling.sampler import SampleOutput
from palladio.runtime.interface.outputs.token_output import TokenLogprob, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.scheduled_batch import DecodeRows, ScheduledBatch, ScheduledRow
from palladio.runtime.scheduling.state.new_tokens import NOT_FINITE, SampledRows, take_tokens
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.running import RunningRequests

STOP = 9


def request(name: str, max_tokens: int = 8, prompt: tuple[int, ...] = (1, 2, 3), **params) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, **params)
    return Request.of(GenerationRequest(name, list(prompt), sampling, (STOP,), 0.0))


def batch(kind, rows: list[ScheduledRow]) -> ScheduledBatch:
    """Of requests that decode, or prefill."""
    running = RunningRequests(max(1, len(rows)), page_size=4)
    decodes = [row for row in rows if row.decodes]
    for row in decodes:
        running.add(row.request)
    num_tokens = np.array([row.num_tokens for row in decodes], np.int64)
    chunks = [row for row in rows if not row.decodes]
    return ScheduledBatch(kind, DecodeRows.plan(running.columns, running.slots, num_tokens), chunks, [], 0)


def outputs_of(batch: ScheduledBatch, read: SampledRows) -> list[TokenOutput]:
    return [read.output(number, row.request) for number, row in enumerate(batch.rows)]


def stacked(token_ids, is_finite=None, counts=None) -> SampleOutput:
    """Of tokens [num_steps, B]. A token's log-probability is minus its id, that of the asked id twice as much; the ids
    20 … 22 are the likeliest."""
    ids = jnp.asarray(token_ids, jnp.int32)
    finite = jnp.ones(ids.shape, bool) if is_finite is None else jnp.asarray(is_finite)
    tops = jnp.broadcast_to(jnp.arange(20, 23), (*ids.shape, 3))
    asked = -2.0 * ids[..., None].astype(jnp.float32)
    return SampleOutput(ids, finite, -ids.astype(jnp.float32), tops, -tops.astype(jnp.float32), asked, counts)


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty"])
def test_what_is_beyond_float32_is_its_largest_number(name):
    """Infinity times a logit of 0 would be no number."""
    one = request("a", **{name: 1e300})
    builder = BatchBuilder(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        builder.assign(one)
    columns = builder._columns.view(np.float32)[one.slot]
    largest = np.finfo(np.float32).max
    assert columns[TEMPERATURE if name == "temperature" else REPETITION] == largest


def test_a_row_of_several_decode_steps_gives_one_output_with_as_many_tokens_as_are_its_own():
    a, b, c = request("a"), request("b", logprobs=2, logprob_token_ids=(30,)), request("c")
    rows = [ScheduledRow(r, 3, count, samples=True, decodes=True) for r, count in ((a, 3), (b, 2), (c, 3))]
    finite = [[True, True, True, False], [True, True, False, False], [True, False, False, False]]
    tokens = [[4, 5, 6, 0], [14, 15, 16, 0], [24, 25, 26, 0]]  # the last column is padding
    step = batch("decode", rows)
    rest = np.array([3, 2, 3, 0])
    read = outputs_of(step, read_batch(step, stacked(tokens, finite, counts=rest), None, None))
    assert [(output.request_id, output.token_ids, output.finish) for output in read] == [
        ("a", [4, 14, 24], None),
        ("b", [5, 15], None),  # that its third would not be finite does not matter
        ("c", [6, 16], NOT_FINITE),
    ]
    tops = ((20, -20.0), (21, -21.0))
    assert read[1].logprobs == [
        TokenLogprob(5, -5.0, tops, ((30, -10.0),)),
        TokenLogprob(15, -15.0, tops, ((30, -30.0),)),
    ]
    assert read[0].logprobs is None


def test_a_prefill_step_gives_each_row_its_token_its_scores_or_nothing():
    whole, chunk, silent = request("a", logprobs=1), request("b", prompt_logprobs=1), request("c")
    rows = [
        ScheduledRow(whole, 0, 3, samples=True),
        ScheduledRow(chunk, 0, 2, samples=False),
        ScheduledRow(silent, 0, 1, samples=False),
    ]
    tops = np.broadcast_to(np.arange(3), (8, 3))
    scores = (jnp.arange(8.0), jnp.asarray(tops), jnp.asarray(tops, jnp.float32), jnp.zeros((8, 1)))
    step = batch("prefill", rows)
    first, second, third = outputs_of(step, read_batch(step, stacked([7, 0]), scores, None))
    assert (first.token_ids, first.prompt_logprobs) == ([7], None)
    assert first.logprobs == [TokenLogprob(7, -7.0, ((20, -20.0),))]
    assert second.token_ids == []
    assert second.prompt_logprobs == [TokenLogprob(2, 3.0, ((0, 0.0),)), TokenLogprob(3, 4.0, ((0, 0.0),))]
    assert (third.token_ids, third.prompt_logprobs) == ([], None)


def test_of_embeddings_that_are_not_finite_the_request_gets_an_error():
    rows = [ScheduledRow(request(name, 0), 0, 3, samples=True) for name in "ab"]
    vectors = jnp.asarray([[1.0, 2.0], [1.0, jnp.nan], [jnp.nan, jnp.nan]])
    step = batch("prefill", rows)
    good, bad = outputs_of(step, read_batch(step, None, None, Pooled(vectors, None)))
    assert np.frombuffer(good.embedding or b"", "<f4").tolist() == [1.0, 2.0]
    assert (good.finish, bad.finish, bad.embedding) == (None, NOT_FINITE, None)


def never(_request: Request, _count: int) -> bool:
    return False


def keep(_request: Request) -> None:
    """Retract nothing."""


def test_what_comes_after_the_end_of_a_request_is_dropped():
    one = request("a")
    output = one.output([4, STOP, 5, 6], NOT_FINITE, [TokenLogprob(token, -1.0) for token in (4, STOP, 5, 6)])
    finish = take_tokens(one, output, never, keep)
    assert finish is not None
    assert (finish.type, finish.matched) == ("stop", STOP), "it had ended before the token that means nothing"
    assert output.token_ids == [4, STOP]
    assert [entry.token_id for entry in output.logprobs or ()] == [4, STOP]
    assert one.token_ids == [1, 2, 3, 4, STOP]


def test_a_token_that_means_nothing_is_no_orderly_end():
    for last in (STOP, 5):
        one = request("a", max_tokens=2)
        output = one.output([4, last], NOT_FINITE)
        assert take_tokens(one, output, never, keep) is NOT_FINITE
        assert output.token_ids == [4, last]


def test_a_request_for_its_prompt_alone_gets_no_token():
    one = request("a", max_tokens=0, logprobs=1)
    rows = [ScheduledRow(one, 0, 3, samples=True)]
    step = batch("prefill", rows)
    (output,) = outputs_of(step, read_batch(step, stacked([7]), None, None))
    finish = take_tokens(one, output, never, keep)
    assert finish is not None
    assert finish.type == "length"
    assert (output.token_ids, output.logprobs, one.token_ids) == ([], None, [1, 2, 3])


def test_a_step_of_the_same_rows_has_the_vectors_that_a_builder_makes_anew():
    """Its builder keeps them from the step before; what is new are ends, changes of the tables, and other rows."""
    form = StepForm(ForwardLayout.decode(4, page_size=4), 4, marks_decodes=True, scores=False)
    larger = StepForm(ForwardLayout.decode(8, page_size=4), 8, marks_decodes=True, scores=False)
    running, keeping = RunningRequests(4, page_size=4), BatchBuilder(5)
    first, second, third = request("a", top_k=3), request("b", temperature=0.5), request("c", top_p=0.5)
    built = []

    def step(form: StepForm, updates: tuple[tuple[int, int, int], ...] = ()) -> None:
        rows = DecodeRows.plan_one_each(running, running.slots, has_drafts=False)
        planned = ScheduledBatch("decode", rows, [], list(updates), 0)
        fresh = BatchBuilder(5)
        for one in running:
            fresh.assign(one)
        found, expected = keeping.build(form, planned), fresh.build(form, planned)
        assert found.tier == expected.tier
        for name in ("packed", "forward", "sampling"):
            assert getattr(found, name).tolist() == getattr(expected, name).tolist()
        assert all(found.packed is not earlier.packed for earlier in built), "the device may still read it"
        built.append(found)

    for one in (first, second):
        running.add(one)
        keeping.assign(one)
        one.note_computed(3)
    step(form, ((1, 1, 8),))
    step(form)
    step(form, ((1, 2, 7), (2, 1, 5)))
    step(form)
    step(larger)
    step(form)
    running.remove(second)
    running.add(third)  # in the slot that is free again
    keeping.assign(third)
    third.note_computed(3)
    step(form)
    step(form)
