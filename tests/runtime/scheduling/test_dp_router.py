"""Which data-parallel rank gets a request."""

import pytest

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.scheduling.dp_router import MAX_REMEMBERED, DataParallelRouter


def never():
    raise AssertionError("not asked for")


def choose(router, loads, cached=(0, 0, 0), prompt="p"):
    return router.choose(lambda: loads, lambda: cached, lambda: prompt)


def test_round_robin_asks_for_nothing() -> None:
    router = DataParallelRouter("round_robin", 3, prefix_slack=0)
    assert [router.choose(never, never, never) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_shortest_queue_and_among_equals_one_after_the_other() -> None:
    router = DataParallelRouter("shortest_queue", 3, prefix_slack=0)
    assert router.choose(lambda: [5, 4, 9], never, never) == 1
    assert [router.choose(lambda: [7, 7, 7], never, never) for _ in range(4)] == [2, 0, 1, 2]


def test_the_longest_cached_prefix_unless_its_group_is_far_busier() -> None:
    router = DataParallelRouter("prefix", 3, prefix_slack=100)
    assert choose(router, [90, 0, 50], [32, 16, 0]) == 0
    assert choose(router, [100, 0, 50], [32, 16, 0]) == 0
    assert choose(router, [101, 0, 50], [32, 16, 0]) == 1, "the shortest queue"
    assert choose(router, [90, 80, 0], [32, 32, 0]) == 1, "of two that have it, the less busy one"


def test_samples_of_one_prompt_stay_together_before_any_of_it_is_cached() -> None:
    router = DataParallelRouter("prefix", 3, prefix_slack=100)
    first = choose(router, [0, 0, 0], prompt="a")
    assert choose(router, [0, 0, 0], prompt="b") != first
    assert choose(router, [60, 20, 0], prompt="a") == first
    assert choose(router, [101, 20, 0], prompt="a") == 2
    assert choose(router, [101, 20, 0], prompt="a") == 2, "and from then on there"


def test_only_so_many_prompts_are_remembered() -> None:
    router = DataParallelRouter("prefix", 2, prefix_slack=10**6)
    first = choose(router, [0, 0], (0, 0), "first")
    for number in range(MAX_REMEMBERED):
        choose(router, [0, 0], (0, 0), str(number))
    loads = [9, 9]
    loads[1 - first] = 0
    assert choose(router, loads, (0, 0), "first") == 1 - first


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"dp_size": 0}, "--dp-size must be at least 1, got 0"),
        (
            {"dp_size": 4, "max_running_requests": 10},
            "--max-running-requests 10 counts all data-parallel ranks, so it must be a multiple of --dp-size 4: "
            "use 8 or 12",
        ),
        ({"dp_size": 4, "max_running_requests": 2}, "--dp-size 4: use 4$"),
        ({"load_balance_method": "fastest"}, "--load-balance-method"),
    ],
)
def test_wrong_flags(flags, message) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_flags({"model_path": "m", **flags})
