import itertools
import math

import pytest

from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import MAX_PRIORITY, MAX_SALT_LENGTH, RequestOptions

BY_PRIORITY = SchedulerConfig(schedule_policy="priority")


def test_nothing_given():
    assert RequestOptions.of() == RequestOptions() == RequestOptions(cache_salt=None, priority=0, timeout=None)


def test_extra_key_is_another_name_of_the_salt():
    assert RequestOptions.of(cache_salt="a").cache_salt == "a"
    assert RequestOptions.of(extra_key="a") == RequestOptions.of(cache_salt="a")


def test_no_two_pairs_of_salts_make_the_same():
    names = ["a", "b", "ab", "a,b", '["a", "b"]', '["a"]', '"a", "b"', "["]
    alone = [RequestOptions.of(cache_salt=name).cache_salt for name in names]
    pairs = [RequestOptions.of(cache_salt=a, extra_key=b).cache_salt for a, b in itertools.product(names, names)]
    assert len({*alone, *pairs}) == len(names) + len(names) ** 2
    assert None not in (*alone, *pairs)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": "x" * (MAX_SALT_LENGTH + 1)}, "cache_salt"),
        ({"extra_key": ""}, "extra_key"),
        ({"extra_key": ["a"]}, "extra_key"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"priority": MAX_PRIORITY + 1}, "priority"),
        ({"priority": -MAX_PRIORITY - 1}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"routed_dp_rank": -1}, "routed_dp_rank"),
        ({"routed_dp_rank": "0"}, "routed_dp_rank"),
    ],
)
def test_wrong_values_are_named(fields, param):
    with pytest.raises(InvalidRequestError, match=f"^{param} must be") as caught:
        RequestOptions.of(**fields)
    assert caught.value.param == param


def test_a_priority_needs_the_policy():
    options = RequestOptions(priority=-3)
    for policy in ("fcfs", "lpm", "random"):
        with pytest.raises(InvalidRequestError, match="--schedule-policy priority") as caught:
            options.resolve(SchedulerConfig(schedule_policy=policy))
        assert caught.value.param == "priority"
    assert options.resolve(BY_PRIORITY) == options
    assert RequestOptions().resolve(SchedulerConfig()) == RequestOptions()


@pytest.mark.parametrize(("num_ranks", "words"), [(1, "one data-parallel rank, 0"), (2, "data-parallel ranks 0 … 1")])
def test_a_group_of_devices_must_be_there(num_ranks, words):
    last = RequestOptions.of(routed_dp_rank=num_ranks - 1)
    assert last.resolve(SchedulerConfig(), num_ranks).dp_rank == num_ranks - 1
    with pytest.raises(InvalidRequestError, match=words) as caught:
        RequestOptions.of(routed_dp_rank=num_ranks).resolve(SchedulerConfig(), num_ranks)
    assert caught.value.param == "routed_dp_rank"


def test_the_servers_timeout_is_the_default():
    limited = SchedulerConfig(request_timeout=30.0)
    assert RequestOptions().resolve(limited).timeout == 30.0
    assert RequestOptions(timeout=60.0).resolve(limited).timeout == 60.0
    assert RequestOptions(background=True).resolve(limited).timeout is None, "it may wait behind others for long"
    assert RequestOptions(background=True, timeout=60.0).resolve(limited).timeout == 60.0
    assert RequestOptions(timeout=60.0).resolve(SchedulerConfig()).timeout == 60.0
