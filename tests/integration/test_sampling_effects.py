"""Each sampling parameter's effect, through HTTP with the OpenAI SDK, on a real model."""

import itertools
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.integration.serving import EOS_ID, MODEL

PROMPT = "The quick brown fox"
MESSAGES = [{"role": "user", "content": "Hello, my name is"}]
EXTRA = ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "no_stop_trim")
EXTRA += ("prompt_logprobs", "return_token_ids", "skip_special_tokens")


def split(params: dict) -> dict:
    """The SDK takes what OpenAI has not through extra_body."""
    extra = {name: params.pop(name) for name in EXTRA if name in params}
    return params | {"extra_body": {"ignore_eos": True, "return_token_ids": True} | extra}


@pytest.fixture
def complete(client):
    def run(prompt=PROMPT, **params):
        return client.completions.create(model=MODEL, prompt=prompt, **split({"max_tokens": 40} | params))

    return run


@pytest.fixture
def chat(client):
    def run(**params):
        params = {"max_tokens": 40, "messages": MESSAGES} | params
        return client.chat.completions.create(model=MODEL, **split(params))

    return run


@pytest.fixture
def text(complete):
    return lambda **params: complete(**params).choices[0].text


@pytest.fixture
def ids(complete):
    return lambda **params: complete(**params).choices[0].token_ids


@pytest.fixture
def greedy(ids):
    return ids(temperature=0)


def together(calls):
    """Runs calls side by side: in one batch, as far as the engine can."""
    with ThreadPoolExecutor(16) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def test_temperature_0_is_deterministic(ids, greedy):
    noise = [partial(ids, temperature=1.5, seed=seed, max_tokens=20 + seed) for seed in range(10)]
    answers = together([partial(ids, temperature=0, seed=seed) for seed in range(6)] + noise)
    assert answers[:6] == [greedy] * 6
    assert ids(temperature=1e-7, seed=3) == greedy


def test_temperature_spreads(ids, greedy):
    def surprises(temperature):
        rows = together([partial(ids, temperature=temperature, seed=seed, max_tokens=1) for seed in range(40)])
        return sum(row != greedy[:1] for row in rows)

    assert surprises(0.05) < surprises(1.0) < surprises(10.0) + 1
    assert surprises(0.02) == 0


def test_seeds(ids):
    alone = [ids(seed=seed) for seed in range(8)]
    assert len(set(map(tuple, alone))) == 8
    assert together([partial(ids, seed=seed) for seed in range(8)] * 2) == alone * 2
    unseeded = together([ids] * 8)
    assert len(set(map(tuple, unseeded))) == 8


def test_the_seed_does_not_depend_on_how_the_prompt_came(complete):
    """Chunked, batched, as ids, or by the other route: the same tokens."""
    prompt = [5 + i % 300 for i in range(150)]  # three chunks of 64
    (first,) = complete(prompt, seed=7).choices
    many = together([partial(complete, prompt, seed=7)] * 6)
    assert {tuple(answer.choices[0].token_ids) for answer in many} == {tuple(first.token_ids)}
    both = complete([prompt, prompt[:70]], seed=7).choices
    assert both[0].token_ids == first.token_ids
    assert both[1].token_ids != first.token_ids


def test_n_is_n_requests(complete, chat):
    together_three = complete(n=3, seed=11, temperature=1).choices
    assert [choice.index for choice in together_three] == [0, 1, 2]
    singles = [complete(seed=11 + i, temperature=1).choices[0] for i in range(3)]
    assert [choice.token_ids for choice in together_three] == [choice.token_ids for choice in singles]
    assert len({choice.text for choice in together_three}) == 3
    texts = [choice.message.content for choice in chat(n=3, seed=11).choices]
    assert texts == [chat(seed=11 + i).choices[0].message.content for i in range(3)]
    assert len({choice.text for choice in complete(n=20, temperature=1).choices}) == 20  # more than run at once


def test_n_of_several_prompts(complete):
    answer = complete(["one", "two"], n=2, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for prompt, choices in (("one", answer.choices[:2]), ("two", answer.choices[2:])):
        assert [choice.token_ids for choice in complete(prompt, n=2, seed=5).choices] == [c.token_ids for c in choices]
    assert answer.usage.completion_tokens == 160


def test_logit_bias(ids, greedy):
    assert ids(temperature=0, logit_bias={"99": 100}) == [99] * 40
    assert set(ids(temperature=1, logit_bias={"99": 100, "100": 100})) == {99, 100}
    banned = {str(token_id): -100 for token_id in set(greedy)}
    assert not set(ids(temperature=1, logit_bias=banned)) & set(greedy)
    assert ids(temperature=0, logit_bias={str(greedy[0]): 0.5})[0] == greedy[0]


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}])
def test_narrow_choices_are_greedy(ids, greedy, params):
    assert ids(temperature=1, seed=1) != greedy
    assert ids(temperature=1, seed=1, **params) == greedy


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.25}, {"min_p": 0.5}])
def test_choices_come_from_the_allowed_set(complete, params):
    """Each sampled token is one that the reported distribution allows at its place."""
    for seed in range(3):
        (choice,) = complete(seed=seed, logprobs=20, temperature=1, **params).choices
        tops = choice.logprobs.top_logprobs
        for chosen, top in zip(choice.logprobs.token_logprobs, tops, strict=True):
            values = sorted(top.values(), reverse=True)
            better = [math.exp(value) for value in values if value > chosen + 1e-5]
            assert len(better) < params.get("top_k", 1000)
            assert sum(better) <= params.get("top_p", 1.0)
            assert math.exp(chosen - values[0]) >= params.get("min_p", 0.0) - 1e-4


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_additive_penalties(complete, name):
    """Greedy under the penalty is the argmax of logprob - penalty × count, step by step."""
    (free,) = complete("Hello", temperature=0).choices
    (choice,) = complete("Hello", temperature=0, logprobs=20, **{name: 1.5}).choices
    assert max(Counter(choice.token_ids).values()) < max(Counter(free.token_ids).values())
    counts: Counter[str] = Counter()
    for token, chosen, top in zip(
        choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):

        def penalty(name_of_token, counts=counts):
            count = counts[name_of_token]
            return 1.5 * (count if name == "frequency_penalty" else min(count, 1))

        best = max(value - penalty(other) for other, value in top.items())
        assert chosen - penalty(token) == pytest.approx(best, abs=1e-4)
        counts[token] += 1


def test_repetition_penalty(complete, ids, greedy):
    """Unlike the others it counts the prompt too."""
    row = ids(temperature=0, repetition_penalty=1000.0)
    assert len(set(row)) > len(set(greedy))
    assert len(set(row)) == len(row)
    prompt = [token_id for token_id in range(4, 360) if token_id not in (7, 8, 9)]
    (choice,) = complete(prompt, temperature=0, repetition_penalty=1000.0, max_tokens=1).choices
    rest = {*range(4), 7, 8, 9, *range(360, 384)}
    assert choice.token_ids[0] in rest
    assert ids(temperature=0, repetition_penalty=1.0) == greedy


def test_end_of_sequence(complete):
    to_end = {"logit_bias": {str(EOS_ID): 100}, "temperature": 0}
    (choice,) = complete(ignore_eos=False, **to_end).choices
    assert (choice.finish_reason, choice.matched_stop, choice.token_ids) == ("stop", EOS_ID, [EOS_ID])
    assert choice.text == ""
    (choice,) = complete(ignore_eos=True, **to_end).choices
    assert (choice.finish_reason, choice.matched_stop, choice.token_ids) == ("length", None, [EOS_ID] * 40)
    (choice,) = complete(ignore_eos=True, skip_special_tokens=False, max_tokens=2, **to_end).choices
    assert choice.text == "<|im_end|><|im_end|>"


def test_min_tokens(complete, greedy):
    to_end = {"logit_bias": {str(EOS_ID): 100}, "temperature": 0}
    (choice,) = complete(ignore_eos=False, min_tokens=5, **to_end).choices
    assert choice.token_ids.index(EOS_ID) == 5
    assert choice.finish_reason == "stop"
    (choice,) = complete(temperature=0, stop_token_ids=[greedy[0]], min_tokens=5).choices
    assert greedy[0] not in choice.token_ids[:5]
    letters = {str(token_id): 100 for token_id in (68, 69)}
    (choice,) = complete(logit_bias=letters, min_tokens=10, stop=["a", "b", "A", "B", "c", "d", "C", "D"]).choices
    assert len(choice.token_ids) >= 10


def test_stop_token_ids(complete, client, greedy):
    place = next(i for i in range(3, 40) if greedy[i] not in greedy[:i])
    (choice,) = complete(temperature=0, stop_token_ids=[greedy[place]]).choices
    assert (choice.finish_reason, choice.matched_stop) == ("stop", greedy[place])
    assert choice.token_ids == greedy[: place + 1]
    assert choice.text == complete(temperature=0, max_tokens=place).choices[0].text


def stops_of(text):
    """Strings that end at every third place of the text, one to seven characters long: inside tokens and across."""
    for end, length in itertools.product(range(7, len(text), 3), (1, 2, 4, 7)):
        stop = text[end - length : end]
        if "\ufffd" not in stop:
            yield stop


def test_stop_strings_never_leak(complete):
    """Whole and in a stream: the text up to the first stop string, and nothing of it."""
    whole = complete(seed=3).choices[0].text
    stops = list(stops_of(whole))
    assert len(stops) > 20

    def run(stop):
        (choice,) = complete(seed=3, stop=stop).choices
        pieces = [chunk.choices[0] for chunk in complete(seed=3, stop=stop, stream=True)]
        return choice, pieces

    for stop, (choice, pieces) in zip(stops, together([partial(run, stop) for stop in stops]), strict=True):
        expected = whole[: whole.index(stop)]
        assert choice.text == expected
        assert (choice.finish_reason, choice.matched_stop) == ("stop", stop)
        assert "".join(piece.text for piece in pieces) == expected
        assert (pieces[-1].finish_reason, pieces[-1].matched_stop) == ("stop", stop)


def test_stop_strings_that_almost_match(complete):
    whole = complete(seed=3).choices[0].text
    stop = [whole[i : i + 4] + "§" for i in range(30)]
    assert "".join(chunk.choices[0].text for chunk in complete(seed=3, stop=stop, stream=True)) == whole


def test_stop_strings_kept_on_request(complete):
    whole = complete(seed=3).choices[0].text
    stop = next(stop for stop in stops_of(whole) if len(stop) == 4)
    end = whole.index(stop) + len(stop)
    assert complete(seed=3, stop=stop, no_stop_trim=True).choices[0].text == whole[:end]


def test_stop_strings_in_chat(chat):
    whole = chat(seed=3).choices[0].message.content
    stop = next(stop for stop in stops_of(whole) if len(stop) == 2)
    (choice,) = chat(seed=3, stop=["never in it", stop]).choices
    assert choice.message.content == whole[: whole.index(stop)]
    assert choice.matched_stop == stop
    text = "".join(c.choices[0].delta.content or "" for c in chat(seed=3, stop=stop, stream=True))
    assert text == choice.message.content


@pytest.mark.parametrize("params", [{"seed": 1}, {"temperature": 0}, {"seed": 2, "n": 3}])
def test_a_stream_is_the_whole(complete, chat, params):
    n = params.get("n", 1)
    whole = complete(**params)
    texts, usage = [""] * n, None
    for chunk in complete(stream=True, stream_options={"include_usage": True}, **params):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        assert (chunk.usage is None) == bool(chunk.choices)
        usage = chunk.usage
    assert texts == [choice.text for choice in whole.choices]
    assert usage == whole.usage
    whole = chat(**params)
    texts, roles = [""] * n, [0] * n
    for chunk in chat(stream=True, **params):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role == "assistant"
    assert texts == [choice.message.content for choice in whole.choices]
    assert roles == [1] * n


def test_usage(complete, chat, server):
    def count(body):
        return server.post("/tokenize", body).json()["count"]

    usage = complete(max_tokens=13).usage
    assert usage.prompt_tokens == count({"prompt": PROMPT})
    assert (usage.completion_tokens, usage.total_tokens) == (13, 13 + usage.prompt_tokens)
    assert usage.prompt_tokens_details.cached_tokens == 0
    usage = chat(max_completion_tokens=9, max_tokens=None, n=2).usage
    assert usage.prompt_tokens == count({"messages": MESSAGES})
    assert usage.completion_tokens == 18
    usage = complete([[5, 6, 7], [8]], max_tokens=4, n=2).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 16)


def test_logprobs(complete, chat):
    (choice,) = complete(temperature=0, logprobs=5).choices
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens) == 40
    for value, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        assert value == max(top.values())  # greedy takes the likeliest
        assert len(top) == 5
        assert sum(map(math.exp, top.values())) < 1.0
    (choice,) = chat(seed=1, logprobs=True, top_logprobs=20).choices
    for entry in choice.logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len(values) == 20
        same = [top.logprob for top in entry.top_logprobs if top.bytes == entry.bytes]
        assert same in ([entry.logprob], [])
        assert same or entry.logprob <= values[-1]
    decoded = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert choice.message.content == decoded.decode(errors="replace")


def test_generating_and_scoring_agree(complete, server):
    """What generation reports is what scoring the same tokens reports, at any temperature, penalty or bias."""
    prompt = list(range(10, 30))
    for params in ({"temperature": 0}, {"seed": 5, "temperature": 1.5, "frequency_penalty": 1, "logit_bias": {"9": 2}}):
        (made,) = complete(prompt, logprobs=4, **params).choices
        (scored,) = complete(prompt + made.token_ids, logprobs=4, echo=True, max_tokens=0).choices
        assert scored.logprobs.token_logprobs[0] is None
        assert len(scored.logprobs.token_logprobs) == 60
        assert scored.logprobs.token_logprobs[20:] == pytest.approx(made.logprobs.token_logprobs, abs=1e-4)
        assert scored.logprobs.tokens[20:] == made.logprobs.tokens
        for top, other in zip(scored.logprobs.top_logprobs[20:], made.logprobs.top_logprobs, strict=True):
            assert sorted(top.values()) == pytest.approx(sorted(other.values()), abs=1e-4)
        body = {"input_ids": prompt + made.token_ids, "return_logprob": True, "logprob_start_len": 0}
        native = server.post("/generate", body | {"sampling_params": {"max_new_tokens": 1}}).json()["meta_info"]
        values = [entry[0] for entry in native["input_token_logprobs"]]
        assert values[1:] == pytest.approx(scored.logprobs.token_logprobs[1:], abs=1e-4)


def test_prompt_logprobs(complete):
    """vLLM's form of the same figures, over chunks of a long prompt."""
    prompt = [5 + i * 7 % 300 for i in range(150)]
    (choice,) = complete(prompt, prompt_logprobs=3, max_tokens=1).choices
    (scored,) = complete(prompt, logprobs=3, echo=True, max_tokens=0).choices
    assert choice.prompt_logprobs[0] is None
    assert len(choice.prompt_logprobs) == 150
    for token_id, entry, value in zip(prompt, choice.prompt_logprobs, scored.logprobs.token_logprobs, strict=True):
        if value is not None:
            assert entry[str(token_id)]["logprob"] == pytest.approx(value, abs=1e-4)
            assert {1, 2, 3} <= {one["rank"] for one in entry.values()}


def test_max_tokens(complete, chat):
    for limit in (1, 2, 17):
        (choice,) = complete(max_tokens=limit).choices
        assert (len(choice.token_ids), choice.finish_reason) == (limit, "length")
        assert chat(max_tokens=None, max_completion_tokens=limit).usage.completion_tokens == limit
    assert complete(max_tokens=None).usage.completion_tokens == 16  # OpenAI's default


def test_the_checkpoints_defaults(ids):
    """generation_config.json says temperature 0.7, and requests that say nothing get it."""
    assert ids(seed=4) == ids(seed=4, temperature=0.7) != ids(seed=4, temperature=1)
