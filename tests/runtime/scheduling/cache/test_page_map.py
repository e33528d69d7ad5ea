"""The map of pages agrees with the cache's own counts at every step, whatever runs."""

import itertools

import pytest

from palladio.runtime.interface.messages.page_map import GroupPages, PageMap
from palladio.runtime.scheduling.cache import page_map
from palladio.runtime.scheduling.cache.page_map import map_pages
from tests.runtime.scheduling.scheduler_sim import Simulation


def check(found: PageMap, sim: Simulation) -> None:
    cache = sim.cache
    assert found.num_pages == cache.allocator.num_usable
    assert found.used == cache.allocator.num_usable - cache.num_available_pages
    assert found.cached == cache.tree.num_evictable
    cells, used, cached = (list(values) for values in zip(*found.runs, strict=True))
    assert sum(cells) == -(-found.num_pages // found.pages_per_cell)
    assert sum(map(int.__mul__, cells, used)) == found.used
    assert sum(map(int.__mul__, cells, cached)) == found.cached
    assert all(one[1:] != other[1:] for one, other in itertools.pairwise(found.runs)), "equal cells are one run"
    assert sum(group.used for group in found.groups) == found.used
    assert sum(group.cached for group in found.groups) == found.cached


@pytest.mark.parametrize(("windows", "keeps_all"), [((), True), (((7, 2), (3, 1)), True), (((6, 1),), False)])
def test_every_page_is_in_the_map_once(windows, keeps_all, monkeypatch):
    sim = Simulation(num_pages=24, windows=windows, keeps_all=keeps_all)
    prompts = [[5, 6, 8, 9, 10, 11, 12, 13, 14][: 3 + number] + [20 + number] * number for number in range(9)]
    for number, prompt in enumerate(prompts):
        sim.add(f"r{number}", prompt, 6, ignore_eos=True)
    most = PageMap(0, 0, 0, 1, [], [], 0.0)
    for step in itertools.count():
        monkeypatch.setattr(page_map, "MAX_CELLS", 2048 if step % 2 else 5)
        found = map_pages(sim.cache, list(sim.scheduler.running))
        check(found, sim)
        most = max(most, found, key=lambda one: one.used)
        if not sim.step():
            break
    assert most.used > 0
    kinds = ([(None, 1)] if keeps_all else []) + list(windows)
    assert [(group.window, group.tables) for group in most.groups] == kinds
    assert all(group.used for group in most.groups)
    assert found.used == 0
    assert found.cached > 0, "prefixes stay"


def test_the_map_says_which_pages_and_is_bounded():
    sim = Simulation(num_pages=11)
    sim.add("a", list(range(8, 19)), 2, ignore_eos=True)
    sim.step()
    held = sorted(page for request in sim.scheduler.running for page in request.pages)
    found = map_pages(sim.cache, list(sim.scheduler.running))
    states = [pair for count, *pair in found.runs for _ in range(count)]
    assert [number + 1 for number, (used, _) in enumerate(states) if used] == held
    assert found.groups == [GroupPages(None, 1, len(held), 0)]
    large = Simulation(num_pages=page_map.MAX_CELLS * 2 + 2)
    whole = map_pages(large.cache, [])
    assert whole.pages_per_cell == 3
    assert whole.runs == [(-(-(page_map.MAX_CELLS * 2 + 1) // 3), 0, 0)]
