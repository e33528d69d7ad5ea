import dataclasses
import json

import pytest

from palladio.runtime.interface.messages.engine_stats import EngineStats, HistogramData, RankStats
from palladio.runtime.interface.messages.stats_report import describe_stats, upper_bound

RANK = RankStats(num_running=1)


def report(rank=RANK, **fields):
    return describe_stats(EngineStats([rank], RankStats(num_waiting=2), **fields))


def test_all_that_was_counted_and_what_follows():
    answer = report(
        RankStats(num_running=1, num_prompt_tokens=80, num_hit_tokens=20),
        cache_enabled=True,
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


def test_sums_over_ranks_and_what_each_of_them_tells():
    snapshots = {"num_snapshots": 3, "num_snapshot_slots": 8, "num_snapshot_hits": 4, "num_evicted_snapshots": 1}
    events = {"num_event_batches": 9, "num_event_drops": 2}
    one = RankStats(3, 2, 160, 640, 55.5, 0.7, 1, 7, 64, 80, 20, 48, 24, 5, 15, 6, 60, **snapshots, **events)
    other = RankStats(1, 0, 40, 640, 4.5, 0.5, 0, 2, 32, 0, 0, 16, 0)
    unassigned = RankStats(num_waiting=4, num_waiting_tokens=10)
    answer = describe_stats(EngineStats([one, other], unassigned, num_self_checks=5, num_self_check_failures=1))
    expected = {"num_running": 4, "num_waiting": 6, "num_used_tokens": 200, "num_total_tokens": 1280}
    expected |= {"last_gen_throughput": 60.0, "new_token_ratio": 0.7, "num_retracted_waiting": 1}
    expected |= {"num_retractions": 9, "num_waiting_tokens": 34, "num_prefill_tokens": 60}
    expected |= {"num_draft_rows": 5, "num_draft_tokens": 15, "num_accepted_drafts": 6}
    expected |= {"avg_spec_accept_length": 2.2}
    assert {name: answer[name] for name in expected} == expected
    assert answer["cache"] == {
        "enabled": False,
        "num_cached_tokens": 96,
        "num_prompt_tokens": 80,
        "num_hit_tokens": 20,
        "num_evicted_tokens": 64,
        **snapshots,
        **events,
        "num_self_checks": 5,
        "num_self_check_failures": 1,
        "hit_rate": 0.25,
    }
    assert answer["groups"] == [
        dataclasses.asdict(one) | {"cache_hit_rate": 0.25},
        dataclasses.asdict(other) | {"cache_hit_rate": None},
    ]
    assert set(answer) == {
        *expected,
        *("num_compiles_after_ready", "integrity_error", "cache", "device_idle", "compile", "memory", "steps"),
        *("num_grammars", "grammar_bytes", "groups"),
    }
    (rank,) = EngineStats([one], unassigned).by_rank
    assert rank == dataclasses.replace(one, num_waiting=6, num_waiting_tokens=34), "one rank is the whole engine"


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
