import dataclasses
import itertools
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from palladio.runtime.scheduling.radix_cache import RadixCache, page_keys
from palladio.runtime.scheduling.radix_node import RadixNode
from tests.properties import examples


def keys_of(text: str) -> list[tuple[int, ...]]:
    """One page of one token a letter."""
    return page_keys([ord(letter) for letter in text], 1, 0, len(text))


def put(cache: RadixCache, text: str, first_page: int, namespace: str | None = None) -> tuple[RadixNode, list[int]]:
    """Does what a request does: match, lock, compute the rest into pages first_page…, extend. The lock is kept."""
    node, cached = cache.match(keys_of(text), namespace)
    cache.lock(node)
    rest = keys_of(text)[len(cached) :]
    return cache.extend(node, rest, range(first_page, first_page + len(rest)))


def put_and_leave(cache: RadixCache, text: str, first_page: int, namespace: str | None = None) -> None:
    node, duplicates = put(cache, text, first_page, namespace)
    assert not duplicates
    cache.unlock(node)


def found(cache: RadixCache, text: str, namespace: str | None = None) -> list[int]:
    pages = cache.match(keys_of(text), namespace)[1]
    assert cache.num_matched(keys_of(text), namespace) == len(pages)
    return pages


def test_page_keys_are_the_tokens_of_whole_pages() -> None:
    tokens = list(range(10))
    assert page_keys(tokens, 4, 0, 2) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert page_keys(tokens, 4, 1, 2) == [(4, 5, 6, 7)]
    assert page_keys(tokens, 4, 2, 2) == []
    with pytest.raises(AssertionError, match="not full"):
        page_keys(tokens, 4, 0, 3)


def test_what_was_put_in_is_matched() -> None:
    cache = RadixCache("lru")
    assert cache.match(keys_of("abcd"), None) == (cache.root(None), [])
    put_and_leave(cache, "abcd", 1)
    assert found(cache, "abcd") == [1, 2, 3, 4]
    assert found(cache, "abcdef") == [1, 2, 3, 4]
    assert found(cache, "ab") == [1, 2]
    assert found(cache, "xabcd") == []
    cache.check_integrity([])


def test_match_splits_where_it_ends_and_num_matched_does_not() -> None:
    cache = RadixCache("lru")
    put_and_leave(cache, "abcd", 1)
    node, _ = put(cache, "abcd", 11)
    assert cache.num_matched(keys_of("abx"), None) == 2
    assert node.pages == [1, 2, 3, 4]
    assert cache.path(keys_of("abx"), None) == [(node, 2)]
    front, pages = cache.match(keys_of("abx"), None)
    assert (pages, front.pages, node.pages) == ([1, 2], [1, 2], [3, 4])
    assert node.parent is front
    assert (front.lock_count, front.num_hits, front.last_used) == (1, 1, node.last_used), "as the tail"
    cache.check_integrity([node])
    cache.unlock(node)
    assert cache.num_evictable == 4
    cache.check_integrity([])


def test_sequences_share_their_common_pages() -> None:
    cache = RadixCache("lru")
    put_and_leave(cache, "abcd", 1)
    put_and_leave(cache, "abxy", 10)
    assert found(cache, "abcd") == [1, 2, 3, 4]
    assert found(cache, "abxy") == [1, 2, 10, 11]
    assert cache.num_pages == cache.num_evictable == 6
    cache.check_integrity([])


def test_the_only_holder_of_a_leaf_grows_it_in_place() -> None:
    cache = RadixCache("lru")
    node, _ = put(cache, "ab", 1)
    assert cache.extend(node, keys_of("cd"), [3, 4]) == (node, [])
    assert node.pages == [1, 2, 3, 4]
    other, _ = cache.match(keys_of("abcd"), None)
    assert other is node
    cache.lock(other)
    grown, _ = cache.extend(node, keys_of("e"), [5])
    assert grown is not node, "somebody else ends at the node"
    assert (node.lock_count, grown.lock_count) == (2, 1)
    cache.check_integrity([grown, other])
    assert cache.extend(node, [], []) == (node, [])
    assert found(cache, "abcde") == [1, 2, 3, 4, 5]


def test_an_unused_leaf_that_a_sequence_walks_into_grows_too() -> None:
    cache = RadixCache("lru")
    put_and_leave(cache, "ab", 1)
    node, duplicates = cache.extend(cache.root(None), keys_of("abcd"), [11, 12, 13, 14])
    assert duplicates == [11, 12]
    assert node.pages == [1, 2, 13, 14]
    cache.check_integrity([node])


def test_pages_computed_twice_stay_with_the_one_who_comes_second() -> None:
    cache = RadixCache("lru")
    start, _ = put(cache, "s", 1)
    cache.lock(start)
    first, _ = cache.extend(start, keys_of("abcd"), [2, 3, 4, 5])
    second, duplicates = cache.extend(start, keys_of("abxy"), [12, 13, 14, 15])
    assert duplicates == [12, 13]
    assert found(cache, "sabxy") == [1, 2, 3, 14, 15]
    assert found(cache, "sabcd") == [1, 2, 3, 4, 5]
    cache.check_integrity([first, second])
    third, duplicates = cache.extend(cache.root(None), keys_of("sa"), [21, 22])
    assert duplicates == [21, 22]
    assert third.lock_count == 3
    cache.unlock(first)
    assert cache.num_evictable == 2
    cache.unlock(second)
    assert cache.num_evictable == 5
    assert sorted(cache.evict(100)) == [3, 4, 5, 14, 15]
    cache.check_integrity([third])


def test_locks_hold_all_ancestors() -> None:
    cache = RadixCache("lru")
    put_and_leave(cache, "abcd", 1)
    put_and_leave(cache, "abxy", 11)
    node, _ = cache.match(keys_of("abxy"), None)
    cache.lock(node)
    cache.lock(node)
    assert cache.num_evictable == 2
    assert cache.evict(100) == [4, 3]
    cache.unlock(node)
    assert cache.evict(100) == []
    cache.check_integrity([node])
    cache.unlock(node)
    assert cache.evict(100) == [12, 11, 2, 1]
    assert cache.num_pages == 0


def test_misuse_is_found() -> None:
    cache = RadixCache("lru")
    node, _ = put(cache, "ab", 1)
    with pytest.raises(AssertionError, match="locks counted"):
        cache.check_integrity([])
    cache.unlock(node)
    with pytest.raises(AssertionError, match="more often"):
        cache.unlock(node)
    node.lock_count = 0
    with pytest.raises(AssertionError, match="lock the node"):
        cache.extend(node, keys_of("c"), [3])
    with pytest.raises(AssertionError, match="one key a page"):
        cache.extend(cache.root(None), keys_of("c"), [])
    cache.evict(2)
    with pytest.raises(AssertionError, match="evicted"):
        cache.lock(node)


def test_eviction_takes_the_end_of_the_coldest_and_no_more_than_asked() -> None:
    cache = RadixCache("lru")
    put_and_leave(cache, "abcd", 1)
    put_and_leave(cache, "xy", 11)
    assert cache.evict(1) == [4]
    assert found(cache, "abcd") == [1, 2, 3]
    assert cache.evict(3) == [3, 2, 1]
    assert found(cache, "abcd") == []
    assert cache.evict(0) == []
    assert cache.evict(9) == [12, 11]
    assert cache.evict(9) == []
    cache.check_integrity([])


def test_lru_evicts_what_was_locked_or_left_longest_ago() -> None:
    cache = RadixCache("lru")
    for i, text in enumerate("abc"):
        put_and_leave(cache, text, i)
    cache.match(keys_of("a"), None)  # to look is not to use
    assert cache.evict(1) == [0]
    node, _ = cache.match(keys_of("b"), None)
    cache.lock(node)
    cache.unlock(node)
    long, _ = put(cache, "d", 3)
    put_and_leave(cache, "e", 4)
    cache.unlock(long)
    assert cache.evict(4) == [2, 1, 4, 3]


def test_lfu_evicts_what_was_hit_least_then_what_is_oldest() -> None:
    cache = RadixCache("lfu")
    for i, text in enumerate("abc"):
        put_and_leave(cache, text, i)
    for text in "aab":
        node, _ = cache.match(keys_of(text), None)
        cache.lock(node)
        cache.unlock(node)
    put_and_leave(cache, "d", 3)
    assert cache.evict(4) == [2, 3, 1, 0]


def test_namespaces_share_nothing() -> None:
    cache = RadixCache("lru")
    put_and_leave(cache, "ab", 1)
    put_and_leave(cache, "ab", 11, "salt")
    assert found(cache, "ab") == [1, 2]
    assert found(cache, "ab", "salt") == [11, 12]
    assert found(cache, "ab", "other") == []
    assert sorted(cache.pages()) == [1, 2, 11, 12]
    assert cache.evict(3) == [2, 1, 12], "evicted together, coldest first"
    assert found(cache, "ab", "salt") == [11]
    cache.check_integrity([])


def test_namespaces_leave_nothing_behind() -> None:
    cache = RadixCache("lru")
    for i in range(1000):
        cache.num_matched(keys_of("ab"), f"looked-at-{i}")
        put_and_leave(cache, "ab", 0, f"used-{i}")
        cache.evict(2)
    assert len(cache._roots) == 0, "they go at once, not with the next garbage collection"
    assert not cache._filled_roots
    assert len(cache._heap) < 200


def test_a_root_that_is_held_stays_the_root_of_its_namespace() -> None:
    cache = RadixCache("lru")
    early, _ = cache.match(keys_of("ab"), "salt")
    put_and_leave(cache, "xy", 1, "salt")
    assert sorted(cache.clear()) == [1, 2]  # the namespace is empty again, but for the one who holds its root
    cache.lock(early)
    late, _ = cache.match(keys_of("ab"), "salt")
    assert late is early
    cache.lock(late)
    first, _ = cache.extend(early, keys_of("ab"), [3, 4])
    second, duplicates = cache.extend(late, keys_of("abc"), [13, 14, 15])
    assert duplicates == [13, 14]
    assert found(cache, "abc", "salt") == [3, 4, 15]
    cache.lock(cache.root("salt"))
    cache.check_integrity([first, second, early])


def test_clear_keeps_what_is_locked() -> None:
    cache = RadixCache("lru")
    put_and_leave(cache, "abcd", 1)
    put_and_leave(cache, "xy", 11, "salt")
    node, _ = cache.match(keys_of("ab"), None)
    cache.lock(node)
    assert sorted(cache.clear()) == [3, 4, 11, 12]
    assert found(cache, "abcd") == [1, 2]
    assert (cache.num_pages, cache.num_evictable) == (2, 0)
    cache.check_integrity([node])


def test_matching_visits_nodes_not_pages_and_no_siblings() -> None:
    cache = RadixCache("lru")
    trunk = [(i,) for i in range(100_000)]
    node, _ = cache.extend(cache.root(None), trunk, range(100_000))
    for i in range(200):
        cache.lock(node)
        leaf, _ = cache.extend(node, [(-i,)], [100_000 + i])
        cache.unlock(leaf)
    assert cache.path([*trunk, (-77,), (5,)], None) == [(node, 100_000), (node.children[(-77,)], 1)]
    assert len(cache.match([*trunk, (-77,), (5,)], None)[1]) == 100_001


def test_stale_heap_entries_do_not_pile_up() -> None:
    cache = RadixCache("lru")
    for i in range(10):
        put_and_leave(cache, "abcdefghij"[i], i)
    for text in itertools.islice(itertools.cycle("abcdefghij"), 5000):
        node, _ = cache.match(keys_of(text), None)
        cache.lock(node)
        cache.unlock(node)
    assert len(cache._heap) <= 100
    cache.check_integrity([])
    assert cache.evict(10) == list(range(10))


Prefix = tuple[int | str | None, ...]  # (namespace, tokens…)


@dataclasses.dataclass
class Holder:
    node: RadixNode
    sequence: Prefix


class RadixCacheMachine(RuleBasedStateMachine):
    """The tree against a dictionary from every cached (namespace, tokens…) to the page of its last token.

    Pages have one token of two kinds, so prefixes collide all the time. `used` is the time of the last use page by
    page; the tree keeps it node by node, and must (policy lru) evict in the same order.
    """

    tokens = st.lists(st.integers(0, 1), max_size=7)
    namespaces = st.sampled_from([None, "salt"])

    policy: Literal["lru", "lfu"] = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixCache(self.policy)
        self.model: dict[Prefix, int] = {}
        self.used: dict[Prefix, int] = {}
        self.holders: list[Holder] = []
        self.new_pages = itertools.count()
        self.clock = itertools.count()

    def cached_prefix(self, sequence: Prefix) -> Prefix:
        while len(sequence) > 1 and sequence not in self.model:
            sequence = sequence[:-1]
        return sequence

    def use(self, sequence: Prefix) -> None:
        now = next(self.clock)
        for i in range(2, len(sequence) + 1):
            self.used[sequence[:i]] = now

    def held(self) -> set[Prefix]:
        return {holder.sequence[:i] for holder in self.holders for i in range(2, len(holder.sequence) + 1)}

    def drop(self, pages: list[int], held: set[Prefix]) -> None:
        """Takes evicted pages out of the model, in order: each must be the coldest end of a sequence at that time."""
        sequences = {page: sequence for sequence, page in self.model.items()}
        for page in pages:
            ends = self.model.keys() - held - {sequence[:-1] for sequence in self.model}
            assert sequences[page] in ends, "a page went before one that needs it, or while it was locked"
            assert self.policy == "lfu" or self.used[sequences[page]] == min(self.used[sequence] for sequence in ends)
            del self.model[sequences[page]]

    @rule(tokens=tokens, namespace=namespaces)
    def match(self, tokens: list[int], namespace: str | None) -> None:
        prefix = self.cached_prefix((namespace, *tokens))
        keys = [(token,) for token in tokens]
        expected = [self.model[prefix[:i]] for i in range(2, len(prefix) + 1)]
        assert self.cache.num_matched(keys, namespace) == len(expected)
        assert self.cache.match(keys, namespace)[1] == expected

    @precondition(lambda self: len(self.holders) < 6)
    @rule(tokens=tokens, namespace=namespaces)
    def lock(self, tokens: list[int], namespace: str | None) -> None:
        node, pages = self.cache.match([(token,) for token in tokens], namespace)
        self.cache.lock(node)
        self.holders.append(Holder(node, (namespace, *tokens[: len(pages)])))
        self.use(self.holders[-1].sequence)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), tokens=tokens)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        pages = [next(self.new_pages) for _ in tokens]
        duplicates = []
        for token, page in zip(tokens, pages, strict=True):
            holder.sequence = (*holder.sequence, token)
            if self.model.setdefault(holder.sequence, page) != page:
                duplicates.append(page)
        holder.node, answer = self.cache.extend(holder.node, [(token,) for token in tokens], pages)
        assert answer == duplicates
        self.use(holder.sequence)  # of the pages passed before, only later uses matter: the holder still has them

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.cache.unlock(holder.node)
        self.use(holder.sequence)

    @rule(count=st.integers(0, 9))
    def evict(self, count: int) -> None:
        held = self.held()
        pages = self.cache.evict(count)
        assert len(pages) == min(count, len(self.model.keys() - held))
        self.drop(pages, held)

    @rule()
    def clear(self) -> None:
        held = self.held()
        self.drop(self.cache.clear(), held)
        assert self.model.keys() <= held

    @invariant()
    def tree_and_model_agree(self) -> None:
        self.cache.check_integrity([holder.node for holder in self.holders])
        assert sorted(self.cache.pages()) == sorted(self.model.values())
        assert self.cache.num_evictable == len(self.model.keys() - self.held())


class LfuMachine(RadixCacheMachine):
    policy = "lfu"


@pytest.mark.parametrize("machine", [RadixCacheMachine, LfuMachine])
def test_against_a_dictionary_of_prefixes(machine: type[RadixCacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(examples(50), stateful_step_count=40))
