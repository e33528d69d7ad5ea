from typing import Any

import pytest

from palladio.runtime.scheduling.batch.buckets import Buckets


@pytest.mark.parametrize("growth", [2, 4])
@pytest.mark.parametrize("max_running", [1, 3, 64, 200])
@pytest.mark.parametrize("max_step_tokens", [1, 15, 16, 100, 8192])
def test_every_size_up_to_the_limits_has_a_bucket(growth: int, max_running: int, max_step_tokens: int) -> None:
    buckets = Buckets.create(max_running=max_running, max_step_tokens=max_step_tokens, growth=growth)
    assert buckets.decode[-1] == max_running
    assert buckets.prefill[-1].num_tokens == max_step_tokens
    for count in range(1, max_running + 1):
        size = buckets.pick_decode(count)
        assert count <= size < max(count * 2, 2)
    for tokens in {1, max_step_tokens // 2 + 1, max_step_tokens}:
        for requests in {1, min(tokens, buckets.max_prefill_requests)}:
            bucket = buckets.pick_prefill(tokens, requests)
            assert bucket.num_tokens >= tokens
            assert bucket.num_requests >= requests


def test_fine_sizes_pad_at_most_a_third_where_padding_costs() -> None:
    buckets = Buckets.create(max_running=64, max_step_tokens=1024, growth=4, is_fine=True)
    assert buckets.decode == buckets.sample == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert [bucket.num_tokens for bucket in buckets.prefill] == [16, 32, 64, 128, 256, 512, 1024]
    assert {bucket.num_requests for bucket in buckets.prefill} <= set(buckets.sample)
    odd = Buckets.create(max_running=100, max_step_tokens=700, growth=4, is_fine=True)
    assert odd.decode == (1, 2, 4, 8, 16, 24, 32, 48, 64, 82, 100)
    assert [bucket.num_tokens for bucket in odd.prefill] == [16, 32, 64, 128, 256, 512, 700]
    assert Buckets.create(max_running=64, max_step_tokens=64, growth=4, is_fine=True, decode=(8,)).decode == (8, 64)


def test_prefill_buckets_sample_in_decode_sizes() -> None:
    """So that one set of sampling programs serves both kinds of step."""
    buckets = Buckets.create(max_running=200, max_step_tokens=8192, growth=4)
    assert {bucket.num_requests for bucket in buckets.prefill} <= set(buckets.decode)


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({}, (1, 2, 4, 8, 16, 32, 64, 100)),
        ({"min_decode": 2}, (2, 4, 8, 16, 32, 64, 100)),
        ({"min_decode": 2, "max_decode": 1}, (1, 100)),
        ({"min_decode": 2, "decode": (1, 8)}, (1, 8, 100)),
        ({"decode": (64, 1, 8, 8)}, (1, 8, 64, 100)),
        ({"decode": (8, 512)}, (8, 100)),
        ({"decode": ()}, (100,)),
        ({"max_decode": 16}, (1, 2, 4, 8, 16, 100)),
        ({"max_decode": 512}, (1, 2, 4, 8, 16, 32, 64, 100)),
        ({"decode": (1, 4, 32), "max_decode": 8}, (1, 4, 100)),
    ],
)
def test_sizes_that_are_asked_for(asked: dict[str, Any], sizes: tuple[int, ...]) -> None:
    buckets = Buckets.create(max_running=100, max_step_tokens=512, growth=2, **asked)
    assert buckets.decode == buckets.sample == sizes


@pytest.mark.parametrize(("max_running", "sizes"), [(1, (1,)), (2, (2,)), (3, (2, 3)), (4, (2, 4))])
def test_a_smallest_decode_step_is_no_larger_than_what_may_run(max_running: int, sizes: tuple[int, ...]) -> None:
    buckets = Buckets.create(max_running=max_running, max_step_tokens=16, growth=2, min_decode=2)
    assert buckets.decode == buckets.sample == sizes
    assert [buckets.pick_decode(count) for count in (1, max_running)] == [sizes[0], max_running]
