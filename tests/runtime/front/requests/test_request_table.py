"""RequestTable: which requests outlive an engine, and what the next one is told."""

import asyncio
import tracemalloc

import pytest

from palladio.runtime.front.requests.crash_dump import CrashRecorder
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.front.requests.request_table import MAX_CRASHES, MAX_TAKEN, MERGE_AT, MERGE_SHARE, RequestTable
from palladio.runtime.front.requests.samples import LOGPROB_COST, output_cost
from palladio.runtime.interface.errors import (
    DeadlineError,
    EngineDeadError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
)
from palladio.runtime.interface.messages.calls import StepOutputs
from palladio.runtime.interface.outputs.prefill_progress import PrefillProgress
from palladio.runtime.interface.outputs.request_output import RefusedOutputError
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace, WaitTimes
from palladio.runtime.interface.outputs.token_output import (
    FinishReason,
    PlainTokens,
    TokenLogprob,
    TokenOutput,
    by_request,
)
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams

DEAD = EngineDeadError("killed")
ROOMY = LengthLimit(1000, "the KV cache")


def sample(engine_id, max_tokens=10, timeout=None, num_prompt_tokens=2, background=False):
    params = SamplingParams(max_tokens=max_tokens, seed=1)
    options = RequestOptions(timeout=timeout, background=background)
    return GenerationRequest(engine_id, [5] * num_prompt_tokens, params, (2,), 100.0, options)


def begin(table, name, *samples):
    return table.open(name, samples, None)


def ids(requests):
    return [request.request_id for request in requests]


async def test_those_without_output_are_sent_again_in_order():
    table = RequestTable(None)
    pair = [sample("a-0~0"), sample("a-1~1")]
    waiting = begin(table, "a", *pair)
    served = begin(table, "b", sample("b-0~2"), sample("b-1~3"))
    begin(table, "c", sample("c~4"))
    table.process(StepOutputs([TokenOutput("b-1~3", [7])]))
    assert table.fail_served(DEAD) == (1, 2)
    assert ids(table.requests_to_resend(ROOMY)) == ["a-0~0", "a-1~1", "c~4"]
    assert (await served.take())[0].token_ids == [7]
    with pytest.raises(EngineDeadError, match="killed"):
        await served.take()
    assert table.close("b") == []  # the new engine does not know them
    table.process(StepOutputs([TokenOutput("a-0~0", [8]), TokenOutput("b-0~2", [9])]))
    assert [output.token_ids for output in await waiting.take()] == [[8]]


async def test_progress_of_the_prefill_may_begin_again():
    table = RequestTable(None)
    stream = begin(table, "a", sample("a~0"))
    table.process(StepOutputs([TokenOutput("a~0", [], progress=PrefillProgress(2, 0, 1, 0.5))]))
    assert [output.progress.num_computed for output in await stream.take()] == [1]
    stream.attach(lambda output: True)
    assert table.fail_served(DEAD) == (0, 1)
    assert ids(table.requests_to_resend(ROOMY)) == ["a~0"]
    reader = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    table.process(StepOutputs([TokenOutput("a~0", [7])]))  # the fast path takes it
    assert table.fail_served(DEAD) == (1, 0)
    with pytest.raises(EngineDeadError, match="killed"):
        await reader


async def test_tokens_alone_stand_among_the_outputs_of_their_message():
    """One message may hold two steps: a request's plain token comes after its first output, and before its last."""
    table = RequestTable(None)
    early, late = begin(table, "a", sample("a~0")), begin(table, "b", sample("b~1"))
    first = TokenOutput("a~0", [5], times=RequestTimes(100.0), cached_tokens=3, num_retractions=1)
    last = TokenOutput("b~1", [9], finish=FinishReason("length"))
    table.process(StepOutputs([TokenOutput("b~1", [4])]))
    plain = [PlainTokens.of(["b~1", "gone~2"], [[6], [1]], 1), PlainTokens.of(["a~0"], [[7, 8]], 2)]
    assert table.process(StepOutputs([first, last], plain)) == []
    assert [output.token_ids for output in by_request([first, plain[0], last])] == [[5], [6], [1], [9]]
    told = [(output.token_ids, output.cached_tokens, output.num_retractions) for output in await early.take()]
    assert told == [([5], 3, 1), ([7, 8], 3, 1)]
    assert [output.token_ids for output in await late.take()] == [[4], [6], [9]]
    assert late.is_over


async def test_a_fast_path_gets_what_comes_while_the_reader_waits_and_the_reader_the_rest():
    table, taken, is_open = RequestTable(None), [], True

    def take(output):
        if is_open:
            taken.append(output.token_ids)
        return is_open

    stream = begin(table, "a", sample("a~0"))
    table.attach("gone", take)
    table.attach("a", take)
    give(table, "a~0", 4)
    assert taken == [], "nobody waited yet"
    assert [output.token_ids for output in await stream.take()] == [[4]]
    reading = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    give(table, "a~0", 5)
    give(table, "a~0", 6)
    assert (taken, reading.done()) == ([[5], [6]], False)
    is_open = False
    give(table, "a~0", 7)
    is_open = True
    give(table, "a~0", 8)
    assert taken == [[5], [6]], "what comes after one that it has refused must not overtake it"
    await asyncio.sleep(0)
    assert [output.token_ids for output in reading.result()] == [[7], [8]]
    reading = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    table.process(StepOutputs([TokenOutput("a~0", [9], finish=FinishReason("length"))]))
    await asyncio.sleep(0)
    assert (taken, reading.done()) == ([[5], [6]], True), "the reader gets the end"
    assert ([output.token_ids for output in reading.result()], stream.is_over) == ([[9]], True)


async def test_a_fast_path_that_fails_ends_its_request_alone(caplog):
    table, taken = RequestTable(None), []
    streams = [begin(table, name, sample(f"{name}~0")) for name in "ab"]
    table.attach("a", lambda output: 1 / 0 > 0)
    table.attach("b", lambda output: not taken.append(output.token_ids))
    reading = [asyncio.ensure_future(stream.take()) for stream in streams]
    await asyncio.sleep(0)
    table.process(StepOutputs([], [PlainTokens.of(["a~0", "b~0"], [[4], [5]])]))
    with pytest.raises(GenerationError, match="could not be processed; the server's log has") as failure:
        await reading[0]
    assert "ZeroDivisionError" not in str(failure.value), "what went wrong inside is for the log alone"
    assert str(failure.value).split()[-1] in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert (taken, table.close("a"), reading[1].cancel()) == ([[5]], ["a~0"], True)


def give(table, engine_id, token_id):
    assert table.process(StepOutputs([], [PlainTokens.of([engine_id], [[token_id]])])) == []


async def test_crashes_are_counted_for_those_who_were_there():
    table = RequestTable(None)
    old = begin(table, "old", sample("old~0"))
    for _ in range(MAX_CRASHES - 1):
        assert table.fail_served(DEAD) == (0, 1)
    begin(table, "new", sample("new~1"))
    assert table.fail_served(DEAD) == (1, 1)
    with pytest.raises(EngineDeadError, match=rf"^killed; the engine failed {MAX_CRASHES} times while this request"):
        await old.take()
    assert ids(table.requests_to_resend(ROOMY)) == ["new~1"]


async def test_a_line_of_a_batch_is_given_back_at_each_crash_for_its_batch_counts_them():
    table = RequestTable(None)
    line = begin(table, "line", sample("line~0", background=True))
    begin(table, "other", sample("other~1"))
    assert table.fail_served(DEAD) == (1, 1)
    with pytest.raises(EngineDeadError, match=r"^killed$"):
        await line.take()
    assert ids(table.requests_to_resend(ROOMY)) == ["other~1"]


async def test_what_does_not_fit_any_more_fails():
    table = RequestTable(None)
    large = begin(table, "large", sample("large~0", max_tokens=9, num_prompt_tokens=2))
    begin(table, "small", sample("small~1", max_tokens=8, num_prompt_tokens=2))
    table.fail_served(DEAD)
    assert ids(table.requests_to_resend(LengthLimit(10, "the KV cache"))) == ["small~1"]
    with pytest.raises(EngineDeadError, match=r"11 tokens of prompt and output exceed the KV cache \(10"):
        await large.take()


async def test_deadlines():
    table = RequestTable(None)
    late = begin(table, "late", sample("late~0", timeout=5.0))
    begin(table, "free", sample("free~1"))
    table.expire(104.9)
    assert ids(table.requests_to_resend(ROOMY)) == ["late~0", "free~1"]
    table.expire(105.0)
    assert ids(table.requests_to_resend(ROOMY)) == ["free~1"]
    with pytest.raises(DeadlineError, match="timeout of 5 s"):
        await late.take()


async def test_a_refusal_tells_what_the_engine_knew():
    table = RequestTable(None)
    late, full = begin(table, "late", sample("late-0~0"), sample("late-1~1")), begin(table, "full", sample("full~2"))
    finish = FinishReason("abort", message="too late", status=504)
    trace = RequestTrace(100.5, WaitTimes(memory=4.5))
    table.process(StepOutputs([TokenOutput("late-1~1", [], finish=finish, times=RequestTimes(100.0), trace=trace)]))
    with pytest.raises(DeadlineError, match="too late") as caught:
        await late.take()
    cause = caught.value.__cause__
    assert isinstance(cause, RefusedOutputError)
    assert (cause.output.request_id, cause.output.index, cause.output.trace) == ("late", 1, trace)
    assert (cause.output.times.scheduled, cause.output.times.finished is None) == (None, False)
    refusal = FinishReason("abort", message="full", status=503)
    table.process(StepOutputs([TokenOutput("full~2", [], finish=refusal)]))
    with pytest.raises(OverloadedError) as caught:
        await full.take()
    assert caught.value.__cause__ is None, "it never was in the queue"


@pytest.mark.parametrize("num_samples", [1, 16])
async def test_what_a_slow_reader_leaves_is_merged(num_samples):
    table, num_tokens = RequestTable(None), 2000
    names = [f"r-{index}~{index}" for index in range(num_samples)]
    stream = begin(table, "r", *(sample(name, max_tokens=num_tokens) for name in names))
    tracemalloc.start()
    before, most = tracemalloc.get_traced_memory()[0], 0
    for position in range(num_tokens):
        logprobs = [TokenLogprob(1000 + position, -0.5)]
        table.process(StepOutputs([TokenOutput(name, [1000 + position], logprobs) for name in names]))
        most = max(most, len(stream.pending))
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert most <= num_samples + max(MERGE_AT, num_tokens * num_samples // MERGE_SHARE)
    assert size < 250 * num_tokens * num_samples, "of a token, its number, and its logprob"
    token_ids: list[list[int]] = [[] for _ in names]
    while stream.pending:
        taken = await stream.take()
        assert sum(map(output_cost, taken)) < 2 * MAX_TAKEN + LOGPROB_COST, "a part of what waits, in one go"
        for output in taken:
            assert [logprob.token_id for logprob in output.logprobs] == output.token_ids
            token_ids[output.index] += output.token_ids
            assert output.completion_tokens == len(token_ids[output.index])
    assert token_ids == [[1000 + position for position in range(num_tokens)]] * num_samples
    table.process(StepOutputs([TokenOutput(names[0], [7])]))
    assert [output.token_ids for output in await stream.take()] == [[7]]


async def test_ids_are_free_again_and_idle_is_known():
    table = RequestTable(None)
    begin(table, "r", sample("r~0"))
    assert not table.idle.is_set()
    with pytest.raises(InvalidRequestError, match="already running"):
        begin(table, "r", sample("r~1"))
    assert table.close("r") == ["r~0"]
    assert table.idle.is_set()
    begin(table, "r", sample("r~2"))


async def test_the_recorder_hears_of_every_end():
    recorder = CrashRecorder()
    table = RequestTable(recorder)
    for name in ("done", "refused", "gone", "aborted", "running"):
        begin(table, name, sample(f"{name}~0"))
    length = FinishReason("length")
    refusal = FinishReason("abort", message="no", status=400)
    table.process(
        StepOutputs([TokenOutput("done~0", [7], finish=length), TokenOutput("refused~0", [], finish=refusal)])
    )
    assert table.close("gone") == ["gone~0"]
    assert table.abort("aborted") == (1, ["aborted~0"])
    ends = {sample.request.request_id: sample.finish for sample in recorder.samples()}
    assert ends == {
        "done~0": length,
        "refused~0": refusal,
        "gone~0": FinishReason("abort"),
        "aborted~0": FinishReason("abort"),
        "running~0": None,
    }
