"""The cases that every backend of latent attention runs, and their oracle: numpy, float64, one token at a time."""

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.latent_attention import latent_attention, latent_page_shape
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, Case, Data, make, metadata_of

L, R, SCALE = 40, 8, 0.2
# Which tokens see which rows: what windows, caps, sinks and cache dtypes do is not of latents.
TRAITS = ("window", "cap", "sinks", "float8", "int8", "everything", "=")
LAYOUTS = [case for case in CASES if not any(trait in case.name for trait in TRAITS)]


def rows_and_queries(data: Data, num_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Pages in which rows that must not be seen are NaN, and queries."""
    rng = np.random.default_rng(5)
    num_pages, _, size, _ = data.kv_pages.shape
    pages = np.full(latent_page_shape(num_pages, size, L, R), np.nan, np.float32)
    for table, total in zip(data.block_table, data.kv_len, strict=True):
        for position in range(total):
            row = pages[table[position // size], position % size]
            row[:] = 0.0
            row[: L + R] = rng.standard_normal(L + R)
    return pages, rng.standard_normal((data.q.shape[0], num_heads, L + R)).astype(np.float32)


def oracle(data: Data, pages: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Token by token."""
    found, size = [], pages.shape[1]
    for request in range(data.num_requests):
        first, last = data.query_start[request : request + 2]
        for token in range(first, last):
            seen = data.kv_len[request] - (last - token) + 1
            rows = pages[data.block_table[request, : -(-seen // size)]].reshape(-1, pages.shape[2])[:seen, : L + R]
            scores = queries[token].astype(float) @ rows.T.astype(float) * SCALE
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            found.append(weights / weights.sum(-1, keepdims=True) @ rows[:, :L])
    return np.array(found)


def attend(
    case: Case, data: Data, pages: np.ndarray, queries: np.ndarray, backend: str, target: Target = Target()
) -> np.ndarray:
    def call(q: jax.Array, pages: jax.Array, metadata: AttentionMetadata) -> jax.Array:
        parts = q[..., :L], q[..., L:]
        return latent_attention(*parts, pages, metadata, scale=SCALE, backend=backend, target=target)

    return np.asarray(jax.jit(call)(jnp.asarray(queries), jnp.asarray(pages), metadata_of(data, case)))


def error(case: Case, backend: str, target: Target, num_heads: int = 3) -> float:
    """The largest one of a real row; NaN where anything at all is not finite."""
    data = make(case)
    pages, queries = rows_and_queries(data, num_heads)
    out = attend(case, data, pages, queries, backend, target)
    if not np.isfinite(out).all():
        return np.nan
    expected = oracle(data, pages, queries).reshape(-1, num_heads, L)
    return float(np.abs(out[: len(expected)] - expected).max(initial=0.0))
