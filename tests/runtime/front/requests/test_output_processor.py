import copy
import dataclasses

import pytest

from palladio.runtime.front.requests.intake import RequestIntake
from palladio.runtime.front.requests.samples import SampleProcessor, merge_outputs
from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError, PromptLength
from palladio.runtime.interface.outputs.request_output import RequestTimings
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.timeline import Timeline, TimelineRecord
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.grammar_spec import MAX_ANSWER_ROOM, Grammar, Thinking
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.runtime.fake_core import make_ready
from tests.tiny_tokenizer import build_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tok")))


def make(tokenizer, **params):
    request = GenerationRequest("r~0", [5, 6], SamplingParams(max_tokens=99, seed=0, **params), (2,), 100.0)
    return SampleProcessor("r", 0, request, tokenizer)


def feed(processor, ids, finish=None, *, step=1):
    """Outputs until the sample ends, `step` tokens at a time; the engine's finish comes with the last ones."""
    outputs = []
    for at in range(0, len(ids), step):
        last = at + step >= len(ids)
        part = ids[at : at + step]
        logprobs = [TokenLogprob(i, -1.0) for i in part]
        outputs.append(processor.process(TokenOutput("r~0", part, logprobs, finish=finish if last else None)))
        if outputs[-1].finish is not None:
            break
    return outputs


def text_of(outputs):
    return "".join(output.text for output in outputs)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_stop_string_over_tokens(tokenizer, step):
    ids = tokenizer.encode("one, two, three, four")
    outputs = feed(make(tokenizer, stop=["o, thr"]), ids, FinishReason("length"), step=step)
    assert text_of(outputs) == "one, tw"
    assert outputs[-1].finish == FinishReason("stop", matched="o, thr")
    shown = [i for output in outputs for i in output.token_ids]
    assert "o, thr" in tokenizer.decode(shown)
    assert "o, thr" not in tokenizer.decode(shown[:-1])
    assert [entry.token_id for output in outputs for entry in output.logprobs] == shown
    assert outputs[-1].completion_tokens == len(shown)
    assert outputs[-1].times.received == 100.0
    assert outputs[-1].times.finished is not None


def test_a_stop_string_ends_the_timeline_where_it_ends_the_answer(tokenizer):
    """The first output's trace goes on to tell what comes: so whoever ends the request, all of it is known."""
    ids, options = tokenizer.encode("one, two, three, four"), RequestOptions(timeline=True)
    params = SamplingParams(max_tokens=99, seed=0, stop=["o, thr"])
    processor = SampleProcessor("r", 0, GenerationRequest("r~0", [5, 6], params, (2,), 100.0, options), tokenizer)
    outputs = []
    for at in range(0, len(ids), 4):
        news, part = Timeline(), ids[at : at + 4]
        news.add(TimelineRecord("decode", float(at), 1.0, steps=1, new_tokens=len(part)))
        times = RequestTimes(100.0) if at == 0 else None
        outputs.append(processor.process(TokenOutput("r~0", part, times=times, trace=RequestTrace(timeline=news))))
        if outputs[-1].finish is not None:
            break
    assert all(output.trace is None for output in outputs[1:-1])
    assert outputs[0].trace.timeline is outputs[-1].trace.timeline
    told = [record.new_tokens for record in outputs[0].trace.timeline]
    assert told[:-1] == [4] * (len(told) - 1)
    assert sum(told) == outputs[-1].completion_tokens < 4 * len(told)


def test_no_stop_trim_keeps_the_match_but_nothing_after_it(tokenizer):
    ids = tokenizer.encode("one, two, three, four")
    outputs = feed(make(tokenizer, stop=["thr"], no_stop_trim=True), ids)
    assert text_of(outputs) == "one, two, thr"


def test_min_tokens_suppresses_stop_strings(tokenizer):
    ids = tokenizer.encode("aXbXcX")
    outputs = feed(make(tokenizer, stop=["X"], min_tokens=3), ids)
    assert text_of(outputs) == "aXb"
    assert outputs[-1].completion_tokens == 4


def test_held_text_comes_out_at_the_end(tokenizer):
    ids = tokenizer.encode("abc")
    outputs = feed(make(tokenizer, stop=["cd"]), ids, FinishReason("length"))
    assert text_of(outputs) == "abc"
    assert outputs[-1].finish.type == "length"


def test_unfinished_code_point_at_the_end(tokenizer):
    ids = tokenizer.encode("日")[:-1]
    assert text_of(feed(make(tokenizer), ids, FinishReason("length"))) == "\ufffd"


def test_eos_is_counted_but_not_shown(tokenizer):
    ids = [*tokenizer.encode("ab"), 2]
    for skip in (True, False):
        outputs = feed(make(tokenizer, skip_special_tokens=skip), ids, FinishReason("stop", matched=2))
        assert text_of(outputs) == "ab"
        assert outputs[-1].completion_tokens == 3
    outputs = feed(
        make(tokenizer, skip_special_tokens=False, no_stop_trim=True), ids, FinishReason("stop", matched=2), step=3
    )
    assert text_of(outputs) == "ab<|im_end|>"


def test_plain_stop_token_is_trimmed_unless_wanted(tokenizer):
    ids = tokenizer.encode("ab")
    finish = FinishReason("stop", matched=ids[-1])
    assert text_of(feed(make(tokenizer), ids, finish)) == "a"
    assert text_of(feed(make(tokenizer, no_stop_trim=True), ids, finish)) == "ab"


def test_stop_string_that_names_a_hidden_token(tokenizer):
    ids = tokenizer.encode("ab<|im_start|>cd")
    outputs = feed(make(tokenizer, stop=["<|im_start|>"]), ids)
    assert text_of(outputs) == "ab"
    assert outputs[-1].finish == FinishReason("stop", matched="<|im_start|>")


@pytest.mark.parametrize("step", [1, 2, 100])
def test_a_pattern_ends_the_text_with_its_match(tokenizer, step):
    ids = tokenizer.encode("one 12 345 six")
    outputs = feed(make(tokenizer, stop_regex=r"\d{3}"), ids, step=step)
    assert text_of(outputs) == "one 12 345"
    assert outputs[-1].finish == FinishReason("stop", matched=r"\d{3}")
    assert outputs[-1].completion_tokens < len(ids)
    assert text_of(feed(make(tokenizer, stop_regex=r"\d{4}"), ids, step=step)) == "one 12 345 six"


def test_patterns_beside_stop_strings_and_min_tokens(tokenizer):
    ids = tokenizer.encode("one 12 345 six")
    for stop, pattern, text, matched in (
        ("345", "34", "one 12 ", "345"),  # what may become a stop string is held back from the pattern, too
        ("2 3", "12", "one 1", "2 3"),
        ("six", "4", "one 12 34", "4"),
    ):
        outputs = feed(make(tokenizer, stop=stop, stop_regex=pattern), ids)
        assert (text_of(outputs), outputs[-1].finish.matched) == (text, matched)
    late = feed(make(tokenizer, stop_regex=r"\d", min_tokens=len(ids)), ids, FinishReason("length"))
    assert (text_of(late), late[-1].finish.type) == ("one 12 345 six", "length")


def test_a_pattern_that_ends_in_what_was_held(tokenizer):
    ids = tokenizer.encode("ab")
    outputs = feed(make(tokenizer, stop=["abc"], stop_regex="a"), ids, FinishReason("length"))
    assert (text_of(outputs), outputs[-1].finish) == ("a", FinishReason("stop", matched="a"))


def test_abort_shows_what_was_held(tokenizer):
    processor = make(tokenizer, stop=["abc"])
    assert text_of(feed(processor, tokenizer.encode("ab"))) == ""
    output = processor.abort()
    assert (output.text, output.finish.type, output.completion_tokens) == ("ab", "abort", 2)


def test_without_tokenizer():
    outputs = feed(make(None), [7, 8], FinishReason("length"))
    assert text_of(outputs) == ""
    assert [output.token_ids for output in outputs] == [[7], [8]]


def test_engine_times_pass_through(tokenizer):
    times = RequestTimes(100.0, 101.0, 102.0, 103.0)
    output = TokenOutput("r~0", [9], finish=FinishReason("length"), times=times, cached_tokens=16, num_retractions=1)
    result = make(tokenizer).process(output)
    assert (result.times, result.cached_tokens, result.num_retractions) == (times, 16, 1)


def test_merge_outputs(tokenizer):
    ids = tokenizer.encode("one two three")
    outputs = feed(make(tokenizer), ids, FinishReason("length"))
    other = [dataclasses.replace(output, index=1) for output in copy.deepcopy(outputs)]
    merged = merge_outputs([output for pair in zip(outputs, other, strict=True) for output in pair], 1000)
    assert [output.index for output in merged] == [0, 1]
    assert merged[0].text == "one two three"
    assert merged[0].token_ids == ids
    assert len(merged[0].logprobs) == len(ids)
    assert merged[0].finish == FinishReason("length")


# The request front: the way in.


@pytest.fixture
def front(tokenizer):
    return RequestIntake(make_ready(context_length=32), tokenizer)


def test_settle_one(front):
    (request,) = front.resolve(GenerationRequest("r", [5, 6], SamplingParams(stop_token_ids=[9])))
    assert request.request_id.startswith("r~")
    assert request.params.max_tokens == 30
    assert 0 <= request.params.seed < 2**64
    assert request.stop_token_ids == (2, 9)
    assert front.resolve(GenerationRequest("r", [5], SamplingParams()))[0].request_id != request.request_id


def test_settle_n(front):
    requests = front.resolve(GenerationRequest("r", [5], SamplingParams(n=3, seed=-1, prompt_logprobs=0, max_tokens=4)))
    assert {request.request_id.rpartition("~")[0] for request in requests} == {"r"}
    assert [request.request_id[-2:] for request in requests] == ["-0", "-1", "-2"]
    assert [request.params.seed for request in requests] == [2**64 - 1, 0, 1]
    assert [request.params.prompt_logprobs for request in requests] == [0, None, None]
    assert all(request.params.n == 1 for request in requests)


def test_the_options_are_settled(front, tokenizer):
    given = RequestOptions("salt", 0, 2.0)
    requests = front.resolve(GenerationRequest("r", [5], SamplingParams(n=2), options=given))
    assert [request.options for request in requests] == [given, given]
    with pytest.raises(InvalidRequestError, match="--schedule-policy priority"):
        front.resolve(GenerationRequest("r", [5], SamplingParams(), options=RequestOptions(priority=1)))
    scheduler = SchedulerConfig(schedule_policy="priority", request_timeout=9.0)
    prioritized = RequestIntake(make_ready(), tokenizer, scheduler)
    (request,) = prioritized.resolve(GenerationRequest("r", [5], SamplingParams(), options=RequestOptions(priority=1)))
    assert request.options == RequestOptions(None, 1, 9.0)


def test_drawn_seeds_follow_the_engines_seed(tokenizer):
    seeds = [
        [
            request.params.seed
            for request in RequestIntake(make_ready(), tokenizer).resolve(GenerationRequest("r", [5], params))
        ]
        for params in (SamplingParams(n=4), SamplingParams(n=4))
    ]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4


def test_ignore_eos(front):
    (request,) = front.resolve(GenerationRequest("r", [5], SamplingParams(ignore_eos=True, stop_token_ids=[7])))
    assert request.stop_token_ids == (7,)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "numbers", "length"),
    [
        (33, None, ["33", "32"], PromptLength(33, 32)),
        (32, None, ["32"], PromptLength(32, 31)),
        (32, 1, ["32"], PromptLength(32, 31)),
        (30, 3, ["30", "3", "32"], None),
        (33, 0, ["33", "32"], PromptLength(33, 32)),
    ],
)
def test_too_long(front, num_prompt, max_tokens, numbers, length):
    with pytest.raises(ContextLengthError) as caught:
        front.resolve(GenerationRequest("r", [5] * num_prompt, SamplingParams(max_tokens=max_tokens)))
    assert all(number in str(caught.value) for number in numbers)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.length == caught.value.rename({}).length == length


def test_just_fits(front):
    assert front.resolve(GenerationRequest("r", [5] * 31, SamplingParams()))[0].params.max_tokens == 1
    assert front.resolve(GenerationRequest("r", [5] * 30, SamplingParams(max_tokens=2)))[0].params.max_tokens == 2
    assert front.resolve(GenerationRequest("r", [5] * 32, SamplingParams(max_tokens=0)))[0].params.max_tokens == 0


def test_a_length_makes_way_for_the_prompt_where_it_may(front):
    def length(num_prompt, **fields):
        params = SamplingParams(max_tokens=fields.pop("max_tokens", None), min_tokens=fields.pop("min_tokens", 0))
        (request,) = front.resolve(GenerationRequest("r", [5] * num_prompt, params, **fields))
        return request.params.max_tokens

    assert length(5, default_length=9) == 9
    assert length(5, default_length=9, min_tokens=12) == 12
    assert length(30, default_length=9) == 2
    assert length(30, default_length=9, max_tokens=1) == 1
    assert length(30, max_tokens=9, lowers_length=True) == 2
    assert length(30, max_tokens=1, lowers_length=True) == 1
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        length(30, max_tokens=9, min_tokens=3, lowers_length=True)
    with pytest.raises(ContextLengthError):
        length(32, max_tokens=9, lowers_length=True)


def test_small_pool_is_named(tokenizer):
    front = RequestIntake(make_ready(context_length=4096, max_total_tokens=16), tokenizer)
    with pytest.raises(ContextLengthError, match="--mem-fraction-static") as caught:
        front.resolve(GenerationRequest("r", [5] * 17, SamplingParams()))
    assert "--mem-fraction-static" in caught.value.length.note
    windowed = make_ready(context_length=4096, max_total_tokens=16, longest_request=64)
    RequestIntake(windowed, tokenizer).resolve(GenerationRequest("r", [5] * 60, SamplingParams()))
    with pytest.raises(ContextLengthError, match="64"):
        RequestIntake(windowed, tokenizer).resolve(GenerationRequest("r", [5] * 65, SamplingParams()))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([5, 384], "384"), ([-1], "-1"), ([5, "a"], "list of token ids"), ([True], "list")],
)
def test_bad_prompts(front, prompt, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        front.resolve(GenerationRequest("r", prompt, SamplingParams()))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(logit_bias={384: 1.0}), "logit_bias"),
        (SamplingParams(logit_bias={-1: 1.0}), "logit_bias"),
        (SamplingParams(allowed_token_ids=(5, 384)), "allowed_token_ids"),
        (SamplingParams(logprobs=0, logprob_token_ids=(384, 5)), "logprob_token_ids"),
        (SamplingParams(stop_regex="(a"), "stop_regex"),
        (SamplingParams(stop_regex=["a", "^b"]), "stop_regex"),
        (SamplingParams(stop_token_ids=[999]), "stop_token_ids"),
        (SamplingParams(stop_token_ids=list(range(3, 67))), "stop_token_ids"),
        (SamplingParams(stop_token_ids=list(range(3, 67)), ignore_eos=True, min_tokens=1), "stop_token_ids"),
        (SamplingParams(min_tokens=100), "min_tokens"),
    ],
)
def test_bad_params(front, params, param):
    with pytest.raises(InvalidRequestError) as caught:
        front.resolve(GenerationRequest("r", [5], params))
    assert caught.value.param == param


def test_as_many_stop_ids_as_there_may_be(front):
    """An end of sequence that neither ends the output nor is kept away from it takes no place among them."""
    ids = list(range(3, 67))
    (request,) = front.resolve(GenerationRequest("r", [5], SamplingParams(stop_token_ids=ids, ignore_eos=True)))
    assert request.stop_token_ids == tuple(ids)


def test_stop_strings_without_tokenizer():
    front = RequestIntake(make_ready(), None)
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        front.resolve(GenerationRequest("r", [5], SamplingParams(stop=["x"])))


def test_a_stop_string_keeps_what_the_engine_told_with_the_first_token(tokenizer):
    first, *rest = tokenizer.encode("abcdef")
    processor, trace = make(tokenizer, stop=["de"]), RequestTrace(queued=100.5)
    processor.process(TokenOutput("r~0", [first], times=RequestTimes(100.0, 101.0, 102.0), trace=trace))
    end = feed(processor, rest)[-1]
    assert end.finish == FinishReason("stop", matched="de")
    assert (end.times.scheduled, end.times.first_token, end.trace) == (101.0, 102.0, trace)
    assert end.times.finished > 102.0
    timings = RequestTimings.of_output(end)
    assert (timings.queue, timings.prefill, timings.compile_wait) == (1.0, 1.0, 0.0)
    assert timings.decode == end.times.finished - 102.0
    assert 0 < timings.detokenize < 5


def test_detokenize_time_adds_up(tokenizer, monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr("palladio.runtime.front.requests.samples.time.perf_counter", lambda: float(next(ticks)))
    outputs = feed(make(tokenizer), [7, 8, 9], FinishReason("length"))
    assert [output.detokenize_seconds for output in outputs] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("max_tokens", "begun", "budget", "expected"),
    [
        (100, True, None, 49),  # half of it for the answer, and one token that closes the thinking
        (100, False, None, 48),  # and one that opens it
        (4000, True, None, 4000 - MAX_ANSWER_ROOM - 1),
        (None, True, None, 4096 - 2 - MAX_ANSWER_ROOM - 1),  # the rest of the context
        (100, True, 98, 98),  # asked for, and it fits
        (100, True, 99, 49),
        (100, True, 5000, 49),
        (2, True, None, 0),
    ],
)
def test_thinking_leaves_room_for_an_answer_in_a_grammar(tokenizer, max_tokens, begun, budget, expected):
    thinking = Thinking((10,), (11,), begun=begun, budget=budget)
    params = SamplingParams(max_tokens=max_tokens, grammar=Grammar("choice", '["a"]'), thinking=thinking)
    front = RequestIntake(make_ready(context_length=4096), tokenizer)
    (resolved,) = front.resolve(GenerationRequest("r", [5, 6], params))
    assert resolved.params.thinking == dataclasses.replace(thinking, budget=expected)
    free = dataclasses.replace(params, grammar=None)
    (resolved,) = front.resolve(GenerationRequest("r", [5, 6], free))
    assert resolved.params.thinking == thinking, "text may be thought to the end"


def test_without_room_for_thinking_the_answer_begins_at_once(tokenizer):
    params = SamplingParams(max_tokens=3, grammar=Grammar("choice", '["a"]'), thinking=Thinking((10,), (11,)))
    (resolved,) = RequestIntake(make_ready(), tokenizer).resolve(GenerationRequest("r", [5, 6], params))
    assert resolved.params.thinking is None
