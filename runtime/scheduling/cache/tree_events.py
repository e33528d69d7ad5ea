"""Events of the prefix tree for routers: which pages it has, in the form that vLLM publishes.

A page is known by a hash of 63 bits: of its key, of the hash of the page before it, and so of all tokens before it and
of the namespace. It is the same in every process. A page counts as stored from when a step is planned that computes it.

The events are msgspec structs: msgpack arrays, the name of the event first. A consumer may leave out the last fields.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence

import msgspec

from palladio.runtime.interface.outputs.counts import EventCounts
from palladio.runtime.scheduling.state.radix_node import PageKey, RadixNode

_MEDIUM = "GPU"  # what vLLM calls the memory of any device
_NO_NAMESPACE = 0


class BlockStored(msgspec.Struct, array_like=True, tag=True):
    """Pages that are in the cache now, one after another.

    Attributes:
        parent_block_hash: of the page before them; None: they begin a prompt.
        token_ids: of all of them. block_size: tokens of each.
        lora_id, lora_name: always None.
        extra_keys: of each page what makes it another one than its tokens say: a digest of the cache salt in the first
            page of a prompt, and the digests of media; None: nothing.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None = None
    medium: str = _MEDIUM
    lora_name: None = None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, array_like=True, tag=True):
    """Pages that are in the cache no more."""

    block_hashes: list[int]
    medium: str = _MEDIUM


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class TreeEvents:
    """Collects the changes of one tree, and publishes many at once.

    The first event says that the cache is empty: events of an earlier process no longer hold.

    Args:
        page_size: tokens of a page.
        publish: sends events at once, without waiting.
        counts: what became of them.
        close: ends their publication.
    """

    def __init__(
        self,
        page_size: int,
        publish: Callable[[Sequence[Event]], None],
        counts: Callable[[], EventCounts],
        close: Callable[[], None],
    ) -> None:
        self._page_size = page_size
        self._publish = publish
        self.counts = counts
        self.close = close
        self._pending: list[Event] = [AllBlocksCleared()]
        self._removed: list[int] = []  # of the last event, if it is of removed pages

    @property
    def is_pending(self) -> bool:
        """Whether something has changed that was not sent."""
        return bool(self._pending)

    def send(self) -> None:
        """Publishes what has changed since the last call."""
        if self.is_pending:
            pending, self._pending = self._pending, []
            self._publish(pending)

    def add_root(self, root: RadixNode, namespace: str | None) -> None:
        """Give a new root the hash of its namespace."""
        root.hashes = [_NO_NAMESPACE if namespace is None else _digest(namespace.encode("utf-8", "surrogatepass"))]

    def store(self, node: RadixNode, count: int) -> None:
        """Add an event for new pages at the end of a node.

        Args:
            count: how many pages are new.
        """
        start, parent = len(node.keys) - count, node.parent
        assert parent is not None
        assert parent.hashes is not None, "a node without events"
        if node.hashes is None:
            node.hashes = []
        assert len(node.hashes) == start, "a page was stored without an event"
        begins = start == 0 and parent.parent is None
        before = last = node.hashes[-1] if start else parent.hashes[-1]
        keys = node.keys[start:]
        for key in keys:
            last = _page_hash(last, key, self._page_size)
            node.hashes.append(last)
        extra = [_extra(key[self._page_size :]) for key in keys]
        if begins and before != _NO_NAMESPACE:
            extra[0] = (f"{before:016x}", *(extra[0] or ()))
        self._pending.append(
            BlockStored(
                node.hashes[start:],
                None if begins else before,
                [token for key in keys for token in key[: self._page_size] if isinstance(token, int)],
                self._page_size,
                extra_keys=extra if any(extra) else None,
            )
        )

    def remove(self, node: RadixNode, kept: int) -> None:
        """Add an event for pages that a node loses at its end.

        Args:
            kept: how many pages it keeps.
        """
        assert node.hashes is not None, "a node without events"
        gone = node.hashes[kept:][::-1]
        del node.hashes[kept:]
        if self._pending and isinstance(self._pending[-1], BlockRemoved):
            self._removed += gone
        elif gone:
            self._removed = gone
            self._pending.append(BlockRemoved(gone))

    def clear(self) -> None:
        """The tree is empty: nothing that was not sent yet matters any more. Sent at once."""
        if self.is_pending:  # else it was empty before
            self._pending = [AllBlocksCleared()]
            self.send()


def _digest(data: bytes) -> int:
    """Positive for those who read it as a number with a sign, and never _NO_NAMESPACE."""
    return (int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1) or 1


def _page_hash(before: int, key: PageKey, page_size: int) -> int:
    media = key[page_size:]
    data = struct.pack(f">Q{page_size}q", before, *key[:page_size])
    return _digest(data + repr(media).encode() if media else data)


def _extra(media: PageKey) -> tuple[str, ...] | None:
    """The extra keys of a page's event.

    Args:
        media: what a page's key has of media.
    """
    return tuple(str(part[0]) for part in media if isinstance(part, tuple)) or None
