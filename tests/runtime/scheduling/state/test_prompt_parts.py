"""Prompts with media: what the prefix cache shares of them, and which of their parts no step divides."""

import itertools
import random

import pytest

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.interface.request.prompt_parts import Media, PromptPart, join_parts, text_ids
from palladio.runtime.scheduling.policy.kv_budget import NewTokenRatio
from palladio.runtime.scheduling.state.radix_node import page_keys
from tests.runtime.scheduling.scheduler_sim import Simulation
from tests.runtime.scheduling.simulated_model import expected_output

PAGE = 4


def medium(length: int, digest: str = "a", *, is_whole: bool = False) -> Media:
    return Media(length=length, width=0, digest=digest, is_whole=is_whole)


def keys_of(*parts: PromptPart) -> list[object]:
    ids, media = join_parts(parts)
    return list(page_keys(ids, PAGE, 0, len(ids) // PAGE, media))


def run(sim: Simulation, name: str, *parts: PromptPart, max_tokens: int = 3, **given) -> int:
    """Tokens that were cached."""
    ids, media = join_parts(parts)
    sim.add(name, ids, max_tokens, media=media, ignore_eos=True, **given)
    sim.run()
    assert sim.outputs[name] == expected_output(ids, max_tokens, frozenset())
    return sim.finished[name].cached_tokens


def test_parts_become_ids_with_placeholders() -> None:
    ids, media = join_parts([[5, 6], medium(3), [7], medium(1, "b")])
    assert ids == [5, 6, 0, 0, 0, 7, 0]
    assert [(part.digest, part.start, part.stop) for part in media] == [("a", 2, 5), ("b", 6, 7)]
    assert text_ids(ids, media) == [5, 6, 7]
    assert text_ids([*ids, 8], media) == [5, 6, 7, 8]
    assert join_parts([[5, 6]]) == ([5, 6], ())


def test_keys_of_text_are_its_ids_alone() -> None:
    assert keys_of([1, 2, 3, 4, 5, 6, 7, 8], medium(3)) == [(1, 2, 3, 4), (5, 6, 7, 8)]


def test_a_key_says_what_a_page_holds_of_a_medium() -> None:
    keys = keys_of([9], medium(9), [0, 0])
    assert keys == [
        (9, 0, 0, 0, ("a", False, 0, 1, 4)),
        (0, 0, 0, 0, ("a", False, 3, 0, 4)),
        (0, 0, 0, 0, ("a", False, 7, 0, 2)),
    ]
    assert len(set(keys)) == 3, "pages of one medium differ"
    page = [keys_of(*parts)[0] for parts in (
        ([0] * 4,), (medium(4),), (medium(4, "b"),), (medium(3), [0]), ([0], medium(3)), (medium(5), [0] * 3),
        (medium(4, is_whole=True),), (medium(2), medium(2)), (medium(2), medium(2, "b")),
    )]  # fmt: skip
    assert page[1] == page[5], "how a medium goes on is no matter of the page before"
    assert len(set(page)) == len(page) - 1, "placeholders alone say nothing"


@pytest.mark.parametrize("windows", [(), ((6, 1),)])
def test_media_of_equal_placeholders_share_no_page_and_the_same_one_hits(windows) -> None:
    sim = Simulation(num_pages=60, windows=windows)
    assert run(sim, "first", [1, 2], medium(13), [3, 4]) == 0
    assert run(sim, "other", [1, 2], medium(13, "b"), [3, 4]) == 0
    assert run(sim, "text", [1, 2, *[0] * 13, 3, 4]) == 0
    assert run(sim, "second turn", [1, 2], medium(13), [3, 4], [5] * 9) == 16
    assert run(sim, "other again", [1, 2], medium(13, "b"), [3, 4], [5] * 9) == 16
    assert run(sim, "salted", [1, 2], medium(13), [3, 4], options=RequestOptions(cache_salt="s")) == 0
    assert run(sim, "moved", [1, 2, 3], medium(13), [3, 4]) == 0


def test_a_chunk_ends_before_or_after_what_is_whole() -> None:
    sim = Simulation(num_pages=60)  # chunks of 16
    run(sim, "x", [1] * 10, medium(12, is_whole=True), [2] * 3, medium(16, "b", is_whole=True), medium(20, "c"), [3])
    ends = list(itertools.accumulate(batch.rows[0].num_tokens for batch in sim.batches if batch.kind == "prefill"))
    assert ends == [10, 25, 41, 57, 62]


def test_a_hit_ends_before_or_after_what_is_whole() -> None:
    sim = Simulation(num_pages=60, max_step_tokens=32)
    assert run(sim, "x", [1] * 6, medium(11, is_whole=True), [2] * 8) == 0
    assert run(sim, "after", [1] * 6, medium(11, is_whole=True), [2] * 8, [3]) == 24
    assert run(sim, "before", [1] * 6, medium(11, is_whole=True), [4] * 8) == 4, "its last row is on another page"
    assert run(sim, "divided", [1] * 6, medium(11), [2] * 8) == 4, "causal attention gives other keys and values"
    assert run(sim, "divided again", [1] * 6, medium(11), [4] * 8) == 16


@pytest.mark.parametrize(("mixes", "most"), [(False, 16), (True, 13)])
def test_what_is_whole_and_fits_no_step_is_refused(mixes: bool, most: int) -> None:
    sim = Simulation(num_pages=60, mixes=mixes)
    ids, media = join_parts([[1], medium(most + 1, is_whole=True)])
    with pytest.raises(InvalidRequestError, match=rf"{most + 1} tokens .* {most} tokens .* --chunked-prefill-size"):
        sim.add("x", ids, 3, media=media)
    for number in range(3):
        sim.add(f"stream {number}", [number + 1], 30, ignore_eos=True)
    sim.step()
    run(sim, "y", [1], medium(most, is_whole=True), [2] * 20)


def test_background_requests_may_have_long_parts() -> None:
    """Their share of a step is smaller than such a part, once large steps have been slow."""
    sim = Simulation(num_pages=60, max_step_tokens=32, seconds_of=lambda batch: 10.0)
    background = RequestOptions(background=True)
    run(sim, "text", list(range(60)), options=background)
    assert sim.scheduler.share.max_prefill_tokens(sim.buckets) == 16
    run(sim, "x", [1] * 3, medium(30, is_whole=True), [2] * 9, options=background)


def test_drawn_prompts() -> None:
    """Media of few contents among equal text, short of pages: every page holds what its request computes."""
    draw = random.Random(0)
    sim = Simulation(num_pages=24, page_size=PAGE, max_running=4, mixes=True)
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    prompts: dict[str, tuple[list[int], int]] = {}
    for number in range(60):
        parts: list[PromptPart] = []
        for _ in range(draw.randrange(1, 5)):
            digest, is_whole = draw.choice("ab"), draw.random() < 0.5
            parts += [[0] * draw.randrange(3), medium(draw.choice((1, 4, 9)), digest, is_whole=is_whole)]
        ids, media = join_parts([*parts, [draw.randrange(2)]])
        name, max_tokens = f"r{number}", draw.randrange(1, 20)
        prompts[name] = ids, max_tokens
        sim.add(name, ids, max_tokens, media=media, ignore_eos=True)
        for _ in range(draw.randrange(4)):
            sim.step()
    sim.run()
    for name, (ids, max_tokens) in prompts.items():
        assert sim.outputs[name] == expected_output(ids, max_tokens, frozenset()), name
    assert sum(output.num_retractions for output in sim.finished.values()) > 0
    assert sum(output.cached_tokens for output in sim.finished.values()) > 0
    assert sim.cache.num_used_tokens == 0
