"""The Triton kernels against the oracle, on the one suite of cases; interpreted, so that no GPU is needed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.ragged_paged_attention import ragged_paged_attention
from palladio.pallas_kernels.ragged_paged_attention.gpu import gpu_triton, triton_decode
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import DecodeBlocks
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionOptions
from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, Case, attend, interpreted, make, metadata_of

INTERPRETED = Target("gpu", "9.0", interpret="plain")


@pytest.mark.parametrize("case", interpreted(CASES), ids=str)
def test_matches_the_oracle(case):
    data = make(case)
    out = attend(case, data, "gpu_triton", INTERPRETED)
    assert out.shape == data.q.shape
    assert np.isfinite(out).all(), "padding or stale rows leaked"
    np.testing.assert_allclose(out[: len(data.expected)], data.expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "kv_dtype", "limit"),
    [
        ("prefill", "float32", 0.02),
        ("decode", "float8_e4m3fn", 0.03),
        pytest.param("prefill", "int8", 0.02, marks=pytest.mark.slow),
        pytest.param("decode", "float32", 0.02, marks=pytest.mark.slow),
        pytest.param("prefill", "float8_e4m3fn", 0.03, marks=pytest.mark.slow),
        pytest.param("decode", "int8", 0.02, marks=pytest.mark.slow),
    ],
)
def test_bfloat16_accumulates_in_float32(kind, kv_dtype, limit):
    case = Case("bf16", ((296, 1), (0, 1)), kind=kind, num_heads=14, kv_dtype=kv_dtype, page_size=32)
    data = make(case)
    out, exact = (attend(case, data, name, INTERPRETED, "bfloat16") for name in ("gpu_triton", "reference"))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(np.float32), exact.astype(np.float32), atol=limit)


@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 100])
@pytest.mark.parametrize("spare_parts", [7, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 1, 64))])
def test_the_keys_of_long_requests_are_shared_out(window, spare_parts):
    """One long request among short ones; whatever the number of parts, each key counts once."""
    lengths = tuple((n - 1, 1) for n in (3, 370, 16, 40))
    case = Case("parts", lengths, kind="decode", window=window, sinks=True, padding_rows=2)
    data, blocks = make(case), DecodeBlocks(keys=16, spare_parts=spare_parts, min_part=16)
    options = AttentionOptions(0.125, window, target=INTERPRETED, sinks=jnp.asarray(data.sinks))
    out = jax.jit(functools.partial(triton_decode.attend, blocks=blocks))(
        jnp.asarray(data.q), jnp.asarray(data.kv_pages), metadata_of(data, case), options
    )
    np.testing.assert_allclose(out[:4], data.expected, atol=3e-6, rtol=1e-5)
    assert not np.any(out[4:])


@pytest.mark.parametrize("spare_parts", [5, *(pytest.param(count, marks=pytest.mark.slow) for count in (0, 66))])
@pytest.mark.parametrize(
    "lengths",
    [
        *((0, 0), (9000, 1), (0, 131072, 7)),
        *(pytest.param(lengths, marks=pytest.mark.slow) for lengths in ((1, 1), (500,) * 12, (257, 256, 255))),
    ],
)
def test_parts_cover_every_key_once(lengths, spare_parts):
    blocks = DecodeBlocks(keys=64, spare_parts=spare_parts)
    parts = triton_decode.plan_parts(jnp.array([*lengths, 77]), jnp.int32(len(lengths)), None, blocks)
    ends = np.asarray(parts.ends)
    assert ends[-1] <= parts.request.shape[0] == len(lengths) + 1 + spare_parts
    assert ends[-1] == ends[-2], "a row beyond the real ones has parts"
    for request, length in enumerate(lengths):
        mine = slice(ends[request - 1] if request else 0, ends[request])
        assert (np.asarray(parts.request)[mine] == request).all()
        spans = [(a, b) for a, b in zip(parts.first[mine].tolist(), parts.end[mine].tolist(), strict=True) if a < b]
        assert [a for a, _ in spans] == [0, *(b for _, b in spans)][: len(spans)]
        assert (spans[-1][1] if spans else 0) == length
    if spare_parts and max(lengths) > 4 * blocks.min_part:
        assert ends[-1] >= spare_parts / 2, "the device is not filled"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": Target("cpu")}, "for GPUs, not for cpu"),
        ({"target": Target("tpu", "v6e")}, "for GPUs, not for tpu"),
        ({"target": Target("gpu", "7.5")}, "compute capability 8.0 or more, this GPU has 7.5"),
        ({"head_size": 320}, "heads of 320 exceed 256"),
        ({"kv_dtype": "int16"}, "not bfloat16 with a cache of int16"),
        ({"kv_dtype": "int8", "pages": 400_000}, "up to 2 GiB or more than 4 GiB, not 3.1"),
    ],
)
def test_says_what_it_cannot_do(change, reason):
    target, head_size = change.get("target", Target("gpu", "9.0")), change.get("head_size", 128)
    case = dataclasses.replace(CASES[0], head_size=64)
    pages = (change.get("pages", 8), 2, 16, 2 * -(-head_size // 128) * 128)
    q = jax.ShapeDtypeStruct((1, 4, head_size), jnp.bfloat16)
    kv_pages = jax.ShapeDtypeStruct(pages, jnp.dtype(change.get("kv_dtype", "bfloat16")))
    metadata = metadata_of(make(case), case)
    with pytest.raises(NotImplementedError, match=reason):
        gpu_triton.attention(q, kv_pages, metadata, AttentionOptions(1.0, target=target))


def test_a_gpu_gets_it_by_itself():
    data = make(CASES[0])
    call = functools.partial(ragged_paged_attention, scale=1.0, target=INTERPRETED)
    program = str(jax.make_jaxpr(call)(data.q, data.kv_pages, metadata_of(data, CASES[0])))
    assert "paged_prefill" in program
    assert "paged_decode_combine" in program
