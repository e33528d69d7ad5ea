import json

import pytest

from palladio.runtime.interface.messages import CacheStats, EngineStats, HistogramData
from palladio.runtime.interface.stats_report import describe_stats, upper_bound


def report(**fields):
    return describe_stats(EngineStats(1, 2, 3, 4, 5.0, 0, None, **fields))


def test_all_that_was_counted_and_what_follows():
    answer = report(
        cache=CacheStats(enabled=True, num_prompt_tokens=80, num_hit_tokens=20),
        device_idle=HistogramData([0.0, 0.001, 0.01], [50, 49, 1, 0], 0.25),
    )
    json.dumps(answer)
    assert (answer["num_running"], answer["num_waiting"]) == (1, 2)
    assert (answer["cache"]["enabled"], answer["cache"]["num_hit_tokens"], answer["cache"]["hit_rate"]) == (
        True,
        20,
        0.25,
    )
    idle = answer["device_idle"]
    assert (idle["total"], idle["count"], idle["p50"], idle["p99"]) == (0.25, 100, 0.0, 0.001)


def test_before_the_first_request():
    answer = report()
    assert answer["cache"]["hit_rate"] is None
    assert (answer["device_idle"]["count"], answer["device_idle"]["p50"], answer["device_idle"]["p99"]) == (
        0,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("counts", "share", "bound"),
    [
        ([1, 0, 0], 0.5, 1.0),
        ([1, 1, 0], 0.5, 1.0),
        ([1, 2, 0], 0.5, 2.0),
        ([0, 1, 0], 0.01, 2.0),
        ([0, 0, 1], 0.5, None),  # over the last bound
        ([99, 0, 1], 0.99, 1.0),
        ([98, 0, 2], 0.99, None),
        ([0, 0, 0], 0.5, None),
    ],
)
def test_upper_bound(counts, share, bound):
    assert upper_bound(HistogramData([1.0, 2.0], counts), share) == bound
