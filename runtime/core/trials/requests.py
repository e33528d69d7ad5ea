"""Requests of trials: lengths at the ends of pages and blocks, and the metadata of steps that hold them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
from palladio.runtime.core.trials.case import HostArray

BLOCK_ENDS = (128, 256, 512, 1024)  # keys at which kernels begin another block, or another kind of it
MOST_KEYS = 32_768  # of a request: a longer window is not filled
ROWS, FEW_ROWS, CHUNK_ROWS = 32, 2, 16  # requests of a decode step, of a small one, and of a prefill step


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Requests of one step: (tokens in the cache before, new tokens) of each.

    Attributes:
        name: what they cover.
        lengths: the first `num_decodes` have one new token.
        num_decodes: see AttentionMetadata; of a decode step it is the number of requests.
    """

    name: str
    lengths: tuple[tuple[int, int], ...]
    num_decodes: int = 0

    @property
    def num_tokens(self) -> int:
        """New tokens of all requests."""
        return sum(new for _, new in self.lengths)

    @property
    def most_keys(self) -> int:
        """Tokens of the longest request."""
        return max((before + new for before, new in self.lengths), default=0)

    def visible(self, window: int | None) -> tuple[int, int]:
        """Return how many keys are read by requests, and how many products of a query and a key there are.

        Args:
            window: keys that a query sees; None: all before it.
        """
        read = products = 0
        for before, new in self.lengths:
            seen = [min(before + 1 + token, window or MOST_KEYS * 2) for token in range(new)]
            products += sum(seen)
            read += min(before + new, seen[0] + new - 1)
        return read, products


def decode_step(page_size: int, window: int | None, most: int) -> Step:
    """Return requests of one token at the ends of pages, blocks and windows.

    Args:
        page_size: tokens a page.
        window: of the layer.
        most: tokens that a request may have.
    """
    keys = {1, 2, page_size - 1, page_size, page_size + 1}
    keys |= {end + more for end in BLOCK_ENDS for more in (-1, 0, 1)}
    if window is not None and window < MOST_KEYS:
        keys |= {window - 1, window, window + 1, window + page_size + 1}
    fitting = sorted(size for size in keys if 1 <= size <= most)[:ROWS]
    order = fitting[1::2] + fitting[::2]  # neighbours of unlike lengths
    lengths = tuple((size - 1, 1) for size in order)
    return Step("ends of pages and blocks", lengths, len(lengths))


def chunk_steps(page_size: int, block: int, window: int | None, most: int) -> tuple[Step, ...]:
    """Return the kinds of prefill steps: chunks alone, chunks after single tokens, single tokens alone, nothing.

    Args:
        page_size, window, most: see `decode_step`.
        block: tokens that a kernel computes at a time.
    """
    S = page_size
    chunks = [(0, 1), (0, S - 1), (0, S), (0, S + 1), (S, S), (5, 11), (3 * S - 1, 2), (500, 60), (0, block + 3)]
    singles, mixed = [(30, 1), (0, 1), (512, 1)], [(0, 33), (2, block), (1000, 24)]
    if window is not None and window < MOST_KEYS:
        chunks.append((window - 1, 5))
        mixed.append((window + S, 20))
    singles, chunks, mixed = (_fitting(lengths, most) for lengths in (singles, chunks, mixed))
    return (
        Step("chunks", tuple(chunks)),
        Step("chunks and single tokens", (*singles, *mixed), len(singles)),
        Step("single tokens", tuple(singles), len(singles)),
        Step("no requests", ()),
    )


def _fitting(lengths: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Cut requests to the longest that the block table has room for."""
    return [(min(before, most - 1), min(new, most - min(before, most - 1))) for before, new in lengths if new]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The pages of a step's requests, in random order.

    Attributes:
        block_table: i32[B, Pmax].
        num_pages: pages with the scratch page 0.
    """

    block_table: HostArray
    num_pages: int

    @classmethod
    def of(cls, step: Step, num_rows: int, width: int, page_size: int, num_pages: int) -> "Table":
        """Give each request its pages.

        Args:
            num_rows: B.
            width: Pmax.
            num_pages: pages of the pool; at least as many as the requests need, and one.
        """
        order = iter(np.random.default_rng(len(step.lengths)).permutation(num_pages - 1) + 1)
        table = np.zeros((num_rows, width), np.int32)
        for row, (before, new) in enumerate(step.lengths):
            for column in range(-(-(before + new) // page_size)):
                table[row, column] = next(order)
        return cls(table, num_pages)


def pages_of(step: Step, page_size: int) -> int:
    """Return the pages that a step's requests need, and the scratch page."""
    return 1 + sum(-(-(before + new) // page_size) for before, new in step.lengths)


def metadata_of(step: Step, table: Table, kind: Literal["decode", "prefill"]) -> AttentionMetadata:
    """Return the metadata of a step whose last rows are empty."""
    num_rows = table.block_table.shape[0]
    starts = np.full(num_rows + 1, step.num_tokens, np.int32)
    starts[: len(step.lengths) + 1] = np.cumsum([0, *(new for _, new in step.lengths)])
    kv_len = np.zeros(num_rows, np.int32)
    kv_len[: len(step.lengths)] = [before + new for before, new in step.lengths]
    counts: tuple[Any, Any] = np.int32(len(step.lengths)), np.int32(step.num_decodes)
    return AttentionMetadata(starts, kv_len, table.block_table, *counts, kind)  # type: ignore[arg-type]


def single_tokens(
    metadata: AttentionMetadata, num_tokens: int, columns: int, page_size: int, window: int | None
) -> tuple[Any, Any]:
    """Describe each token of a step as a request of one token, which is all that the reference has to compute.

    Args:
        num_tokens: T.
        columns: pages that a token's visible keys lie in, at most.
        window: keys that a query sees; None: all before it.

    Returns:
        Pages i32[T, columns] and keys i32[T] of each token. Pages before the window are left out, and their keys.
    """
    request, _, position = metadata.owners(num_tokens)
    keys = jnp.maximum(position + 1, 0)
    first = jnp.zeros_like(keys) if window is None else jnp.maximum(keys - window, 0) // page_size
    numbers = jnp.minimum(first[:, None] + jnp.arange(columns), metadata.block_table.shape[1] - 1)
    return metadata.block_table[request[:, None], numbers], keys - first * page_size
