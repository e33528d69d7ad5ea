"""The trial of ragged paged attention."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    KVPages,
    ScaledPages,
    plan_attention,
    ragged_paged_attention,
    scale_page_shape,
)
from palladio.pallas_kernels.ragged_paged_attention.api import CHUNK_BLOCKS
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import padded_head_size, scale_cells
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials.case import Case, HostArray, Inputs, Work, flat, random
from palladio.runtime.core.trials.requests import (
    CHUNK_ROWS,
    FEW_ROWS,
    ROWS,
    Step,
    Table,
    chunk_steps,
    decode_step,
    metadata_of,
    pages_of,
    single_tokens,
)

_KEYS_AT_A_TIME = 4096  # that the reference gathers, in float32
_SPEED_KEYS = 2048  # of each request whose speed is measured


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A kind of attention layer on one device.

    Attributes:
        sizes: N, K, H, page size, table width and dtypes; `num_rows` is that of each case.
        scale, window, soft_cap, has_sinks, has_cache_scales: see AttentionSpec.
    """

    sizes: AttentionShape
    scale: float
    window: int | None
    soft_cap: float | None
    has_sinks: bool
    has_cache_scales: bool

    @property
    def options(self) -> str:
        """The options, for messages and keys."""
        named = {
            "window": self.window,
            "soft cap": self.soft_cap,
            "sinks": self.has_sinks or None,
            "cache scales": self.has_cache_scales or None,
            "cache": jnp.dtype(self.sizes.kv_dtype).name,
            "pages of": self.sizes.page_size,
        }
        return ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)

    def cases(self, backend: str, target: Target) -> list[Case]:
        """Return the programs of a trial: decode steps of many and of few rows, and prefill steps.

        Args:
            backend: of which the chunks' blocks are taken.
        """
        S, most = self.sizes.page_size, self.sizes.page_size * self.sizes.table_width
        of_chunks = dataclasses.replace(self.sizes, num_rows=CHUNK_ROWS)
        block = CHUNK_BLOCKS[backend](of_chunks, target) if backend in CHUNK_BLOCKS else 64
        decode, chunks = decode_step(S, self.window, most), chunk_steps(S, block, self.window, most)
        few = Step("two rows", decode.lengths[-FEW_ROWS:], FEW_ROWS)
        return [
            self._case("decode", [decode, Step("no requests", ())], ROWS),
            self._case("decode", [few], FEW_ROWS),
            self._case("prefill", chunks, CHUNK_ROWS),
        ]

    def speed_case(self) -> Case:
        """Return a decode step of long requests, to measure how fast the cache is read."""
        keys = min(_SPEED_KEYS, self.sizes.page_size * self.sizes.table_width)
        step = Step(f"{ROWS} rows of {keys} keys", ((keys - 1, 1),) * ROWS, ROWS)
        return dataclasses.replace(self._case("decode", [step], ROWS), expected=None)

    def _case(self, kind: Literal["decode", "prefill"], steps: Sequence[Step], num_rows: int) -> Case:
        sizes = self.sizes
        num_tokens = num_rows if kind == "decode" else -(-max(step.num_tokens for step in steps) // 64) * 64 + 64
        num_pages = max(pages_of(step, sizes.page_size) for step in steps)
        most = max(step.most_keys for step in steps)
        columns = -(-min(most, self.window + sizes.page_size if self.window else most) // sizes.page_size) + 1
        inputs = tuple(
            Inputs(
                step.name,
                functools.partial(self._make, step, kind, num_rows, num_tokens, num_pages),
                functools.partial(_kept, step.num_tokens),
                self._work(step),
            )
            for step in steps
        )
        return Case(
            name=f"{kind} of {num_rows} rows",
            call=self._call,
            expected=functools.partial(self._expected, min(columns, sizes.table_width)),
            inputs=inputs,
            dtype=sizes.dtype,
            layer=str(self),
            options=self.options,
        )

    def _work(self, step: Step) -> Work:
        sizes = self.sizes
        read, products = step.visible(self.window)
        row = sizes.row_width * jnp.dtype(sizes.kv_dtype).itemsize + (8 if jnp.dtype(sizes.kv_dtype) == jnp.int8 else 0)
        rows = 2 * step.num_tokens * sizes.num_heads * sizes.head_size * jnp.dtype(sizes.dtype).itemsize
        return Work(read * sizes.num_kv_heads * row + rows, 4 * products * sizes.num_heads * sizes.head_size)

    def _make(
        self, step: Step, kind: Literal["decode", "prefill"], num_rows: int, num_tokens: int, num_pages: int
    ) -> tuple[Any, ...]:
        """Make queries, pages, metadata, sinks, and the two scales of the cache."""
        sizes, rng = self.sizes, np.random.default_rng(num_tokens + len(step.lengths))
        table = Table.of(step, num_rows, sizes.table_width, sizes.page_size, num_pages)
        q = random(rng, (num_tokens, sizes.num_heads, sizes.head_size), sizes.dtype)
        pages = self._pages(rng, step, table)
        sinks = random(rng, (sizes.num_heads,)) if self.has_sinks else None
        scales = (0.5, 2.0) if self.has_cache_scales else (1.0, 1.0)
        return q, pages, metadata_of(step, table, kind), sinks, *map(np.float32, scales)

    def _pages(self, rng: np.random.Generator, step: Step, table: Table) -> Any:
        """Make pages whose rows that no query may see are not numbers."""
        sizes = self.sizes
        P, K, S, W = table.num_pages, sizes.num_kv_heads, sizes.page_size, sizes.row_width
        dtype, half = jnp.dtype(sizes.kv_dtype), padded_head_size(sizes.head_size)
        rows = random(rng, (P, K, S, W), dtype)
        for lanes in (slice(sizes.head_size, half), slice(half + sizes.head_size, W)):
            rows[..., lanes] = 0
        is_stale = np.ones((P, S), bool)
        for row, (before, new) in enumerate(step.lengths):
            first = 0 if self.window is None else max(0, before - self.window + 1) // S
            positions = np.arange(first * S, before + new)
            is_stale[table.block_table[row][positions // S], positions % S] = False
        rows.swapaxes(1, 2)[is_stale] = 77 if dtype == jnp.int8 else np.nan
        return rows if dtype != jnp.int8 else ScaledPages(rows, self._scales(rng, is_stale))  # type: ignore[arg-type]

    def _scales(self, rng: np.random.Generator, is_stale: HostArray) -> HostArray:
        """Make the scales of a cache of int8."""
        (P, S), K = is_stale.shape, self.sizes.num_kv_heads
        shape = scale_page_shape(P, K, S)
        out = np.full(shape, np.nan, np.float32)
        rows, lanes = (np.asarray(cells) for cells in scale_cells(K, shape[1], S))
        for row, lane in zip(rows, lanes, strict=True):
            values = rng.uniform(0.005, 0.05, (P, S)).astype(np.float32)
            out[:, row, lane : lane + S] = np.where(is_stale, np.nan, values)
        return out

    def _call(
        self,
        backend: str,
        target: Target,
        q: jax.Array,
        pages: KVPages,
        metadata: AttentionMetadata,
        sinks: jax.Array | None,
        k_scale: jax.Array,
        v_scale: jax.Array,
    ) -> jax.Array:
        """Plan a step, and attend, as a layer does."""
        shape = dataclasses.replace(self.sizes, num_rows=metadata.kv_len.shape[0])
        planned = plan_attention(metadata, q.shape[0], shape, backend=backend, target=target)
        return ragged_paged_attention(
            q,
            pages,
            planned,
            scale=self.scale,
            sliding_window=self.window,
            soft_cap=self.soft_cap,
            sinks=sinks,
            k_scale=k_scale,
            v_scale=v_scale,
            backend=backend,
            target=target,
        )

    def _expected(
        self,
        columns: int,
        q: jax.Array,
        pages: KVPages,
        metadata: AttentionMetadata,
        sinks: jax.Array | None,
        k_scale: jax.Array,
        v_scale: jax.Array,
    ) -> jax.Array:
        """Attend by the reference, a few tokens at a time: it gathers all of their pages in float32."""
        T, S = q.shape[0], self.sizes.page_size
        tables, keys = single_tokens(metadata, T, columns, S, self.window)
        count = max(1, min(T, _KEYS_AT_A_TIME // (columns * S)))
        size = -(-T // count) * count

        def attend(some: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            q, tables, keys = some
            number = jnp.int32(count)
            one_each = AttentionMetadata(jnp.arange(count + 1), keys, tables, number, number, "decode")
            return self._call("reference", Target(), q, pages, one_each, sinks, k_scale, v_scale)

        padded = (jnp.pad(x, ((0, size - T), *((0, 0),) * (x.ndim - 1))) for x in (q, tables, keys))
        out = jax.lax.map(attend, tuple(x.reshape(-1, count, *x.shape[1:]) for x in padded))
        whole: jax.Array = out.reshape(size, *q.shape[1:])[:T]
        return whole


def _kept(num_tokens: int, out: HostArray) -> list[HostArray]:
    return [flat(out[:num_tokens])] if num_tokens else []
