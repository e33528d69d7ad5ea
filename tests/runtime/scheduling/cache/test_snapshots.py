"""Prefix hits of models with states: where snapshots are made, who finds them, and when they go."""

from typing import Any

import pytest

from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.state.page_groups import SnapshotSlots
from palladio.runtime.scheduling.state.radix_node import page_keys
from tests.runtime.scheduling.scheduler_sim import Simulation, check
from tests.runtime.scheduling.simulated_model import expected_output

SHARED = list(range(20, 60))


def simulation(**changes: Any) -> Simulation:
    return Simulation(
        **{"num_pages": 60, "num_snapshots": 12, "snapshot_interval": 100, "max_step_tokens": 64, **changes}
    )


def run_one(sim: Simulation, name: str, prompt: list[int], max_tokens: int = 1) -> int:
    """Prompt tokens that the request found cached."""
    sim.add(name, prompt, max_tokens, ignore_eos=True)
    sim.run()
    assert sim.outputs[name] == expected_output(prompt, max_tokens, frozenset())
    return sim.finished[name].cached_tokens


def num_snapshots(sim: Simulation) -> int:
    return sim.cache.stats().num_snapshots


def lengths(sim: Simulation) -> list[int]:
    """Of the chunks that prompts were computed in."""
    return [row.num_tokens for batch in sim.batches for row in batch.rows if not row.decodes]


def test_a_prompt_is_found_again_up_to_its_last_full_page() -> None:
    sim = simulation()
    assert run_one(sim, "first", SHARED[:23]) == 0
    assert lengths(sim) == [20, 3]
    assert run_one(sim, "same", SHARED[:23]) == run_one(sim, "longer", SHARED[:30]) == 20
    assert run_one(sim, "shorter", SHARED[:18]) == 0  # its pages are there, but no state of so few tokens
    assert run_one(sim, "of whole pages", SHARED[:20]) == 16  # the one before has ended its prompt there
    assert sim.cache.stats().num_snapshot_hits == 3


def test_prompts_have_snapshots_at_the_interval() -> None:
    sim = simulation(snapshot_interval=16, max_step_tokens=24)
    assert run_one(sim, "first", SHARED[:39]) == 0
    assert lengths(sim) == [16, 16, 4, 3]
    assert run_one(sim, "other", [*SHARED[:34], 1, 2, 3]) == 32


def test_what_is_shared_is_found_by_the_third_request() -> None:
    """The second one sees where the first one's pages end that it could use."""
    sim = simulation()
    found = [run_one(sim, str(number), [*SHARED[:26], *(number,) * 9]) for number in range(4)]
    assert found == [0, 0, 24, 24]


def test_the_next_turn_of_a_chat_begins_behind_the_answer() -> None:
    sim = simulation()
    prompt, answer = SHARED[:9], expected_output(SHARED[:9], 15, frozenset())
    run_one(sim, "first turn", prompt, 15)
    assert run_one(sim, "second turn", [*prompt, *answer, 1, 2, 3], 6) == 20  # 23 tokens were computed
    assert sim.cache.stats().num_hit_tokens == 20
    assert num_snapshots(sim) == 4  # of both prompts and of both answers


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_several_tokens_a_step_stop_at_the_end_of_a_page(steps: int) -> None:
    """A stop token in the middle of a step leaves a state of tokens that are nobody's: it is not kept."""
    sim = simulation(num_decode_steps=steps, num_snapshots=60, num_pages=400)
    prompts = {str(n): (SHARED[n : n + 5 + n % 3], 25) for n in range(20)}
    for name, (prompt, count) in prompts.items():
        sim.add(name, prompt, count)
    sim.run()
    check(sim, prompts)
    hits = [run_one(sim, f"next {n}", [*SHARED[n : n + 5 + n % 3], *sim.outputs[str(n)], 1]) for n in range(20)]
    assert max(hits) >= 20
    assert sum(map(bool, hits)) >= 15


def test_no_more_than_there_are_slots_and_the_coldest_goes() -> None:
    sim = simulation(num_snapshots=2)
    prompts = [[number, *SHARED[:9]] for number in range(3)]
    assert [run_one(sim, str(number), prompts[number]) for number in (0, 1, 0, 2)] == [0, 0, 8, 0]
    assert (num_snapshots(sim), sim.cache.stats().num_evicted_snapshots) == (2, 1)
    num_pages = sim.cache.tree.num_pages
    assert [run_one(sim, f"again {number}", prompts[number]) for number in (0, 2)] == [8, 8]
    assert run_one(sim, "evicted", prompts[1]) == 0
    assert sim.cache.tree.num_pages == num_pages, "the evicted one's pages were not kept"


def test_a_request_that_decodes_leaves_half_of_the_slots_to_others() -> None:
    sim = simulation(num_snapshots=3)
    for number in range(3):
        sim.add(str(number), [number], 20 + 10 * number, ignore_eos=True)
    for _ in range(15):
        sim.step()
    assert len(list(sim.cache.snapshots.taken)) == 1
    sim.run()
    assert num_snapshots(sim) == 3  # those that went on longer had it when the first had ended


def test_a_snapshot_goes_with_its_pages() -> None:
    sim = simulation(num_pages=12)
    run_one(sim, "first", [1, *SHARED[:20]])
    assert num_snapshots(sim) == 1
    run_one(sim, "other", [2, *SHARED[:30]], 5)
    assert run_one(sim, "first again", [1, *SHARED[:20]]) == 0
    sim.flush()
    assert num_snapshots(sim) == 0
    sim.scheduler.check_integrity()


def test_a_step_that_has_not_run_leaves_no_snapshot() -> None:
    """Its request ends, is retracted, or the device fails, before the host knows that the step has run."""
    for ends in (
        lambda sim: sim.abort("doomed"),
        lambda sim: sim.scheduler.retractor.retract_all(),
        lambda sim: sim.lose(),
    ):
        sim = simulation()
        sim.add("doomed", SHARED[:23], 4, ignore_eos=True)
        sim.step()
        assert [copy.num_pages for copy in sim.batches[-1].copies.after] == [5]
        assert (num_snapshots(sim), len(list(sim.cache.snapshots.taken))) == (0, 1)
        ends(sim)
        sim.progress.begin()
        assert (num_snapshots(sim), len(list(sim.cache.snapshots.taken))) == (0, 0)
        sim.step()
        assert num_snapshots(sim) == 0
        sim.run()
        sim.scheduler.check_integrity()


def test_what_goes_along_is_kept_when_its_step_has_run() -> None:
    for is_read in (False, True):
        sim = simulation()
        sim.add("one", [1, 2, 3], 20, ignore_eos=True)
        while not any(copy.num_pages == 2 for batch in sim.batches[-1:] for copy in batch.copies.after):
            sim.step()
        if is_read:
            sim.step()
        sim.abort("one")
        assert num_snapshots(sim) == int(is_read)
        sim.run()
        assert num_snapshots(sim) == int(is_read)


def test_a_retracted_request_goes_on_from_its_last_snapshot() -> None:
    sim = simulation()
    sim.add("one", SHARED[:9], 20, ignore_eos=True)
    for _ in range(10):
        sim.step()
    (request,) = sim.scheduler.running
    computed = request.num_computed
    assert computed >= 16
    assert sim.cache.num_lost_tokens(request) == computed - 16
    sim.scheduler.retractor.retract(request)
    sim.progress.begin()
    sim.run()
    starts = [row.start for batch in sim.batches for row in batch.rows if not row.decodes]
    assert starts == [0, 8, 16]
    assert sim.outputs["one"] == expected_output(SHARED[:9], 20, frozenset())
    assert sim.finished["one"].num_retractions == 1


def test_the_loss_of_a_retraction_counts_from_the_last_snapshot() -> None:
    """The first request has more tokens, but those of its prompt are kept: it gives way to the second."""
    sim = simulation(num_snapshots=1, num_pages=13)
    prompts = {"kept": (SHARED[:9], 20), "none": ([1, 2, 3], 20)}
    for name, (prompt, count) in prompts.items():
        sim.add(name, prompt, count, ignore_eos=True)
    sim.run()
    assert {name: sim.finished[name].num_retractions for name in prompts} == {"kept": 1, "none": 0}
    assert [sim.outputs[name] for name in prompts] == [
        expected_output(prompt, count, frozenset()) for prompt, count in prompts.values()
    ]


def test_a_match_ends_where_both_a_window_and_a_snapshot_allow_it() -> None:
    sim = simulation(windows=((6, 1),), snapshot_interval=8)
    run_one(sim, "first", SHARED[:30])
    assert run_one(sim, "again", SHARED[:30]) == 28
    node, _ = sim.cache.tree.match(page_keys(SHARED, 4, 0, 7), None)
    sim.cache.allocator.free(list(sim.cache.tree.windows.give_up(node.windows[0][-1])))
    assert run_one(sim, "hole", SHARED[:30]) == 24


def test_who_takes_the_place_of_others_computes_one_chunk_a_step() -> None:
    """There would be room for the next one behind its snapshot, but that chunk needs the state of the first."""
    sim = simulation(max_running=1)
    sim.add("background", [1, 2, 3], 20, ignore_eos=True, options=RequestOptions(background=True))
    for _ in range(6):
        sim.step()
    assert run_one(sim, "urgent", SHARED[:23]) == 0
    assert sim.finished["background"].num_retractions == 1
    assert [0, 20] in [[row.start, row.num_tokens] for batch in sim.batches for row in batch.rows]
    assert all(len({row.request for row in batch.rows}) == len(batch.rows) for batch in sim.batches)


def test_nothing_is_shared_once_the_cache_is_off() -> None:
    sim = simulation()
    sim.add("running", SHARED[:23], 20, ignore_eos=True)
    for _ in range(4):
        sim.step()
    sim.cache.disable_sharing()
    sim.run()
    assert num_snapshots(sim) == 0
    assert run_one(sim, "again", SHARED[:23]) == 0
    sim.scheduler.check_integrity()


def test_the_same_state_is_kept_once() -> None:
    tree = RadixCache("lru", snapshots=SnapshotSlots(5, 2, 16, 4))
    slots = tree.snapshots
    assert slots is not None
    node, _ = tree.extend(tree.root(None), [(1,), (2,)], [1, 2])
    first, second = slots.take(), slots.take()
    assert (first, second, slots.take()) == (5, 6, None)
    for slot in (first, second):
        tree.keep_snapshot([(1,)], None, slot)
    assert slots.take() == second
    tree.check_integrity([node], taken=[second])
    with pytest.raises(AssertionError, match="snapshot slots"):
        tree.check_integrity([node])
