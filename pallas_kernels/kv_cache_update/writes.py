"""Target cells of a step's new keys and values, and their division into runs: planned once a step, for all layers."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CacheWrites:
    """One cell of the cache for each of T tokens.

    Attributes:
        page_ids: i32[T], page of each token; padding writes to page 0, whose content is never read.
        page_offsets: i32[T], row within the page.
        runs: the cells as runs, for kernels that write runs; None: each call plans for itself.
        max_runs: static; the most runs there can be, if less than T; None: T.
        one_each: static; promises that every run is of one row.
    """

    page_ids: jax.Array
    page_offsets: jax.Array
    runs: "WriteRuns | None" = None
    max_runs: int | None = dataclasses.field(default=None, metadata={"static": True})
    one_each: bool = dataclasses.field(default=False, metadata={"static": True})

    def planned(self) -> "CacheWrites":
        """Add runs, unless each has one row."""
        return self if self.runs is not None or self.one_each else dataclasses.replace(self, runs=plan_runs(self))

    def in_pages(self, page_ids: jax.Array) -> "CacheWrites":
        """Return the writes of the same rows to other pages.

        Args:
            page_ids: i32[T]; tokens that shared a page still do, and the same padding is 0.
        """
        runs = None if self.runs is None else dataclasses.replace(self.runs, page=page_ids[self.runs.token])
        return dataclasses.replace(self, page_ids=page_ids, runs=runs)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WriteRuns:
    """Runs of tokens that follow each other both along T and in a page. Rows of page 0 are in no run.

    Attributes:
        page: i32[R], page of each run.
        row: i32[R], its first row.
        token: i32[R], index of the first token along T.
        count: i32[R], tokens of the run.
        num_runs: i32[1], real runs.
    """

    page: jax.Array
    row: jax.Array
    token: jax.Array
    count: jax.Array
    num_runs: jax.Array


def plan_runs(writes: CacheWrites) -> WriteRuns:
    """Cut a step's writes into runs."""
    page, row = writes.page_ids, writes.page_offsets
    T = page.shape[0]
    token = jnp.arange(T, dtype=jnp.int32)
    follows = (page[1:] == page[:-1]) & (row[1:] == row[:-1] + 1)
    begins = jnp.concatenate([jnp.ones(1, bool), ~follows])
    # Of each token, where the next run begins.
    end = lax.cummin(jnp.concatenate([jnp.where(begins, token, T)[1:], jnp.full(1, T, jnp.int32)]), reverse=True)
    real = begins & (page != 0)
    size = T if writes.max_runs is None else min(T, writes.max_runs)
    first = jnp.nonzero(real, size=size, fill_value=0)[0].astype(jnp.int32)
    return WriteRuns(page[first], row[first], first, end[first] - first, real.sum(dtype=jnp.int32).reshape(1))
