import itertools

import pytest

from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.state.radix_node import PageKey, RadixNode, page_keys


def keys_of(text: str) -> list[PageKey]:
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


def test_slru_evicts_what_a_single_request_used_first_and_then_what_is_oldest() -> None:
    cache = RadixCache("slru")
    for i, text in enumerate("abcd"):
        put_and_leave(cache, text, i)
    for text in "ccab":  # hit once or twice: the same class, so the order of use decides
        node, _ = cache.match(keys_of(text), None)
        cache.lock(node)
        cache.unlock(node)
    put_and_leave(cache, "e", 4)
    assert cache.evict(5) == [3, 4, 2, 0, 1]


def test_priority_evicts_what_only_less_urgent_requests_used() -> None:
    cache = RadixCache("priority")
    for page, (text, rank) in enumerate({"a": 5, "b": 0, "c": -3, "d": 0, "ae": -9}.items()):
        node, cached = cache.match(keys_of(text), None)
        cache.lock(node, rank=rank)
        node, _ = cache.extend(node, keys_of(text)[len(cached) :], [page], rank=rank)
        cache.unlock(node)
    node, _ = cache.match(keys_of("d"), None)
    cache.lock(node, rank=1)
    cache.unlock(node)
    cache.check_integrity([])
    assert cache.evict(5) == [4, 2, 1, 3, 0], "the least urgent end first, and a page after those behind it"


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
    assert cache._leaves.num_entries < 200


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
    assert cache._leaves.num_entries <= 100
    cache.check_integrity([])
    assert cache.evict(10) == list(range(10))
