"""What the prefix tree tells of its pages: whoever hears all of it knows the tree."""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from palladio.runtime.interface.outputs.counts import EventCounts
from palladio.runtime.interface.request.prompt_parts import Media
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.cache.tree_events import AllBlocksCleared, BlockStored, Event, TreeEvents
from palladio.runtime.scheduling.state.radix_node import page_keys
from tests.properties import examples
from tests.runtime.kv_consumer import Consumer
from tests.runtime.scheduling.cache.test_radix_cache_model import RadixCacheMachine


class Told:
    """A tree with pages of so many tokens, and who is told of it."""

    def __init__(self, page_size: int = 1) -> None:
        self.batches: list[list[Event]] = []
        self.consumer = Consumer()
        self.events = TreeEvents(page_size, self._publish, EventCounts, lambda: None)
        self.cache = RadixCache("lru", events=self.events)

    def _publish(self, events: Any) -> None:
        self.batches.append(list(events))
        self.consumer.take(msgspec.msgpack.encode((0.0, events, 0)))

    def put(self, tokens: list[int], salt: str | None = None, size: int = 1, media: tuple[Media, ...] = ()) -> None:
        keys = page_keys(tokens, size, 0, len(tokens) // size, media)
        root = self.cache.root(salt)
        end, _ = self.cache.extend(root, keys, [hash((salt, i, *tokens)) for i in range(len(keys))])
        self.cache.unlock(end)
        self.events.send()


class ToldMachine(RadixCacheMachine):
    """The same calls, and a consumer who hears of them at times."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Told()
        self.cache = self.told.cache

    @rule()
    def send(self) -> None:
        self.told.events.send()

    @invariant()
    def a_consumer_knows_what_the_tree_has(self) -> None:
        if self.told.events.is_pending:
            return
        salts = {sequence[0]: None for sequence in self.told.consumer.blocks.values()}
        assert len(salts) <= 2
        known = [(None if salt is None else "salt", *tokens) for salt, *tokens in self.told.consumer.prefixes]
        assert sorted(known, key=repr) == sorted(self.model, key=repr)

    def teardown(self) -> None:
        self.told.events.send()
        self.a_consumer_knows_what_the_tree_has()


def test_a_consumer_reconstructs_the_tree() -> None:
    run_state_machine_as_test(ToldMachine, settings=settings(examples(30), stateful_step_count=30))


def test_hashes_are_of_all_tokens_before_and_the_same_in_every_process() -> None:
    told, other = Told(2), Told(2)
    told.put([1, 2, 3, 4], size=2)
    other.put([9, 9], size=2)
    other.put([1, 2], size=2)
    other.put([1, 2, 3, 4, 5, 6], size=2)
    assert isinstance(told.batches[0][0], AllBlocksCleared), "what a process before it had is gone"
    stored = told.batches[0][1]
    assert isinstance(stored, BlockStored)
    assert stored.parent_block_hash is None
    assert (stored.token_ids, stored.block_size, stored.lora_id, stored.extra_keys) == ([1, 2, 3, 4], 2, None, None)
    assert set(stored.block_hashes) < set(other.consumer.blocks)
    last = other.batches[-1][0]
    assert isinstance(last, BlockStored)
    assert last.parent_block_hash == stored.block_hashes[0]
    assert last.token_ids == [3, 4, 5, 6]


def test_a_salt_and_media_make_other_blocks_and_are_told_as_digests() -> None:
    told = Told(2)
    told.put([1, 2, 3, 4], size=2)
    told.put([1, 2, 3, 4], "secret", size=2)
    (salted,) = told.batches[-1]
    assert isinstance(salted, BlockStored)
    assert not set(salted.block_hashes) & set(msgspec.to_builtins(told.batches[0][1])[1])
    assert salted.extra_keys is not None
    assert [extra is None for extra in salted.extra_keys] == [False, True]
    assert "secret" not in str(salted)


def test_an_emptied_cache_is_told_at_once_and_once() -> None:
    told = Told()
    told.put([1, 2, 3])
    told.cache.clear()
    assert [type(event) for event in told.batches[-1]] == [AllBlocksCleared]
    assert not told.consumer.blocks
    count = len(told.batches)
    told.cache.clear()
    told.events.send()
    assert len(told.batches) == count
    told.put([1, 2, 3])
    node, _ = told.cache.match([(1,), (2,)], None)
    told.cache.lock(node)
    told.cache.clear()
    told.events.send()
    assert told.consumer.prefixes == [(None, 1), (None, 1, 2)]
