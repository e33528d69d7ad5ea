"""Pages of groups with a window: in the tree, and in the hands of requests."""

import pytest

from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.state.page_groups import WindowGroup
from palladio.runtime.scheduling.state.radix_node import PageKey, RadixNode, page_keys
from palladio.runtime.scheduling.state.window_pages import WindowPage
from tests.runtime.scheduling.scheduler_sim import Simulation, check, page_groups
from tests.runtime.scheduling.simulated_model import expected_output

FIRST_OF_WINDOWS = 100  # a windowed group's page of the same tokens has a number higher by this


def keys_of(text: str) -> list[PageKey]:
    """One page of one token a letter."""
    return page_keys([ord(letter) for letter in text], 1, 0, len(text))


class Tree:
    """A prefix tree of pages of one token: of layers that keep all, and of a group with a window."""

    def __init__(self, window: int, *, keeps_all: bool = True) -> None:
        self.cache = RadixCache("lru", [WindowGroup(window, 1, (1,))], keeps_all=keeps_all)

    def put(self, text: str, first: int) -> tuple[RadixNode, list[WindowPage]]:
        """Computes a text, all of whose windowed pages are held until they are given back."""
        root = self.cache.root(None)
        places = [WindowPage((FIRST_OF_WINDOWS + first + i,), 1) for i in range(len(text))]
        node, _ = self.cache.extend(root, keys_of(text), range(first, first + len(text)), [places])
        return node, places

    def put_and_leave(self, text: str, first: int) -> list[WindowPage]:
        node, places = self.put(text, first)
        self.cache.unlock(node, places)
        return places

    def found(self, text: str) -> int:
        """Pages that a request can go on from."""
        count = self.cache.num_matched(keys_of(text), None)
        assert sum(length for _, length in self.cache.path(keys_of(text), None)) == count
        assert len(self.cache.match(keys_of(text), None)[1]) == count
        return count

    def lose(self, *places: WindowPage) -> None:
        """Evicts these pages."""
        for place in places:
            self.cache.windows.give_up(place)
        self.cache.check_integrity([])


@pytest.mark.parametrize(
    ("window", "chunk", "pages"),
    [(1, 1, 1), (4, 1, 2), (5, 1, 2), (6, 1, 3), (8, 20, 8), (1024, 2048, 769)],
)
def test_pages_that_a_row_needs_while_it_computes(window: int, chunk: int, pages: int) -> None:
    """⌈(W−1+chunk)/S⌉+1 is never too little, wherever the chunk begins; and one page less would be for some."""
    group = WindowGroup(window, 4, (0,))
    needed = [(at + chunk - 1) // 4 - group.first_needed(at) + 1 for at in range(window, window + 8)]
    assert max(needed) == pages <= group.most_pages(chunk) <= pages + 1


def test_a_match_goes_past_holes_to_the_last_boundary_that_every_group_can_go_on_from() -> None:
    tree = Tree(window=3)
    places = tree.put_and_leave("abcdefgh", 1)
    assert tree.found("abcdefgh") == 8
    tree.lose(places[7])
    assert tree.found("abcdefgh") == 7, "a query there sees f and g"
    tree.lose(places[4])
    assert tree.found("abcdefgh") == 7
    tree.lose(places[5])
    assert tree.found("abcdefgh") == 4, "a query behind d sees c and d"
    assert tree.found("abx") == 2
    tree.lose(places[0])
    assert tree.found("abx") == 0, "a query behind b sees both"
    assert tree.found("abcx") == 3


def test_what_is_computed_again_fills_holes() -> None:
    tree = Tree(window=2)
    places = tree.put_and_leave("abcd", 1)
    tree.lose(places[1], places[3])
    node, given = tree.put("abcde", 11)
    assert [place.ids for place in given] == [(101,), (112,), (103,), (114,), (115,)], "the tree keeps what it has"
    assert tree.cache.match(keys_of("abcde"), None)[1] == [1, 2, 3, 4, 15]
    tree.cache.unlock(node, given)
    assert tree.found("abcde") == 5
    tree.cache.check_integrity([])


def test_a_lock_holds_the_last_window_only() -> None:
    """And all pages of layers that keep all tokens."""
    tree = Tree(window=3)
    tree.put_and_leave("abcdef", 1)
    node, pages = tree.cache.match(keys_of("abcdef"), None)
    (last,) = tree.cache.windows.before(node, len(pages))
    assert [place.ids for place in last] == [(105,), (106,)]
    tree.cache.lock(node, last)
    assert sorted(tree.cache.evict(100)) == [101, 102, 103, 104]
    tree.cache.check_integrity([node], last)
    assert tree.found("abcdef") == 6
    assert tree.found("abc") == 0
    tree.cache.unlock(node, last)
    assert sorted(tree.cache.evict(100)) == [1, 2, 3, 4, 5, 6, 105, 106]
    assert tree.cache.num_pages == 0


def test_pages_that_left_a_window_go_before_what_was_used_later() -> None:
    tree = Tree(window=2)
    node, places = tree.put("abcd", 1)
    tree.cache.let_go(places[:2])  # the request has moved on
    tree.put_and_leave("xy", 11)
    tree.cache.unlock(node, places[2:])
    assert tree.cache.evict(2) == [101, 102]
    assert tree.found("abcd") == 4
    assert tree.cache.evict(4) == [12, 112, 11, 111]
    tree.cache.check_integrity([])
    assert tree.cache.evict(1) == [4, 104], "what the groups have for the same tokens goes together"
    assert sorted(tree.cache.clear()) == [1, 2, 3, 103]


def test_without_layers_that_keep_all_nothing_but_windows_counts() -> None:
    tree = Tree(window=2, keeps_all=False)
    places = tree.put_and_leave("abcd", 0)
    assert tree.cache.num_pages == tree.cache.num_evictable == 4
    tree.lose(*places[:3])
    assert tree.found("abcd") == 4
    assert tree.found("abc") == 0
    assert tree.cache.clear() == [103]
    assert not tree.cache._filled_roots, "nodes of holes only are dropped"


def sharing(sim: Simulation, *, length: int = 40) -> None:
    """Two requests that share all but their last two tokens, one after the other."""
    prompt = list(range(10, 10 + length))
    for name, end in (("first", [1, 2]), ("second", [3, 4])):
        sim.add(name, prompt + end, 4)
        sim.run()
        check(sim, {name: (prompt + end, 4)})


@pytest.mark.parametrize("keeps_all", [True, False])
@pytest.mark.parametrize("window", [1, 4, 10, 100])
def test_a_shared_prefix_is_found_while_the_pool_is_not_full(window: int, keeps_all: bool) -> None:
    """As many tokens as without windows, though only the last window of the first request was held at the end."""
    sim = Simulation(num_pages=40, windows=((window, 2),), keeps_all=keeps_all)
    sharing(sim)
    assert sim.cache.stats().num_hit_tokens == 40


def test_windows_make_room_for_more_requests() -> None:
    """Of 5 tables, 4 keep 8 tokens of 48: in the memory of 2 whole requests, 4 run at once."""
    prompts = {f"r{i}": ([10 + i, *range(30, 65)], 12) for i in range(4)}

    def most_running(windows: tuple[tuple[int, int], ...], num_pages: int) -> int:
        sim = Simulation(num_pages=num_pages, windows=windows, max_running=4, lag=0)
        for name, (prompt, max_tokens) in prompts.items():
            sim.add(name, prompt, max_tokens, ignore_eos=True)
        most = 0
        while sim.step():
            if all(not request.is_prefilling for request in sim.scheduler.running):
                most = max(most, len(sim.scheduler.running))
        assert sim.scheduler.clock.num_retracted == 0
        return most

    assert most_running((), 27) == 2
    assert most_running(((8, 4),), 27) == 4


@pytest.mark.parametrize("shares_prefixes", [True, False])
def test_a_request_that_fits_an_empty_pool_ends(shares_prefixes: bool) -> None:
    """The longest one, and one token more does not fit."""
    groups = page_groups(4, ((9, 3), (2, 1)))
    sim = Simulation(num_pages=9, windows=((9, 3), (2, 1)), shares_prefixes=shares_prefixes, max_step_tokens=16)
    num_usable = sim.cache.allocator.num_usable
    longest = groups.longest_request(num_usable, splits_prompts=True)
    assert longest > groups.longest_request(num_usable, splits_prompts=False) == num_usable // 5 * 4
    prompt = [20 + i % 60 for i in range(longest - 10)]
    sim.add("longest", prompt, 10, ignore_eos=True)
    sim.run()
    assert len(sim.outputs["longest"]) == 10
    assert sim.cache.num_used_tokens == 0


def test_pages_are_given_back_when_the_step_is_final_and_by_what_is_computed_for_certain() -> None:
    """The reserved pages say nothing of it: a chunk's first token sees the window before it, its last one does not."""
    sim = Simulation(num_pages=30, windows=((6, 1),), max_step_tokens=8, lag=1)
    sim.add("x", list(range(10, 50)), 3, ignore_eos=True)
    starts = []
    while sim.step():
        starts += [held.start for request in sim.scheduler.running for held in request.windows]
    # The chunk from 8·n on sees tokens from 8·n - 5 on.
    assert starts[:5] == [0, 0, 2, 4, 6]
    check(sim, {})


@pytest.mark.parametrize("lag", [0, 1])
def test_tokens_of_drafts_that_may_be_refused_move_no_window(lag: int) -> None:
    sim = Simulation(num_pages=30, windows=((6, 1),), max_step_tokens=8, lag=lag, num_drafts=3)
    sim.add("x", list(range(10, 30)), 30, ignore_eos=True)
    while sim.step():
        sim.scheduler.check_integrity()
    assert len(sim.outputs["x"]) == 30


def test_a_branch_in_the_middle_finds_the_window_that_others_left() -> None:
    """A page that leaves the window is idle in the tree, not free."""
    sim = Simulation(num_pages=40, windows=((8, 1),), max_step_tokens=16)
    long = list(range(10, 70))
    sim.add("long", long, 20, ignore_eos=True)
    for _ in range(6):
        sim.step()
    assert sim.scheduler.running
    sim.add("branch", [*long[:32], 1, 2, 3], 2)
    sim.run()
    assert sim.cache.stats().num_hit_tokens == 32
    check(sim, {"branch": ([*long[:32], 1, 2, 3], 2)})


def test_retraction_counts_the_pages_of_every_group() -> None:
    """Urgent requests take the place of others, which lose no token."""
    sim = Simulation(num_pages=16, windows=((7, 2),), policy="priority", max_running=3)
    prompts = {f"r{i}": (list(range(10 + i, 34 + i)), 18) for i in range(5)}
    for number, (name, (prompt, max_tokens)) in enumerate(prompts.items()):
        sim.add(name, prompt, max_tokens, options=RequestOptions(priority=11 * number))
        for _ in range(5):
            sim.step()
    sim.run()
    check(sim, prompts)
    assert sim.scheduler.clock.num_retracted > 0


def shared_quarter(num_pages: int, *, masks: bool) -> tuple[int, int]:
    """32 requests whose prompts of 64 tokens begin with the same 16: tokens found, and how many decoded at once.

    Args:
        num_pages: of all layers: of each table's layers, if these are one group of all tokens and three tables of a
            window of 8.
        masks: all layers keep all tokens, in the same memory.
    """
    windows = () if masks else ((8, 3),)
    sim = Simulation(num_pages=num_pages, windows=windows, max_running=32, max_step_tokens=64, mixes=True)
    prompts = {
        f"r{i}": ([*range(10, 26), *((7 * i + 3 * j + j * j) % 90 + 8 for j in range(48))], 60) for i in range(32)
    }
    for name, prompt in prompts.items():
        sim.add(name, *prompt, ignore_eos=True)
    most = 0
    while sim.step():
        most = max(most, sum(not request.is_prefilling for request in sim.scheduler.running))
    for name, prompt in prompts.items():
        assert sim.outputs[name] == expected_output(*prompt, frozenset()), name
    return sim.cache.stats().num_hit_tokens, most


@pytest.mark.slow  # fewer requests are above
def test_32_requests_that_share_a_quarter_hit_as_with_masks_and_more_are_held() -> None:
    """Hits at least 0.9 of those with masks while the pool is not full; and more requests at once when it is."""
    (masked, _), (found, _) = shared_quarter(32 * 32, masks=True), shared_quarter(32 * 32, masks=False)
    assert found >= 0.9 * masked > 0
    (_, few), (_, many) = shared_quarter(180, masks=True), shared_quarter(180, masks=False)
    assert many >= 1.5 * few
