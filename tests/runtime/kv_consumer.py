"""A consumer of KV events: what a router does with them, with the structs of vLLM's own example."""

from typing import Any

import msgspec


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


DECODER = msgspec.msgpack.Decoder(KVEventBatch)


class Consumer:
    """Attributes:
    blocks: by their hash the tokens from the prompt's beginning on, with a digest of the namespace before them.
    cleared: how often the cache was empty.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[Any, ...]] = {}
        self.cleared = 0

    def take(self, batch: bytes) -> KVEventBatch:
        decoded = DECODER.decode(batch)
        for event in decoded.events:
            self._take(event)
        return decoded

    def _take(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        match event:
            case BlockStored():
                size, extra = event.block_size, event.extra_keys or [None] * len(event.block_hashes)
                assert len(event.token_ids) == size * len(event.block_hashes) == size * len(extra)
                begin = extra[0] or (None,)
                before = begin[:1] if event.parent_block_hash is None else self.blocks[event.parent_block_hash]
                for number, block in enumerate(event.block_hashes):
                    before = (*before, *event.token_ids[number * size : (number + 1) * size])
                    assert block not in self.blocks, "a block is stored twice"
                    self.blocks[block] = before
            case BlockRemoved():
                for block in event.block_hashes:
                    del self.blocks[block]
            case AllBlocksCleared():
                self.blocks.clear()
                self.cleared += 1

    @property
    def prefixes(self) -> list[tuple[Any, ...]]:
        return sorted(self.blocks.values(), key=repr)
