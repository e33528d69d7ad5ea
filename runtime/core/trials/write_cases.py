"""The trial of cache writes, of keys and values and of latents."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from palladio.pallas_kernels.kv_cache_update import CacheWrites, kv_cache_update, plan_writes
from palladio.pallas_kernels.latent_attention import latent_cache_update
from palladio.pallas_kernels.ragged_paged_attention import KVPages, ScaledPages
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials.case import Case, HostArray, Inputs, Work, flat, random
from palladio.runtime.core.trials.requests import CHUNK_ROWS, ROWS

Run = tuple[int, int, int]  # page, first row, rows: tokens that follow each other


@dataclasses.dataclass(frozen=True, slots=True)
class CacheWrite:
    """The write of a layer's new rows on one device.

    Attributes:
        pages: shape of two pages of the layer's cache: [2, K, S, 2·Hp], ScaledPages, or [2, S, W] of latents.
        rows: shapes [K, H] of a key and of a value, or [L] and [R] of a latent's two parts.
        dtype: dtype of new rows.
        has_cache_scales: see AttentionSpec.
    """

    pages: Any
    rows: tuple[tuple[int, ...], tuple[int, ...]]
    dtype: DTypeLike
    has_cache_scales: bool = False

    @property
    def _is_latent(self) -> bool:
        return len(self.pages.shape) == 3

    @property
    def _page_size(self) -> int:
        return int(self.pages.shape[1 if self._is_latent else 2])

    def cases(self) -> list[Case]:
        """Return the programs of a trial: one row a request, and runs of rows."""
        S = self._page_size
        singles: list[Run] = [(1 + row, (0, S - 1, S // 2, row % S)[row % 4], 1) for row in range(ROWS - 3)]
        runs: list[Run] = [(1, 0, S), (2, 0, 1), (3, S // 2, S - S // 2), (4, 0, S), (5, 0, S // 2 + 1)]
        runs += [(6, S - 1, 1), (7, 0, S - 1), (8, 0, 1), (9, min(3, S - 1), 1), (10, S // 4, S // 4)]
        num_tokens = -(-sum(count for _, _, count in runs) // 64) * 64 + 64
        return [
            self._case("decode", [("rows at ends of pages", singles), ("padding alone", [])], ROWS, one_each=True),
            self._case("prefill", [("runs over pages", runs), ("padding alone", [])], num_tokens, one_each=False),
        ]

    def _case(self, kind: str, steps: Sequence[tuple[str, list[Run]]], num_tokens: int, *, one_each: bool) -> Case:
        inputs = tuple(
            Inputs(name, functools.partial(self._make, runs, num_tokens, one_each=one_each), _kept, self._work(runs))
            for name, runs in steps
        )
        kept = "latents" if self._is_latent else f"cache {jnp.dtype(self.pages.dtype).name}"
        scales = ", cache scales" if self.has_cache_scales else ""
        return Case(
            name=f"{kind} of {num_tokens} rows",
            call=self._call,
            expected=functools.partial(self._call, "reference", Target()),
            inputs=inputs,
            dtype=self.dtype,
            layer=str(self),
            donated=(0,),
            options=f"{kept}, pages of {self._page_size}{scales}",
        )

    def _work(self, runs: Sequence[Run]) -> Work:
        rows = sum(count for _, _, count in runs)
        sizes = sum(int(np.prod(shape)) for shape in self.rows)
        stored = self.pages.rows if isinstance(self.pages, ScaledPages) else self.pages
        row = int(np.prod(stored.shape[1:])) // self._page_size * jnp.dtype(stored.dtype).itemsize
        return Work(rows * (row + sizes * jnp.dtype(self.dtype).itemsize), 0)

    def _make(self, runs: Sequence[Run], num_tokens: int, *, one_each: bool) -> tuple[Any, ...]:
        """Make pages, both parts of new rows, the cells that they go to, and the two scales of the cache."""
        rng = np.random.default_rng(num_tokens + len(runs))
        num_pages = ROWS + 2
        pages = jax.tree.map(lambda x: random(rng, (num_pages, *x.shape[1:]), x.dtype), self.pages)
        new = (random(rng, (num_tokens, *shape), self.dtype) for shape in self.rows)
        page_ids, offsets = np.zeros(num_tokens, np.int32), np.zeros(num_tokens, np.int32)
        token = 0
        for page, first, count in runs:
            page_ids[token : token + count] = page
            offsets[token : token + count] = np.arange(first, first + count)
            token += count
        most = None if one_each else num_tokens // self._page_size + 2 * CHUNK_ROWS
        writes = CacheWrites(page_ids, offsets, max_runs=most, one_each=one_each)  # type: ignore[arg-type]
        scales = (0.5, 2.0) if self.has_cache_scales else (1.0, 1.0)
        return pages, *new, writes, *map(np.float32, scales)

    def _call(
        self,
        backend: str,
        target: Target,
        pages: KVPages,
        first: jax.Array,
        second: jax.Array,
        writes: CacheWrites,
        k_scale: jax.Array,
        v_scale: jax.Array,
    ) -> KVPages:
        """Plan a step's writes, and write, as a layer does."""
        planned = plan_writes(writes, backend=backend, target=target)
        if self._is_latent:
            assert isinstance(pages, jax.Array)
            return latent_cache_update(pages, first, second, planned, backend=backend, target=target)
        scales = {"k_scale": k_scale, "v_scale": v_scale}
        return kv_cache_update(pages, first, second, planned, **scales, backend=backend, target=target)


def _kept(pages: Any) -> list[HostArray]:
    """Return all but the scratch page. Rows of int8 are compared as numbers: the next one is as right in a tie."""
    return [flat(np.asarray(leaf[1:], np.float32)) for leaf in jax.tree.leaves(pages)]
