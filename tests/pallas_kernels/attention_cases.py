"""The attention cases that every backend runs, and their oracle: numpy, float64, one token at a time."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    KVPages,
    ScaledPages,
    ragged_paged_attention,
    scale_page_shape,
)
from palladio.pallas_kernels.target import Target


@dataclasses.dataclass(frozen=True)
class Case:
    """Lengths are (cached before, new) tokens of each request; decode when every request has one new token."""

    name: str
    lengths: tuple[tuple[int, int], ...]
    kind: str = "prefill"
    num_decodes: int = 0  # of a prefill case
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 64
    page_size: int = 16
    table_width: int = 24
    padding_rows: int = 0
    padding_tokens: int = 0
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    kv_dtype: str = "float32"  # float8: with scales; int8: with one for each row

    def __str__(self) -> str:
        return self.name


S = 16
# Of kernels that are interpreted, where a case takes seconds: together they have each trait, and most pairs of two.
QUICK = ("small", "much padding", "decode, window", "everything")
SIZES = (  # N, K, H
    *((1, 1, 16), (8, 1, 16), (14, 2, 64), (6, 2, 96), (4, 4, 128)),
    *((10, 2, 128), (12, 3, 80), (16, 1, 192), (4, 2, 256)),
)
CASES = [
    Case("one token", ((0, 1),)),
    Case("page edges", tuple((0, n) for n in (1, S - 1, S, S + 1, 2 * S, 2 * S + 1)), padding_rows=2, padding_tokens=9),
    Case("chunked", ((S, S), (5, 11), (3 * S - 1, 2), (40, 60)), padding_tokens=3),
    Case("several blocks", ((0, 150), (7, 129), (0, 128), (200, 3)), padding_rows=1, padding_tokens=22),
    Case("mixed with decode", ((30, 1), (0, 33), (15, 1), (16, 1), (2, 7)), padding_rows=3, padding_tokens=5),
    Case("mixed", ((30, 1), (0, 1), (150, 1), (0, 33), (2, 140)), num_decodes=3, padding_rows=2, padding_tokens=5),
    Case("mixed, window", ((60, 1), (15, 1), (16, 1), (2, 70)), num_decodes=2, padding_tokens=3, window=20),
    Case("mixed, only decodes", ((30, 1), (0, 1), (150, 1)), num_decodes=3, padding_rows=1, padding_tokens=4),
    Case("rows of one tile", ((30, 1), (4, 3), (0, 2), (9, 1), (0, 20), (7, 5)), num_decodes=1, padding_tokens=6),
    Case("much padding", ((9, 1), (0, 20)), num_decodes=1, padding_rows=1, padding_tokens=150),
    Case("full table", ((0, 64), (63, 1)), table_width=4),
    Case("table of one page", ((0, 16), (3, 2)), table_width=1),
    Case("odd pages", ((0, 50), (9, 13)), page_size=7),
    Case("pages of one token", ((0, 12), (5, 6)), page_size=1),
    Case("large pages", ((0, 200), (100, 90)), page_size=256, table_width=3),
    Case("empty", (), padding_rows=2, padding_tokens=8),
    Case("window", ((0, 100), (150, 40), (0, 3)), window=20, padding_tokens=4),
    Case("pages before the window", ((200, 40),), window=20),
    Case("window of one", ((0, 20), (17, 4)), window=1),
    Case("soft cap", ((0, 40), (10, 10)), soft_cap=5.0),
    Case("sinks", ((0, 40), (60, 10)), num_heads=6, sinks=True, padding_tokens=2),
    Case("sinks, window, mixed", ((60, 1), (2, 70)), num_decodes=1, sinks=True, window=20),
    Case("decode, sinks", tuple((n - 1, 1) for n in (1, 200, 16)), kind="decode", num_heads=14, sinks=True),
    Case("window of a page and a bit", ((0, 90), (150, 40)), window=S + 1, num_decodes=0),
    Case(
        "everything",
        ((40, 1), (9, 60)),
        num_decodes=1,
        window=30,
        soft_cap=4.0,
        sinks=True,
        kv_dtype="int8",
        page_size=32,
    ),
    *(
        Case(f"{kind}, {dtype}", lengths, kind=kind, kv_dtype=dtype, page_size=32, head_size=128)
        for kind, lengths in (("prefill", ((0, 37), (60, 5))), ("decode", ((66, 1), (0, 1))))
        for dtype in ("float8_e4m3fn", "float8_e5m2", "int8")
    ),
    *(  # several heads' scales to a row of 128 lanes, one, and rows that are not full
        Case(f"int8, {heads} heads, pages of {size}", lengths, num_decodes=1, kv_dtype="int8", page_size=size, **more)
        for heads, size, more in (
            (3, 32, {"num_heads": 6, "num_kv_heads": 3}),
            (8, 64, {"num_heads": 8, "num_kv_heads": 8, "window": 50}),
            (2, 128, {"sinks": True}),
        )
        for lengths in (((170, 1), (30, 110)),)
    ),
    Case("int8, odd pages", ((0, 50), (9, 13)), page_size=7, kv_dtype="int8"),
    Case("decode", tuple((n - 1, 1) for n in (1, 2, S - 1, S, S + 1, 130, 384)), kind="decode"),
    Case("decode, padded", tuple((n - 1, 1) for n in (5, 300)), kind="decode", padding_rows=6),
    Case("decode, window", tuple((n - 1, 1) for n in (5, 300, 17, 129)), kind="decode", padding_rows=1, window=30),
    Case("decode, soft cap", tuple((n - 1, 1) for n in (9, 200)), kind="decode", soft_cap=3.0),
    Case("decode, odd pages", tuple((n - 1, 1) for n in (9, 160)), kind="decode", page_size=7),
    Case("decode, empty", (), kind="decode", padding_rows=4),
    *(
        Case(f"{kind}, N={n} K={k} H={h}", lengths, kind=kind, num_heads=n, num_kv_heads=k, head_size=h)
        for kind, lengths in (("prefill", ((0, 37), (20, 5))), ("decode", ((36, 1), (0, 1))))
        for n, k, h in (
            (1, 1, 16),
            (8, 1, 16),
            (14, 2, 64),
            (6, 2, 96),
            (4, 4, 128),
            (10, 2, 128),
            (12, 3, 80),
            (16, 1, 192),
            (4, 2, 256),
        )
    ),
]


@dataclasses.dataclass(frozen=True)
class Data:
    q: npt.NDArray[np.float32]
    kv_pages: npt.NDArray[np.float32]
    query_start: npt.NDArray[np.int32]
    kv_len: npt.NDArray[np.int32]
    block_table: npt.NDArray[np.int32]
    num_requests: int
    sinks: npt.NDArray[np.float32] | None  # [N]
    k_scale: float
    v_scale: float
    scales: npt.NDArray[np.float32] | None  # [P, 2, K, S], of int8
    expected: npt.NDArray[np.float64]  # real rows only


def make(case: Case) -> Data:
    """Make random pages in random order. If there is NaN for the dtype, rows that no query may see are NaN: page 0,
    those beyond the end, and pages before the window of a request's first query, which it no longer owns."""
    rng = np.random.default_rng(len(case.name))
    N, K, H, size = case.num_heads, case.num_kv_heads, case.head_size, case.page_size
    dtype = jnp.dtype(case.kv_dtype)
    k_scale, v_scale = (0.5, 2.0) if case.kv_dtype.startswith("float8") else (1.0, 1.0)
    half = 64 if H <= 64 else -(-H // 128) * 128
    totals = [before + new for before, new in case.lengths]
    needed = [-(-total // size) for total in totals]
    order = rng.permutation(sum(needed)) + 1
    kv_pages = np.full((sum(needed) + 1, K, size, 2 * half), 77 if dtype == jnp.int8 else np.nan, dtype)
    scales = np.full((sum(needed) + 1, 2, K, size), np.nan, np.float32) if dtype == jnp.int8 else None
    B = len(totals) + case.padding_rows
    table = np.zeros((B, case.table_width), np.int32)
    sequences = []
    for row, (total, count) in enumerate(zip(totals, needed, strict=True)):
        pages, order = order[:count], order[count:]
        table[row, :count] = pages
        k, v = rng.normal(size=(2, total, K, H)).astype(np.float32)
        if scales is not None:
            by_row = rng.uniform(0.005, 0.05, size=(2, total, K, 1)).astype(np.float32)
            k, v = np.clip(np.round(np.stack([k, v]) / by_row), -127, 127).astype(dtype)
            sequences.append((k * by_row[0].astype(float), v * by_row[1].astype(float)))
        else:
            k, v = (k / k_scale).astype(dtype), (v / v_scale).astype(dtype)
            sequences.append((k.astype(float) * k_scale, v.astype(float) * v_scale))
        first = max(0, case.lengths[row][0] - case.window + 1) if case.window else 0
        for position in range(first // size * size, total):  # pages that have left the window are others' by now
            cell = kv_pages[pages[position // size], :, position % size]
            cell[:] = 0
            cell[:, :H], cell[:, half : half + H] = k[position], v[position]
            if scales is not None:
                scales[pages[position // size], :, :, position % size] = by_row[:, position, :, 0]
    new = [n for _, n in case.lengths]
    tokens = sum(new)
    starts = np.concatenate([np.cumsum([0, *new]), np.full(case.padding_rows, tokens)]).astype(np.int32)
    T = B if case.kind == "decode" else tokens + case.padding_tokens
    q = rng.normal(size=(T, N, H)).astype(np.float32)
    sinks = rng.normal(size=N).astype(np.float32) if case.sinks else None
    expected = [
        _one(q[starts[row] + j].astype(float), *sequences[row], before + j, case, sinks)
        for row, (before, count) in enumerate(case.lengths)
        for j in range(count)
    ]
    kv_len = np.array(totals + [0] * case.padding_rows, np.int32)
    return Data(
        q,
        kv_pages,
        starts,
        kv_len,
        table,
        len(totals),
        sinks,
        k_scale,
        v_scale,
        scales,
        np.array(expected).reshape(tokens, N, H),
    )


def pages_of(data: Data, case: Case, dtype: str) -> KVPages:
    """The cache of a case, whose numbers are of that dtype if they are not of 8 bits."""
    rows = jnp.asarray(data.kv_pages, dtype if case.kv_dtype == "float32" else None)
    return rows if data.scales is None else ScaledPages(rows, jnp.asarray(packed_scales(data.scales)))


def packed_scales(scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Pack scales [P, 2, K, S] as in the cache, with NaN where there are none."""
    P, _, K, S = scales.shape
    _, R, L = scale_page_shape(P, K, S)
    out = np.full((P, R, L), np.nan, np.float32)
    for number in range(2 * K):
        first = number // R * S
        out[:, number % R, first : first + S] = scales[:, number // K, number % K]
    return out


def metadata_of(data: Data, case: Case) -> AttentionMetadata:
    """Return the op's metadata for a case."""
    decodes = data.num_requests if case.kind == "decode" else case.num_decodes
    arrays = (data.query_start, data.kv_len, data.block_table, np.int32(data.num_requests), np.int32(decodes))
    return AttentionMetadata(*map(jnp.asarray, arrays), kind=case.kind)


def attend(case: Case, data: Data, backend: str, target: Target = Target(), dtype: str = "float32") -> npt.NDArray:
    """The op's output [T, N, H] for a case, jitted."""
    return compiled(case, data, backend, target, dtype)(data)


def compiled(
    case: Case, data: Data, backend: str, target: Target = Target(), dtype: str = "float32"
) -> Callable[[Data], npt.NDArray]:
    """Return `attend` for any data of those shapes and scales, compiled once."""

    def call(q: jax.Array, kv_pages: KVPages, metadata: AttentionMetadata, sinks: jax.Array | None) -> jax.Array:
        return ragged_paged_attention(
            q,
            kv_pages,
            metadata,
            scale=case.head_size**-0.5,
            sliding_window=case.window,
            soft_cap=case.soft_cap,
            sinks=sinks,
            k_scale=data.k_scale,
            v_scale=data.v_scale,
            backend=backend,
            target=target,
        )

    jitted = jax.jit(call)

    def attend_data(data: Data) -> npt.NDArray:
        args = pages_of(data, case, dtype), metadata_of(data, case), data.sinks
        return np.asarray(jitted(jnp.asarray(data.q, dtype), *args))

    return attend_data


def _one(
    q: npt.NDArray, k: npt.NDArray, v: npt.NDArray, position: int, case: Case, sinks: npt.NDArray | None
) -> npt.NDArray:
    """One token: q [N, H], k and v [C, K, H] → [N, H]."""
    first = 0 if case.window is None else max(0, position - case.window + 1)
    out = np.empty_like(q)
    for head in range(case.num_heads):
        kv_head = head // (case.num_heads // case.num_kv_heads)
        keys, values = (x[first : position + 1, kv_head].astype(float) for x in (k, v))
        scores = keys @ q[head] * case.head_size**-0.5
        if case.soft_cap is not None:
            scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        sink = -np.inf if sinks is None else float(sinks[head])
        peak = max(scores.max(), sink)
        weights = np.exp(scores - peak)
        out[head] = weights @ values / (weights.sum() + np.exp(sink - peak))
    return out


def interpreted(cases: Sequence[Case]) -> list[Any]:
    """Return parameters of a test that interprets a kernel, which takes seconds a case: all but a few are slow."""
    return [case if case.name in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in cases]
