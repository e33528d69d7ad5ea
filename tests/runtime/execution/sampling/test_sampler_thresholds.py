"""Which tokens top_k, top_p and min_p keep, against sorting."""

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import numpy as np

from palladio.runtime.execution.sampling.draws import largest_threshold, ordered_image, search
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from tests.properties import examples
from tests.runtime.execution.sampling.sampler_oracle import jit_processed, make_batch

float_rows = hypothesis.extra.numpy.arrays(
    np.float32,
    (3, 24),
    elements=st.one_of(
        st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False),
        st.sampled_from([-np.inf, -0.0, 0.0, 1.0, float(np.nextafter(np.float32(1), np.float32(2)))]),
    ),
)
jit_threshold = jax.jit(largest_threshold)
jit_search = jax.jit(search, static_argnames=("digit_bits", "unrolled"))
jit_image = jax.jit(ordered_image)


@examples(150)
@hypothesis.given(float_rows)
def test_image_keeps_order_and_ties(values):
    image = np.asarray(jit_image(values)).astype(np.int64)
    sign = (values[:, :, None] > values[:, None, :]).astype(int) - (values[:, :, None] < values[:, None, :])
    np.testing.assert_array_equal(np.sign(image[:, :, None] - image[:, None, :]), sign)


@examples(60)
@hypothesis.given(
    float_rows,
    hypothesis.extra.numpy.arrays(np.int32, (3, 24), elements=st.integers(0, 2**25)),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_every_platforms_search_finds_the_largest_threshold(values, masses, shares, used):
    image = np.asarray(jit_image(values))
    enough = np.maximum(1, [int(s * m.sum()) for s, m in zip(shares, masses, strict=True)]).astype(np.int32)
    masses[:, 0] = np.maximum(masses[:, 0], 1)
    lowest = np.full(3, -(2**31), np.int32)
    actual = np.asarray(jit_threshold(image, masses, enough, lowest, np.array(used)))
    forms = [(digit_bits, unrolled) for digit_bits in (1, 3, 4) for unrolled in (False, True)]
    found = [jit_search(image, masses, enough, np.array(used), digit_bits=bits, unrolled=way) for bits, way in forms]
    for i in range(3):
        fitting = [t for t in image[i] if masses[i][image[i] >= t].sum() >= enough[i]]
        assert actual[i] == (max(fitting) if used[i] else lowest[i])
        assert not used[i] or {int(form[i]) for form in found} == {max(fitting)}


@examples(50)
@hypothesis.given(
    float_rows,
    st.integers(-1, 30),
    st.floats(1 / 64, 1.0, width=32),
    st.floats(0.0, 1.0, width=32),
    st.floats(0.05, 100.0),
)
def test_filters_keep_a_prefix_of_the_sorted_tokens(values, top_k, top_p, min_p, temperature):
    values[:, 0] = 0.5  # at least one finite
    params = {"top_k": max(top_k, 0) if top_k != 1 else 2, "top_p": top_p, "min_p": min_p, "temperature": temperature}
    batch = make_batch(params, params, params)
    scores = np.asarray(jit_processed(values, SamplerState.allocate(2, 24), batch, tier="random"))
    for row, score in zip(values, scores, strict=True):
        kept = np.isfinite(score)
        assert kept[row == row.max()].all()
        dropped = ~kept & np.isfinite(row)
        # what is kept is above all that is dropped (a logit far below may underflow, never the reverse)
        assert not dropped.any() or row[kept].min() > row[dropped].max()
        if 0 < params["top_k"] < len(row):
            assert kept.sum() <= (row >= np.sort(row)[-params["top_k"]]).sum()
        with np.errstate(over="ignore"):
            odds = np.exp((row.astype(np.float64) - row.max()) / np.float32(temperature))
        assert (odds[kept] >= min_p * (1 - 1e-5)).all()
        within_k = odds * (row >= np.sort(row)[-params["top_k"]]) if 0 < params["top_k"] < len(row) else odds
        if min_p == 0:
            assert within_k[kept].sum() >= top_p * within_k.sum() * (1 - 1e-6)
        next_lowest = row > row[kept].min()
        if next_lowest.any() and top_p < 1:
            assert within_k[next_lowest].sum() < top_p * within_k.sum() * (1 + 1e-6) + 1e-6


def test_ties_share_a_fate():
    logits = np.array([[1, 3, 2, 2, 2, -0.0, 0.0, -1]], np.float32)
    state = SamplerState.allocate(2, 8)

    def kept(**params):
        scores = jit_processed(logits, state, make_batch(params), tier="random")[0]
        return np.flatnonzero(np.isfinite(scores)).tolist()

    assert kept(top_k=2) == [1, 2, 3, 4]
    assert kept(top_k=6) == [0, 1, 2, 3, 4, 5, 6]
    assert kept(top_p=0.5) == [1, 2, 3, 4]
    assert kept(top_p=1e-9) == [1]
