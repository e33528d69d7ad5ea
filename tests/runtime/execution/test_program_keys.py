"""Which programs an engine can start with, and what it may run while the others are still missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.runtime.execution.program_keys import (
    TIERS,
    ProgramKey,
    background_order,
    cheapest_tier,
    decode_key,
    first_keys,
    largest_keys,
    open_buckets,
    prefill_keys,
    sample_key,
)
from palladio.runtime.scheduling.buckets import Buckets

BUCKETS = Buckets.create(max_running=64, max_step_tokens=1024, growth=4)


def all_keys(buckets, num_steps=1):
    """As StepPrograms declares them."""
    keys = [ProgramKey("tables"), ProgramKey("reset")]
    for bucket in buckets.prefill:
        keys += prefill_keys(bucket)
    for size in buckets.decode:
        if num_steps == 1:
            keys.append(decode_key(size, 1))
        else:
            keys += [ProgramKey("decode", size, tier=tier) for tier in TIERS]
    keys += [ProgramKey("sample", size, tier=tier) for size in buckets.sample for tier in TIERS]
    return list(dict.fromkeys(keys))


def test_names():
    assert str(ProgramKey("forward", 8, 256)) == "forward[bs=8,tok=256]"
    assert str(ProgramKey("sample", 8, tier="full")) == "sample[bs=8,full]"
    assert str(ProgramKey("tables")) == "tables"


@pytest.mark.parametrize("num_steps", [1, 4])
def test_the_first_programs_are_few_and_can_serve(num_steps):
    first = first_keys(BUCKETS, num_steps, splits_prompts=True)
    assert len(first) == len(set(first)) == 6
    assert set(first) <= set(all_keys(BUCKETS, num_steps))
    opened = open_buckets(BUCKETS, num_steps, set(first).__contains__)
    assert (opened.max_requests, opened.max_prefill_tokens) == (8, 256)
    assert opened.max_prefill_requests >= opened.max_requests


def test_prompts_that_are_never_split_need_the_largest_step_at_once():
    opened = open_buckets(BUCKETS, 1, set(first_keys(BUCKETS, 1, splits_prompts=False)).__contains__)
    assert opened.max_prefill_tokens == BUCKETS.max_prefill_tokens


def test_one_shape_is_all_or_nothing():
    buckets = Buckets.create_one(max_running=16, max_step_tokens=64)
    first = first_keys(buckets, 1, splits_prompts=True)
    assert open_buckets(buckets, 1, set(first).__contains__) == buckets


@given(
    max_running=st.integers(1, 300),
    max_step_tokens=st.integers(1, 9000),
    growth=st.sampled_from([2, 4]),
    num_steps=st.sampled_from([1, 3]),
    splits_prompts=st.booleans(),
)
def test_from_the_first_programs_on_buckets_only_grow_and_always_fit(
    max_running, max_step_tokens, growth, num_steps, splits_prompts
):
    buckets = Buckets.create(max_running=max_running, max_step_tokens=max(max_step_tokens, max_running), growth=growth)
    keys = all_keys(buckets, num_steps)
    first = first_keys(buckets, num_steps, splits_prompts=splits_prompts)
    order = background_order(keys, first)
    assert sorted(map(str, [*first, *order])) == sorted(map(str, keys))
    built = set(first)
    before = open_buckets(buckets, num_steps, built.__contains__)
    for key in order:
        built.add(key)
        opened = open_buckets(buckets, num_steps, built.__contains__)
        assert opened.max_requests >= before.max_requests >= 1
        assert opened.max_prefill_tokens >= before.max_prefill_tokens
        for count in {1, opened.max_requests // 2 + 1, opened.max_requests}:  # every step that is planned has a bucket
            assert opened.pick_decode(count) == opened.pick_sample(count)
            opened.pick_prefill(opened.max_prefill_tokens, min(count, opened.max_prefill_requests))
        before = opened
    assert before == buckets


def test_more_requests_come_before_less_padding_and_cheaper_sampling():
    first = first_keys(BUCKETS, 1, splits_prompts=True)
    order = background_order(all_keys(BUCKETS), first)
    larger, smaller, cheap = (
        order.index(key) for key in (sample_key(64), decode_key(1, 1), ProgramKey("sample", 8, tier="greedy"))
    )
    assert larger < smaller < cheap


def test_the_largest_programs():
    assert set(largest_keys(BUCKETS, 1)) == {
        ProgramKey("forward", 64, 1024),
        ProgramKey("score", 0, 1024),
        ProgramKey("forward", 64),
        ProgramKey("sample", 64, tier="full"),
    }


def test_a_tier_is_replaced_by_one_that_does_more_never_by_one_that_does_less():
    assert cheapest_tier("greedy", {"full"}.__contains__) == "full"
    assert cheapest_tier("greedy", {"random", "full"}.__contains__) == "random"
    assert cheapest_tier("random", {"greedy", "full"}.__contains__) == "full"
    assert cheapest_tier("full", {"greedy", "random"}.__contains__) == "full"  # it is built when it is called
