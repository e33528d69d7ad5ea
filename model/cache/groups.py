"""Groups of layers that keep the same tokens, and so share block tables and pages."""

import dataclasses
from typing import NamedTuple, Self

from palladio.model.config.config import ModelConfig

# Groups that come out uneven leave places of the pool's arrays empty: of a short request's pages at most this share.
# Where it would be more, all layers are one group, and their windows are masks only.
MOST_PADDING = 0.15


class Place(NamedTuple):
    """Position of a layer's cache: the number of the step plan that finds it, and the entry of the pool. Plans are
    those of the block tables, then, if there are states, that of the slots."""

    step: int
    entry: int


@dataclasses.dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens.

    Attributes:
        window: number of newest tokens that they keep; None: all.
        tables: the layers that use each block table of the group, numbered from the embedding up.
    """

    window: int | None
    tables: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class CacheGroups:
    """All layers of a model, in groups.

    Attributes:
        groups: the groups with pages. The one without a window, if any, comes first and has one table.
        states: layers that keep a state for each slot, and no pages.
    """

    groups: tuple[CacheGroup, ...]
    states: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """Group the layers of a model.

        Args:
            config: the model for a context, from `ModelConfig.for_context`.
        """
        if config.encoder is not None:  # pages of nothing, which only count a step's tokens
            return cls((CacheGroup(None, ((),)),))
        layers: dict[int | None, list[int]] = {}
        states = tuple(number for number, layer in enumerate(config.layers) if layer.keeps_state)
        for number, layer in enumerate(config.layers):
            if not layer.keeps_state:
                layers.setdefault(layer.attention.window, []).append(number)
        size = len(layers[None]) if None in layers else min(map(len, layers.values()))
        num_places = sum(size * -(-len(numbers) // size) for numbers in layers.values())
        paged = tuple(sorted(number for numbers in layers.values() for number in numbers))
        if num_places > (1 + MOST_PADDING) * len(paged):
            return cls((CacheGroup(None, (paged,)),), states)
        groups = (_group(window, layers[window], size) for window in sorted(layers, key=lambda w: w or 0))
        return cls(tuple(groups), states)

    @property
    def tables(self) -> list[tuple[int, ...]]:
        """The layers of each block table."""
        return [layers for group in self.groups for layers in group.tables]

    @property
    def num_tables(self) -> int:
        return sum(len(group.tables) for group in self.groups)

    @property
    def num_arrays(self) -> int:
        """Number of page arrays in the pool."""
        return max(map(len, self.tables))

    @property
    def places(self) -> list[Place]:
        """The place of each layer."""
        places = {layer: Place(t, a) for t, layers in enumerate(self.tables) for a, layer in enumerate(layers)}
        places |= {layer: Place(self.num_tables, self.num_arrays + n) for n, layer in enumerate(self.states)}
        return [places[layer] for layer in range(len(places))]


def _group(window: int | None, layers: list[int], size: int) -> CacheGroup:
    return CacheGroup(window, tuple(tuple(layers[begin : begin + size]) for begin in range(0, len(layers), size)))
