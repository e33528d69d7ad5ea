"""TensorLayout: how heads, MLP and vocabulary are laid out so that each of them divides over the tensor axis."""

import dataclasses
from typing import Self

from palladio.model.config import ModelConfig

VOCAB_MULTIPLE = 128  # rows of the token table a device holds: whole lanes, and whole words of a mask


@dataclasses.dataclass(frozen=True, slots=True)
class HeadPlace:
    """What one place of the grid of heads holds.

    Attributes:
        kv_head: of the checkpoint; its key and value may be in several places.
        first_query: of the checkpoint's query heads, the first that is here.
        num_queries: how many follow it here, itself included; all see this kv head.
    """

    kv_head: int
    first_query: int
    num_queries: int


@dataclasses.dataclass(frozen=True, slots=True)
class TensorLayout:
    """The checkpoint's sizes, and those of the parameters, which are padded where they would not divide.

    Padding is zeros: it adds nothing to any sum. Where there are fewer kv heads than devices, each is copied to several
    places, which share its query heads; where their number does not divide, some places stay empty.

    Attributes:
        stored: the model as the checkpoint has it.
        config: the model as it is laid out: its numbers of heads, F and V are the padded ones.
        num_shards: devices along the tensor axis.
        places: of each of the config's kv heads; None: padding.
    """

    stored: ModelConfig
    config: ModelConfig
    num_shards: int
    places: tuple[HeadPlace | None, ...]

    @classmethod
    def of(cls, model: ModelConfig, num_shards: int) -> Self:
        """The layout of a model over so many devices; over one it is as the checkpoint has it."""
        places = _places(model.num_heads, model.num_kv_heads, num_shards)
        group = max(place.num_queries for place in places if place is not None)
        config = dataclasses.replace(
            model,
            num_kv_heads=len(places),
            num_heads=len(places) * group,
            intermediate_size=_round_up(model.intermediate_size, num_shards),
            vocab_size=_round_up(model.vocab_size, num_shards * VOCAB_MULTIPLE) if num_shards > 1 else model.vocab_size,
        )
        return cls(model, config, num_shards, places)

    @property
    def group(self) -> int:
        """Query heads in a place, padding included (G)."""
        return self.config.num_heads // self.config.num_kv_heads

    @property
    def is_plain(self) -> bool:
        """Nothing is padded and nothing copied."""
        return self.config == self.stored

    def table(self) -> list[str]:
        """What does not divide and what became of it, a line each; for the log."""
        stored, config, lines = self.stored, self.config, []
        if config.num_kv_heads > stored.num_kv_heads:
            copies = sum(place is not None for place in self.places) / stored.num_kv_heads
            how = "the rest is padding"
            if copies > 1:
                how = f"each in {copies:g} places" if copies == int(copies) else "each in one or more"
            lines.append(f"kv heads: {stored.num_kv_heads} in {config.num_kv_heads} places ({how})")
        if config.num_heads > stored.num_heads:
            lines.append(f"query heads: {stored.num_heads} in {config.num_heads} places (the rest is padding)")
        if config.intermediate_size > stored.intermediate_size:
            lines.append(f"MLP: {stored.intermediate_size} columns padded to {config.intermediate_size}")
        if config.vocab_size > stored.vocab_size:
            lines.append(f"vocabulary: {stored.vocab_size} rows padded to {config.vocab_size}")
        return lines


def _places(num_heads: int, num_kv_heads: int, num_shards: int) -> tuple[HeadPlace | None, ...]:
    group = num_heads // num_kv_heads
    if num_kv_heads >= num_shards:
        places: list[HeadPlace | None] = [HeadPlace(head, head * group, group) for head in range(num_kv_heads)]
        return (*places, *[None] * (_round_up(num_kv_heads, num_shards) - num_kv_heads))
    copies, left = divmod(num_shards, num_kv_heads)
    places = []
    for head in range(num_kv_heads):
        num_copies = copies + (head < left)
        share = -(-group // num_copies)
        for start in range(0, num_copies * share, share):
            count = min(share, group - start)
            places.append(HeadPlace(head, head * group + start, count) if count > 0 else None)
    return tuple(places)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
