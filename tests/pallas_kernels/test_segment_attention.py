"""Attention of packed segments: every backend against numpy in float64, on one suite of cases."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.segment_attention import Segments, segment_attention
from palladio.pallas_kernels.target import Target

TPU, GPU = Target(interpret="plain"), Target("gpu", "9.0", interpret="plain")


@dataclasses.dataclass(frozen=True)
class Case:
    """A pack of segments, and a layer.

    Attributes:
        sizes: tokens of each segment; 0: an empty one.
        padding: tokens behind the last.
        heads: query heads, kv heads, head size.
        most: M of the bias; None: there is none.
    """

    name: str
    sizes: tuple[int, ...]
    padding: int = 0
    heads: tuple[int, int, int] = (2, 2, 64)
    window: int | None = None
    most: int | None = None

    def __str__(self):
        return self.name


CASES = (
    Case("one", (37,)),
    Case("packed", (5, 1, 130, 64), padding=11),
    Case("empty segments", (0, 9, 0, 0, 300, 0), padding=60),
    Case("groups of a vision tower", (70, 61), heads=(4, 4, 72)),
    Case("heads of 80", (140,), padding=3, heads=(2, 2, 80)),
    Case("grouped queries", (33, 200), heads=(6, 2, 64)),
    Case("wide heads", (40, 50), heads=(2, 1, 256)),
    Case("window", (300, 3, 90), padding=20, window=17),
    Case("window of itself", (30, 20), window=0),
    Case("window over all", (50, 40), window=64),
    Case("padding alone", (0,), padding=40),
)
WITH_BIAS = (
    Case("bias", (140, 20, 3), padding=5, most=9),
    Case("bias of groups", (30, 20), heads=(4, 2, 64), most=100),
)


def inputs(case, dtype=np.float32):
    """Random operands: q, k, v, segments and the bias."""
    rng = np.random.default_rng(len(case.name))
    N, K, H = case.heads
    T = sum(case.sizes) + case.padding
    q, k, v = (jnp.asarray(rng.normal(size=(T, heads, H)), dtype) for heads in (N, K, K))
    ends = jnp.asarray(np.cumsum(case.sizes), jnp.int32)
    bias = None if case.most is None else jnp.asarray(rng.normal(size=(N, 2 * case.most + 1)), jnp.float32)
    return q, k, v, Segments.of_ends(ends, T), bias


def expected(case, q, k, v, bias):
    """The definition, segment by segment."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    N, K, H = case.heads
    out, begin = np.zeros(q.shape), 0
    for size in case.sizes:
        here = slice(begin, begin + size)
        begin += size
        for head in range(N):
            scores = q[here, head] @ k[here, head // (N // K)].T * H**-0.5
            distance = np.arange(size)[None, :] - np.arange(size)[:, None]
            if bias is not None:
                scores += np.asarray(bias)[head, np.clip(distance, -case.most, case.most) + case.most]
            if case.window is not None:
                scores[np.abs(distance) > case.window] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-1e9))
            out[here, head] = weights / weights.sum(axis=1, keepdims=True) @ v[here, head // (N // K)]
    return out


def attend(case, backend, target=Target(), dtype=np.float32):
    """What a backend gives, and the definition."""
    q, k, v, segments, bias = inputs(case, dtype)
    options = {"scale": case.heads[2] ** -0.5, "window": case.window, "bias": bias}
    call = jax.jit(lambda *args: segment_attention(*args, **options, backend=backend, target=target))
    return np.asarray(call(q, k, v, segments).astype(jnp.float32)), expected(case, q, k, v, bias)


def is_slow(case):
    return () if case.name in ("packed", "window", "groups of a vision tower") else pytest.mark.slow


@pytest.mark.parametrize("case", [*CASES, *WITH_BIAS], ids=str)
@pytest.mark.parametrize("backend", ["xla", "reference"])
def test_plain_backends_match_the_definition(case, backend):
    found, meant = attend(case, backend)
    np.testing.assert_allclose(found, meant, atol=3e-6)


@pytest.mark.parametrize("case", [pytest.param(case, marks=is_slow(case)) for case in CASES], ids=str)
@pytest.mark.parametrize(("backend", "target"), [("tpu", TPU), ("gpu_triton", GPU)])
def test_kernels_match_the_definition(case, backend, target):
    found, meant = attend(case, backend, target)
    np.testing.assert_allclose(found, meant, atol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[1:4], ids=str)
def test_the_tpu_kernel_on_a_simulated_tpu(case):
    found, meant = attend(case, "tpu", Target(interpret="on_wait"))
    np.testing.assert_allclose(found, meant, atol=3e-6)


@pytest.mark.parametrize(("backend", "target"), [("xla", Target()), ("tpu", TPU), ("gpu_triton", GPU)])
def test_bfloat16_is_summed_in_float32(backend, target):
    found, meant = attend(CASES[1], backend, target, jnp.bfloat16)
    np.testing.assert_allclose(found, meant, atol=3e-2)


@pytest.mark.parametrize("backend", ["xla", "reference"])
def test_neighbours_change_no_bit(backend):
    """Of a segment at the same place, whatever the others hold."""
    case = Case("two", (100, 70))
    q, k, v, segments, _ = inputs(case)
    others = [x.at[100:].set(7.0) for x in (q, k, v)]
    call = jax.jit(lambda *args: segment_attention(*args, scale=0.3, backend=backend))
    first = np.asarray(call(q, k, v, segments))[:100]
    np.testing.assert_array_equal(first, np.asarray(call(*others, segments))[:100])


def test_segments_of_ends():
    found = Segments.of_ends(jnp.array([0, 2, 2, 5]), 7)
    assert found.starts.tolist() == [0, 0, 2, 2, 2, 0, 0]
    assert found.stops.tolist() == [2, 2, 5, 5, 5, 0, 0]


def test_no_array_of_all_pairs():
    """The portable backend of 4,096 tokens."""
    T = 4096
    q = jax.ShapeDtypeStruct((T, 1, 64), jnp.float32)
    bounds = jax.ShapeDtypeStruct((T,), jnp.int32)
    call = jax.jit(lambda *args: segment_attention(*args, scale=1.0, backend="xla"))
    compiled = call.lower(q, q, q, Segments(bounds, bounds)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < T * T
    assert f"[{T},{T}]" not in compiled.as_text()


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((8, 4, 64), (8, 3, 64)), {}),
        (((8, 4, 64), (7, 4, 64)), {}),
        (((8, 4, 64), (8, 4, 32)), {}),
        (((8, 4, 64), (8, 4, 64)), {"window": -1}),
        (((8, 4, 64), (8, 4, 64)), {"bias": jnp.zeros((4, 4))}),
        (((8, 4, 64), (8, 4, 64)), {"backend": "cpu_native"}),
    ],
)
def test_refuses_operands_that_do_not_fit(shapes, options):
    q, k = map(jnp.zeros, shapes)
    with pytest.raises(ValueError, match=r"fit|window|bias|backend"):
        segment_attention(q, k, k, Segments.of_ends(jnp.array([8]), 8), scale=1.0, **options)


@pytest.mark.parametrize(("backend", "target"), [("tpu", Target()), ("gpu_triton", Target("gpu", "7.5"))])
def test_kernels_refuse_other_devices(backend, target):
    with pytest.raises(NotImplementedError):
        attend(CASES[0], backend, target)


@pytest.mark.parametrize(("backend", "target"), [("tpu", TPU), ("gpu_triton", GPU)])
def test_kernels_leave_a_bias_to_xla(backend, target):
    with pytest.raises(NotImplementedError, match="bias"):
        attend(WITH_BIAS[0], backend, target)
