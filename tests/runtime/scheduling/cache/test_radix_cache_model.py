"""The radix tree against a dictionary, in sequences of calls that hypothesis draws."""

import dataclasses
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from palladio.runtime.interface.config.cache_config import EvictionPolicy
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.state.radix_node import RadixNode
from tests.properties import examples

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

    policy: EvictionPolicy = "lru"

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
            assert self.policy != "lru" or self.used[sequences[page]] == min(self.used[sequence] for sequence in ends)
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


class SlruMachine(RadixCacheMachine):
    policy = "slru"


@pytest.mark.parametrize("machine", [RadixCacheMachine, LfuMachine, SlruMachine])
def test_against_a_dictionary_of_prefixes(machine: type[RadixCacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(examples(50), stateful_step_count=40))
