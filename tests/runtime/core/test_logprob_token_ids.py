"""logprob_token_ids: at each position, what the same tokens get as a prompt's continuation."""

import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.outputs.token_output import TokenLogprob
from tests.runtime.tiny_engine import Collector, TinyEngine, random_prompt

IDS = (17, 300, 5, 42)
LENGTHS = {"a": 9, "long": 150, "b": 30}  # of several chunks, in steps with others


def asked_by_scoring(core: EngineCore, positions: list[list[int]], ids: tuple[int, ...]) -> list[list[float]]:
    """The log-probabilities of the ids after each of these prefixes: each is a prompt whose last token is scored."""
    collector = Collector(core)
    for number, prefix in enumerate(positions):
        for token_id in ids:
            collector.add(f"{number} {token_id}", [*prefix, token_id], max_tokens=0, prompt_logprobs=0)
    collector.run()
    found = [[collector.prompt_logprobs[f"{number} {i}"][-1].logprob for i in ids] for number in range(len(positions))]
    return [[value for value in values if value is not None] for values in found]


def values_of(entries: list[TokenLogprob]) -> list[list[float]]:
    return [[value for _, value in entry.asked] for entry in entries]


def test_output_and_prompt_positions_have_them(tiny: TinyEngine) -> None:
    core = tiny.core()
    collector = Collector(core)
    collector.add("plain", random_prompt(12), max_tokens=6, logprobs=2)
    for salt, (name, length) in enumerate(LENGTHS.items()):
        ids = {"logprob_token_ids": IDS[salt:], "logprobs": salt, "prompt_logprobs": 1}
        collector.add(name, random_prompt(length, salt), max_tokens=4, temperature=1.0, seed=salt, **ids)
    collector.run()
    assert not any(entry.asked for entry in collector.logprobs["plain"])
    for salt, (name, length) in enumerate(LENGTHS.items()):
        prompt, ids, tokens = random_prompt(length, salt), IDS[salt:], collector.tokens[name]
        output, scored = collector.logprobs[name], collector.prompt_logprobs[name]
        assert (len(output), len(scored)) == (4, length)
        assert scored[0].asked == ()  # nothing predicts it
        assert all([token_id for token_id, _ in entry.asked] == [*ids] for entry in (*output, *scored[1:]))
        places = [1, length - 1] if length < 100 else [64, 65, 149]
        prefixes = [[*prompt, *tokens[:count]] for count in range(4)] + [prompt[:count] for count in places]
        expected = asked_by_scoring(core, prefixes, ids)
        found = values_of([*output, *(scored[count] for count in places)])
        assert found == [pytest.approx(values, abs=1e-4) for values in expected]


def test_a_slots_next_owner_gets_its_own(tiny: TinyEngine) -> None:
    """One request after another in the same slot, and again with ids after one without."""
    collector = Collector(tiny.core(max_running_requests=1))
    for name, ids in (("first", (7, 8)), ("none", None), ("second", (8, 9, 7))):
        collector.add(name, random_prompt(20), max_tokens=1, logprobs=0, logprob_token_ids=ids)
    collector.run()
    (one,), (nothing,), (other,) = collector.logprobs.values()
    assert nothing.asked == ()
    assert [token_id for token_id, _ in other.asked] == [8, 9, 7]
    found = dict(other.asked)
    assert [found[token_id] for token_id, _ in one.asked] == pytest.approx([value for _, value in one.asked], abs=1e-5)


def test_a_token_that_is_also_sampled_has_the_same_number(tiny: TinyEngine) -> None:
    core = tiny.core()
    collector = Collector(core)
    collector.add("greedy", random_prompt(8), max_tokens=1, logprobs=1)
    (entry,) = collector.run().logprobs["greedy"]
    again = Collector(core)
    again.add("greedy", random_prompt(8), max_tokens=1, logprobs=1, logprob_token_ids=(entry.token_id,))
    (same,) = again.run().logprobs["greedy"]
    assert same.asked == same.top == ((same.token_id, same.logprob),)
