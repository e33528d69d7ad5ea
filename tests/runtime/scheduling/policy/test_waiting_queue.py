import dataclasses
import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.policy.waiting_queue import FAIR_TURN, WINDOW, PolicyQueue
from palladio.runtime.scheduling.state.radix_node import page_keys
from palladio.runtime.scheduling.state.request import Request
from tests.properties import examples

PAGE_SIZE = 2


def make(name: str, prompt: str = "a", *, max_tokens: int = 1, priority: int = 0, salt: str | None = None) -> Request:
    """A request; each letter of the prompt is a page, and one more token follows."""
    ids = [ord(letter) for letter in prompt for _ in range(PAGE_SIZE)]
    options = RequestOptions(priority=priority, cache_salt=salt)
    params = SamplingParams(max_tokens=max_tokens, seed=0)
    return Request.of(GenerationRequest(name, [*ids, 0], params, (), 0.0, options))


def make_queue(policy, cache: RadixCache | None = None, **options) -> PolicyQueue:
    return PolicyQueue(policy, cache or RadixCache("lru"), PAGE_SIZE, **options)


def cache_of(*prompts: str, salt: str | None = None) -> RadixCache:
    cache = RadixCache("lru")
    pages = itertools.count()
    for prompt in prompts:
        ids = [ord(letter) for letter in prompt for _ in range(PAGE_SIZE)]
        keys = page_keys(ids, PAGE_SIZE, 0, len(prompt))
        node, _ = cache.extend(cache.root(salt), keys, list(itertools.islice(pages, len(keys))))
        cache.unlock(node)
    return cache


def take_all(queue: PolicyQueue) -> str:
    """The names in the order they are taken, with a scheduling round for each."""
    names = []
    while len(queue):
        queue.refresh()
        peeked = queue.peek()
        assert queue.peek() is peeked
        names.append(queue.take())
        assert names[-1] is peeked
    assert queue.peek() is None
    return "".join(request.given.request_id for request in names)


def fill(queue: PolicyQueue, *requests: Request) -> None:
    for request in requests:
        queue.add(request)


def test_fcfs() -> None:
    queue = make_queue("fcfs")
    fill(queue, *(make(name) for name in "abcdefghij"))
    assert "".join(request.given.request_id for request in queue) == "abcdefghij"
    assert take_all(queue) == "abcdefghij"


def test_lof_takes_long_outputs_first() -> None:
    queue = make_queue("lof")
    fill(queue, *(make(name, max_tokens=length) for name, length in zip("abcd", [5, 9, 5, 7], strict=True)))
    assert take_all(queue) == "bdac"


@pytest.mark.parametrize(("low_values_first", "order"), [(False, "bdace"), (True, "eacdb")])
def test_priority(low_values_first: bool, order: str) -> None:
    queue = make_queue("priority", low_values_first=low_values_first)
    fill(queue, *(make(name, priority=value) for name, value in zip("abcde", [0, 9, 0, 7, -1], strict=True)))
    assert take_all(queue) == order


def test_random_is_seeded_and_takes_each_once() -> None:
    orders = []
    for seed in [1, 1, 2]:
        queue = make_queue("random", seed=seed)
        fill(queue, *(make(name) for name in "abcdefghijklmnop"))
        orders.append(take_all(queue))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list("abcdefghijklmnop") != list(orders[2])


def test_lpm_takes_long_prefixes_first() -> None:
    queue = make_queue("lpm", cache_of("ABCD", "AXYZ"))
    prompts = {"a": "QQ", "b": "AB", "c": "ABCDE", "d": "AXQ", "e": "AXYZ", "f": "A", "g": "QB"}
    fill(queue, *(make(name, prompt) for name, prompt in prompts.items()))
    assert take_all(queue) == "cebdfag"


def test_lpm_leaves_the_last_token_to_compute() -> None:
    queue = make_queue("lpm", cache_of("ABC", "D"))
    whole = make("whole", "ABC")
    whole.token_ids.pop()  # nothing follows its three pages: only two of them count
    fill(queue, make("d", "D"), whole)
    assert queue.take() is whole
    fill(queue, whole)
    queue.refresh()
    whole.listed_ids = whole.token_ids[: 2 * PAGE_SIZE]
    assert queue.take().given.request_id == "d"


def test_lpm_looks_only_where_a_request_may_use_the_cache() -> None:
    queue = make_queue("lpm", cache_of("ABC", salt="mine"))
    private, scored = make("private", "ABC", salt="mine"), make("scored", "ABC", salt="mine")
    private.shares_prefix, scored.prompt_logprobs = False, []
    fill(queue, private, scored, make("theirs", "ABC"), make("mine", "A", salt="mine"))
    assert [queue.take().given.request_id for _ in range(4)] == ["mine", "private", "scored", "theirs"]


def test_lpm_cuts_up_no_more_of_a_prompt_than_matches() -> None:
    queue = make_queue("lpm", cache_of("ABCD"))
    unknown, known = make("unknown", "Q" * 5000), make("known", "ABCD" + "Q" * 5000)
    fill(queue, unknown, known)
    assert queue.peek() is known
    assert (len(unknown.page_keys), len(known.page_keys)) == (1, 5)


def test_lpm_sees_the_tree_change_when_refreshed() -> None:
    cache = cache_of("AB", "C")
    queue = make_queue("lpm", cache)
    fill(queue, make("none"), make("c", "C"), make("ab", "AB"))
    first = queue.peek()
    cache.evict(2)
    assert queue.peek() is first
    queue.refresh()
    assert queue.take().given.request_id == "c"
    assert queue.take().given.request_id == "none"


def test_dfs_weight_goes_down_where_most_requests_wait() -> None:
    queue = make_queue("dfs-weight", cache_of("AB", "AC", "XY"))
    prompts = {"a": "Q", "b": "XY", "c": "AC", "d": "A", "e": "AB", "f": "ABQ", "g": "XQ"}
    fill(queue, *(make(name, prompt) for name, prompt in prompts.items()))
    # A has four requests below: first B with two, then C, then what ends at A; then X (its node has both Y and not Y)
    queue.refresh()
    order = "".join(queue.take().given.request_id for _ in range(len(prompts)))
    assert order == "efcdbga"


def test_dfs_weight_keeps_branches_of_equal_weight_apart() -> None:
    queue = make_queue("dfs-weight", cache_of("A", "B"))
    fill(queue, *(make(name, prompt) for name, prompt in zip("abcd", "BABA", strict=True)))
    assert "".join(queue.take().given.request_id for _ in range(4)) == "acbd"


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_tree_policies_look_at_a_window(policy) -> None:
    queue = make_queue(policy, cache_of("AB"))
    requests = [make(str(i), "Q") for i in range(3 * WINDOW)]
    requests[WINDOW - 1] = inside = make("inside", "AB")
    requests[WINDOW] = outside = make("outside", "AB")
    fill(queue, *requests)
    assert queue.take() is inside
    assert queue.take() is requests[0]
    queue.refresh()
    assert queue.take() is outside
    assert len([queue.take() for _ in range(len(queue))]) == 3 * WINDOW - 3, "the next window follows by itself"


@pytest.mark.parametrize("policy", ["lof", "lpm", "dfs-weight"])
def test_the_longest_waiting_gets_each_eighth_turn(policy) -> None:
    queue = make_queue(policy, cache_of("AB"))
    plain = [make(f"plain-{i}", "Q") for i in range(3)]
    fill(queue, *plain)
    turns = []
    for turn in range(1, 4 * FAIR_TURN):
        queue.add(make(f"favoured-{turn}", "AB", max_tokens=100))
        queue.refresh()
        if queue.take() in plain:
            turns.append(turn)
    assert turns == [FAIR_TURN, 2 * FAIR_TURN, 3 * FAIR_TURN]


@pytest.mark.parametrize("policy", ["fcfs", "lof", "lpm", "dfs-weight", "random"])
def test_requests_put_back_come_first(policy) -> None:
    queue = make_queue(policy, cache_of("AB"))
    fill(queue, *(make(name, "AB", max_tokens=9) for name in "abc"))
    queue.peek()
    for name in "xy":
        queue.put_back(make(name))
    order = take_all(queue)
    assert order[:2] == "yx"
    assert sorted(order[2:]) == ["a", "b", "c"]


def test_requests_put_back_come_first_within_their_priority() -> None:
    queue = make_queue("priority")
    fill(queue, make("a", priority=1), make("b"), make("c", priority=1))
    queue.put_back(make("x", priority=1))
    queue.put_back(make("y"))
    queue.put_back(make("z", priority=1))
    assert take_all(queue) == "zxacyb"


def test_requests_put_back_use_up_no_fair_turn() -> None:
    queue = make_queue("lof")
    plain = make("plain")
    queue.add(plain)
    for i in range(FAIR_TURN - 1):
        queue.add(make(f"long-{i}", max_tokens=9))
        assert queue.take().given.request_id == f"long-{i}"
    for i in range(3):
        queue.put_back(make(f"back-{i}"))
        assert queue.take().given.request_id == f"back-{i}"
    queue.add(make("long", max_tokens=9))
    assert queue.take() is plain


@pytest.mark.parametrize("policy", ["fcfs", "lof", "lpm", "dfs-weight", "random", "priority"])
def test_removal_anywhere(policy) -> None:
    queue = make_queue(policy, cache_of("AB"))
    requests = {name: make(name, max_tokens=ord(name)) for name in "abcdef"}
    fill(queue, *requests.values())
    first = queue.peek()
    assert first is not None
    for request in [requests["c"], first] if first is not requests["c"] else [first]:
        queue.remove(request)
        assert request not in queue
        with pytest.raises(KeyError):
            queue.remove(request)
    assert "a string" not in queue
    left = [request for request in requests.values() if request in queue]
    assert len(queue) == len(left)
    assert list(queue) == left
    assert sorted(take_all(queue)) == [request.given.request_id for request in left]
    queue.add(first)
    assert take_all(queue) == first.given.request_id


@pytest.mark.parametrize("policy", ["fcfs", "lof", "lpm", "priority"])
def test_who_leaves_and_comes_again_is_the_last_to_arrive(policy) -> None:
    queue = make_queue(policy)
    a, b = make("a"), make("b")
    fill(queue, a, b)
    queue.remove(a)
    queue.add(a)
    assert take_all(queue) == "ba"


def test_a_request_waits_once() -> None:
    queue = make_queue("fcfs")
    request = make("a")
    queue.add(request)
    for again in (queue.add, queue.put_back):
        with pytest.raises(AssertionError, match="waiting already"):
            again(request)
    queue.remove(request)
    with pytest.raises(AssertionError, match="the queue is empty"):
        queue.take()


@pytest.mark.parametrize("policy", ["lof", "random", "priority"])
def test_entries_of_removed_requests_do_not_pile_up(policy) -> None:
    queue = make_queue(policy)
    queue.add(make("urgent", max_tokens=100, priority=100))  # stays on top: nothing behind it is popped
    for i in range(2000):
        request = make(str(i))
        queue.add(request)
        queue.remove(request)
    assert len(queue._heap) <= 100
    assert len(queue) == 1
    assert take_all(queue) == "urgent"


@dataclasses.dataclass
class NaiveQueue:
    """The static policies as a list that is sorted for each answer."""

    policy: str
    low_values_first: bool
    waiting: list[tuple[int, Request]] = dataclasses.field(default_factory=list)  # (place, request)
    num_turns: int = 0

    def key(self, entry: tuple[int, Request]) -> tuple[float, ...]:
        place, request = entry
        if self.policy == "priority":
            return (request.given.options.priority * (1 if self.low_values_first else -1), place)
        if self.policy == "fcfs" or place < 0 or self.num_turns % FAIR_TURN == FAIR_TURN - 1:
            return (place >= 0, -1e9, place)
        return (1, -request.max_tokens, place)

    def next(self) -> Request | None:
        return min(self.waiting, key=self.key)[1] if self.waiting else None

    def remove(self, request: Request, *, is_turn: bool) -> None:
        (place,) = [place for place, other in self.waiting if other is request]
        self.num_turns += is_turn and place > 0
        self.waiting.remove((place, request))


@examples(150)
@hypothesis.given(
    policy=st.sampled_from(["fcfs", "lof", "priority"]),
    low_values_first=st.booleans(),
    actions=st.lists(
        st.tuples(st.sampled_from(["add", "add", "take", "take", "put back", "remove"]), st.integers(0, 3)), max_size=60
    ),
)
def test_static_policies_against_a_sorted_list(policy, low_values_first, actions) -> None:
    queue = make_queue(policy, low_values_first=low_values_first)
    naive = NaiveQueue(policy, low_values_first)
    ran: list[Request] = []
    for place, (action, value) in enumerate(actions, start=1):
        if action == "add":
            request = make(str(place), max_tokens=value, priority=value)
            queue.add(request)
            naive.waiting.append((place, request))
        elif action == "put back" and ran:
            request = ran.pop(value % len(ran))
            queue.put_back(request)
            naive.waiting.append((-place, request))
        elif action == "remove" and naive.waiting:
            request = naive.waiting[value % len(naive.waiting)][1]
            queue.remove(request)
            naive.remove(request, is_turn=False)
        elif action == "take" and naive.waiting:
            request = queue.take()
            assert request is naive.next()
            naive.remove(request, is_turn=True)
            ran.append(request)
        assert queue.peek() is naive.next()
        assert len(queue) == len(naive.waiting)
        assert list(queue) == [request for _, request in sorted(naive.waiting, key=lambda entry: entry[0])]


@examples(60)
@hypothesis.given(
    policy=st.sampled_from(["lof", "lpm", "dfs-weight", "random"]),
    actions=st.lists(st.tuples(st.sampled_from(["add", "take", "put back"]), st.integers(0, 3)), max_size=120),
)
def test_nobody_waits_longer_than_the_bound(policy, actions) -> None:
    queue = make_queue(policy, cache_of("AB"))
    num_taken = 0  # of new requests
    bound: dict[Request, int] = {}
    for i, (action, value) in enumerate(actions):
        if action == "add":
            request = make(str(i), ["Q", "A", "AB", "X"][value], max_tokens=value)
            bound[request] = num_taken + FAIR_TURN * (sum(other in bound for other in queue) + 1)
            queue.add(request)
        elif action == "put back":
            queue.put_back(make(f"back-{i}"))
        elif len(queue):
            queue.refresh()
            request = queue.take()
            if request in bound:
                num_taken += 1
                assert num_taken <= bound.pop(request)
        assert all(num_taken < latest for latest in bound.values())
