"""PageMap: which pages of a KV pool are in use, in a form of bounded size."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class GroupPages:
    """Pages of the layers that keep the same tokens.

    Attributes:
        window: how many tokens they see; None: all.
        tables: block tables, each of which takes a page for the same tokens.
        used: pages that running requests hold. cached: pages that only the prefix cache holds.
    """

    window: int | None
    tables: int
    used: int
    cached: int


@dataclasses.dataclass(frozen=True, slots=True)
class PageMap:
    """One data-parallel rank's pool.

    Attributes:
        num_pages: pages that requests can own.
        used: pages that running requests hold. cached: pages that only the prefix cache holds. The others are free.
        pages_per_cell: pages of a cell, with consecutive numbers; the last cell may have fewer.
        runs: equal cells that follow each other: [cells, used pages of each, cached pages of each].
        groups: by what they keep; without layers that keep keys and values there are none.
        seconds: how long it took to make the map; no step was planned meanwhile.
    """

    num_pages: int
    used: int
    cached: int
    pages_per_cell: int
    runs: list[tuple[int, int, int]]
    groups: list[GroupPages]
    seconds: float
