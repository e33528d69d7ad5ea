"""The attention cases that every backend runs, and their oracle: numpy, float64, one token at a time."""

import dataclasses

import numpy as np
import numpy.typing as npt


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

    def __str__(self) -> str:
        return self.name


S = 16
CASES = [
    Case("one token", ((0, 1),)),
    Case("page edges", tuple((0, n) for n in (1, S - 1, S, S + 1, 2 * S, 2 * S + 1)), padding_rows=2, padding_tokens=9),
    Case("chunked", ((S, S), (5, 11), (3 * S - 1, 2), (40, 60)), padding_tokens=3),
    Case("several blocks", ((0, 150), (7, 129), (0, 128), (200, 3)), padding_rows=1, padding_tokens=22),
    Case("mixed with decode", ((30, 1), (0, 33), (15, 1), (16, 1), (2, 7)), padding_rows=3, padding_tokens=5),
    Case("mixed", ((30, 1), (0, 1), (150, 1), (0, 33), (2, 140)), num_decodes=3, padding_rows=2, padding_tokens=5),
    Case("mixed, window", ((60, 1), (15, 1), (16, 1), (2, 70)), num_decodes=2, padding_tokens=3, window=20),
    Case("mixed, only decodes", ((30, 1), (0, 1), (150, 1)), num_decodes=3, padding_rows=1, padding_tokens=4),
    Case("full table", ((0, 64), (63, 1)), table_width=4),
    Case("table of one page", ((0, 16), (3, 2)), table_width=1),
    Case("odd pages", ((0, 50), (9, 13)), page_size=7),
    Case("pages of one token", ((0, 12), (5, 6)), page_size=1),
    Case("large pages", ((0, 200), (100, 90)), page_size=256, table_width=3),
    Case("empty", (), padding_rows=2, padding_tokens=8),
    Case("window", ((0, 100), (150, 40), (0, 3)), window=20, padding_tokens=4),
    Case("window of one", ((0, 20), (17, 4)), window=1),
    Case("soft cap", ((0, 40), (10, 10)), soft_cap=5.0),
    Case("decode", tuple((n - 1, 1) for n in (1, 2, S - 1, S, S + 1, 130, 384)), kind="decode"),
    Case("decode, padded", tuple((n - 1, 1) for n in (5, 300)), kind="decode", padding_rows=6),
    Case("decode, window", tuple((n - 1, 1) for n in (5, 300, 17, 129)), kind="decode", padding_rows=1, window=30),
    Case("decode, soft cap", tuple((n - 1, 1) for n in (9, 200)), kind="decode", soft_cap=3.0),
    Case("decode, odd pages", tuple((n - 1, 1) for n in (9, 160)), kind="decode", page_size=7),
    Case("decode, empty", (), kind="decode", padding_rows=4),
    *(
        Case(f"{kind}, N={n} K={k} H={h}", lengths, kind=kind, num_heads=n, num_kv_heads=k, head_size=h)
        for kind, lengths in (("prefill", ((0, 37), (20, 5))), ("decode", ((36, 1), (0, 1))))
        for n, k, h in ((1, 1, 16), (8, 1, 16), (14, 2, 64), (6, 2, 96), (4, 4, 128), (10, 2, 128), (12, 3, 80))
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
    expected: npt.NDArray[np.float64]  # real rows only


def make(case: Case) -> Data:
    """Random pages in random order; whatever must not be read (page 0, rows beyond the end) is NaN."""
    rng = np.random.default_rng(len(case.name))
    N, K, H, size = case.num_heads, case.num_kv_heads, case.head_size, case.page_size
    half = 64 if H <= 64 else -(-H // 128) * 128
    totals = [before + new for before, new in case.lengths]
    needed = [-(-total // size) for total in totals]
    order = rng.permutation(sum(needed)) + 1
    kv_pages = np.full((sum(needed) + 1, K, size, 2 * half), np.nan, np.float32)
    B = len(totals) + case.padding_rows
    table = np.zeros((B, case.table_width), np.int32)
    sequences = []
    for row, (total, count) in enumerate(zip(totals, needed, strict=True)):
        pages, order = order[:count], order[count:]
        table[row, :count] = pages
        k, v = rng.normal(size=(2, total, K, H)).astype(np.float32)
        sequences.append((k, v))
        for position in range(total):
            cell = kv_pages[pages[position // size], :, position % size]
            cell[:, :H], cell[:, half : half + H] = k[position], v[position]
    new = [n for _, n in case.lengths]
    tokens = sum(new)
    starts = np.concatenate([np.cumsum([0, *new]), np.full(case.padding_rows, tokens)]).astype(np.int32)
    T = B if case.kind == "decode" else tokens + case.padding_tokens
    q = rng.normal(size=(T, N, H)).astype(np.float32)
    expected = [
        _one(q[starts[row] + j].astype(float), *sequences[row], before + j, case)
        for row, (before, count) in enumerate(case.lengths)
        for j in range(count)
    ]
    kv_len = np.array(totals + [0] * case.padding_rows, np.int32)
    return Data(q, kv_pages, starts, kv_len, table, len(totals), np.array(expected).reshape(tokens, N, H))


def _one(q: npt.NDArray, k: npt.NDArray, v: npt.NDArray, position: int, case: Case) -> npt.NDArray:
    """One token: q [N, H], k and v [C, K, H] → [N, H]."""
    first = 0 if case.window is None else max(0, position - case.window + 1)
    out = np.empty_like(q)
    for head in range(case.num_heads):
        kv_head = head // (case.num_heads // case.num_kv_heads)
        keys, values = (x[first : position + 1, kv_head].astype(float) for x in (k, v))
        scores = keys @ q[head] * case.head_size**-0.5
        if case.soft_cap is not None:
            scores = case.soft_cap * np.tanh(scores / case.soft_cap)
        weights = np.exp(scores - scores.max())
        out[head] = weights @ values / weights.sum()
    return out
