"""The TPU kernels of ragged paged attention, interpreted on this host, against the oracle of the one case suite."""

import numpy as np
import pytest

from palladio.pallas_kernels.target import Target
from tests.pallas_kernels.attention_cases import CASES, attend, make

RUNNABLE = [case for case in CASES if case.page_size % (8 if case.kv_dtype == "float32" else 32) == 0]
SIMULATED = ("mixed, window", "everything", "decode, padded", "decode, window", "chunked")


@pytest.mark.parametrize("case", RUNNABLE, ids=str)
def test_matches_the_oracle(case):
    _check(case, Target("tpu", "v6e", "plain"))


def _check(case, target):
    data = make(case)
    out = attend(case, data, "tpu", target)
    assert np.isfinite(out).all(), "padding or stale rows leaked"
    np.testing.assert_allclose(out[: len(data.expected)], data.expected, atol=1e-5, rtol=1e-5)
