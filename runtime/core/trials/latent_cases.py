"""The trial of latent attention."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from palladio.pallas_kernels.latent_attention import (
    latent_attention,
    latent_page_shape,
    latent_shape,
    plan_latent_attention,
)
from palladio.pallas_kernels.latent_attention.api import CHUNK_BLOCKS
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
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

_KEYS_AT_A_TIME = 16_384  # that the reference gathers, in float32
_SPEED_KEYS = 2048  # of each request whose speed is measured


@dataclasses.dataclass(frozen=True, slots=True)
class LatentLayer:
    """Latent attention of a model's layers on one device.

    Attributes:
        num_heads: N.
        latent_size, rotated_size: L and R.
        page_size: S.
        table_width: Pmax.
        dtype: dtype of queries.
        kv_dtype: dtype of the cache.
        scale: factor on scores.
    """

    num_heads: int
    latent_size: int
    rotated_size: int
    page_size: int
    table_width: int
    dtype: DTypeLike
    kv_dtype: DTypeLike
    scale: float

    def cases(self, backend: str, target: Target) -> list[Case]:
        """Return the programs of a trial: decode steps of many and of few rows, and prefill steps.

        Args:
            backend: of which the chunks' blocks are taken.
        """
        most = self.page_size * self.table_width
        pages = jax.ShapeDtypeStruct(self._page_shape(2), self.kv_dtype)
        table = jax.ShapeDtypeStruct((CHUNK_ROWS, self.table_width), jnp.int32)
        shape = latent_shape(self.num_heads, pages, table, self.dtype)  # type: ignore[arg-type]
        block = CHUNK_BLOCKS[backend](shape, target) if backend in CHUNK_BLOCKS else 16
        decode = decode_step(self.page_size, None, most)
        chunks = chunk_steps(self.page_size, block, None, most)
        few = Step("two rows", decode.lengths[-FEW_ROWS:], FEW_ROWS)
        return [
            self._case("decode", [decode, Step("no requests", ())], ROWS),
            self._case("decode", [few], FEW_ROWS),
            self._case("prefill", chunks, CHUNK_ROWS),
        ]

    def speed_case(self) -> Case:
        """Return a decode step of long requests, to measure how fast the cache is read."""
        keys = min(_SPEED_KEYS, self.page_size * self.table_width)
        step = Step(f"{ROWS} rows of {keys} keys", ((keys - 1, 1),) * ROWS, ROWS)
        return dataclasses.replace(self._case("decode", [step], ROWS), expected=None)

    def _page_shape(self, num_pages: int) -> tuple[int, int, int]:
        return latent_page_shape(num_pages, self.page_size, self.latent_size, self.rotated_size)

    def _case(self, kind: Literal["decode", "prefill"], steps: Sequence[Step], num_rows: int) -> Case:
        num_tokens = num_rows if kind == "decode" else -(-max(step.num_tokens for step in steps) // 64) * 64 + 64
        num_pages = max(pages_of(step, self.page_size) for step in steps)
        columns = -(-max(step.most_keys for step in steps) // self.page_size)
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
            expected=functools.partial(self._expected, columns),
            inputs=inputs,
            dtype=self.dtype,
            layer=str(self),
            options=f"latents of {self.latent_size}, pages of {self.page_size}",
        )

    def _work(self, step: Step) -> Work:
        read, products = step.visible(None)
        row = self._page_shape(1)[2] * jnp.dtype(self.kv_dtype).itemsize
        sizes = 2 * self.latent_size + self.rotated_size
        rows = step.num_tokens * self.num_heads * sizes * jnp.dtype(self.dtype).itemsize
        return Work(read * row + rows, 2 * products * self.num_heads * sizes)

    def _make(
        self, step: Step, kind: Literal["decode", "prefill"], num_rows: int, num_tokens: int, num_pages: int
    ) -> tuple[Any, ...]:
        """Make both parts of queries, pages and metadata. Rows that no query may see are not numbers."""
        rng = np.random.default_rng(num_tokens + len(step.lengths))
        table = Table.of(step, num_rows, self.table_width, self.page_size, num_pages)
        queries = (
            random(rng, (num_tokens, self.num_heads, n), self.dtype) for n in (self.latent_size, self.rotated_size)
        )
        pages = random(rng, self._page_shape(num_pages), self.kv_dtype)
        pages[..., self.latent_size + self.rotated_size :] = 0
        is_stale = np.ones(pages.shape[:2], bool)
        for row, (before, new) in enumerate(step.lengths):
            positions = np.arange(before + new)
            pages_of_row = table.block_table[row][positions // self.page_size]
            is_stale[pages_of_row, positions % self.page_size] = False
        pages[is_stale] = np.nan
        return *queries, pages, metadata_of(step, table, kind)

    def _call(
        self,
        backend: str,
        target: Target,
        q_latent: jax.Array,
        q_rotated: jax.Array,
        pages: jax.Array,
        metadata: AttentionMetadata,
    ) -> jax.Array:
        """Plan a step, and attend, as a layer does."""
        shape = latent_shape(self.num_heads, pages, metadata.block_table, self.dtype)
        planned = plan_latent_attention(metadata, q_latent.shape[0], shape, backend=backend, target=target)
        return latent_attention(q_latent, q_rotated, pages, planned, scale=self.scale, backend=backend, target=target)

    def _expected(
        self, columns: int, q_latent: jax.Array, q_rotated: jax.Array, pages: jax.Array, metadata: AttentionMetadata
    ) -> jax.Array:
        """Attend by the reference, a few tokens at a time: it gathers all of their pages in float32."""
        T = q_latent.shape[0]
        tables, keys = single_tokens(metadata, T, columns, self.page_size, None)
        count = max(1, min(T, _KEYS_AT_A_TIME // (columns * self.page_size)))
        size = -(-T // count) * count

        def attend(some: tuple[jax.Array, ...]) -> jax.Array:
            q_latent, q_rotated, tables, keys = some
            number = jnp.int32(count)
            one_each = AttentionMetadata(jnp.arange(count + 1), keys, tables, number, number, "decode")
            return self._call("reference", Target(), q_latent, q_rotated, pages, one_each)

        arrays = (q_latent, q_rotated, tables, keys)
        padded = (jnp.pad(x, ((0, size - T), *((0, 0),) * (x.ndim - 1))) for x in arrays)
        out = jax.lax.map(attend, tuple(x.reshape(-1, count, *x.shape[1:]) for x in padded))
        whole: jax.Array = out.reshape(size, *q_latent.shape[1:])[:T]
        return whole


def _kept(num_tokens: int, out: HostArray) -> list[HostArray]:
    return [flat(out[:num_tokens])] if num_tokens else []
