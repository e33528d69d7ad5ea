"""The last hour of a server: rows, how they are thinned, and what is drawn from them."""

import math

import numpy as np
import pytest

from palladio.http.observability.dashboard.history import FINE_ROWS, MAX_BYTES, MERGED, SECONDS, Columns, History
from palladio.http.observability.dashboard.series import describe_history, make_history, quantiles, take_row
from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.messages.engine_stats import BucketSteps, EngineStats, HistogramData, RankStats

SMALL = Columns(("running",), ("steps",), {"ttft": (1.0, 2.0)})


def row(time: float, running: float, steps: float, *counts: float) -> np.ndarray:
    return np.array([time, running, steps, *(counts or (0, 0, 0))], float)


def test_old_rows_are_merged_and_nothing_is_counted_twice() -> None:
    history = History(SMALL)
    for second in range(5000):
        history.append(row(second, second % MERGED, 7 * second))
    rows = history.rows()
    times = rows[:, 0]
    assert (np.diff(times) > 0).all()
    assert times[-1] - times[0] == pytest.approx(SECONDS, abs=2 * MERGED)
    assert (np.diff(times)[-FINE_ROWS + 1 :] == 1).all(), "the newest are single"
    assert (np.diff(times)[: -FINE_ROWS - 1] == MERGED).all()
    assert (rows[:, 2] == 7 * times).all(), "counters are those of the moment"
    assert (rows[: -FINE_ROWS - 1, 1] == np.mean(range(MERGED))).all(), "gauges are means"
    assert len(rows) <= SECONDS // MERGED + FINE_ROWS


def test_its_size_is_bounded_whatever_the_histograms() -> None:
    wide = Columns(("a",), ("b",), {"ttft": tuple(range(1, 3000))})
    history = History(wide)
    assert history.num_bytes <= MAX_BYTES
    size = history.num_bytes
    for second in range(200):
        history.append(np.full(wide.width, float(second)))
    assert history.num_bytes == size
    assert history.rows()[-1, 0] == 199


def stats(**values: float) -> EngineStats:
    counts = {name: values.pop(name) for name in ("steps", "computed", "padding") if name in values}
    bucket = BucketSteps("decode", 8, 8, counts.get("steps", 0), counts.get("computed", 0), counts.get("padding", 0))
    return EngineStats([RankStats(**values)], steps=[bucket], device_idle=HistogramData(total=0.0))


def test_what_is_drawn_follows_from_the_counters() -> None:
    front = FrontMetrics(ObservabilityConfig())
    history = make_history(front)
    history.append(take_row(100.0, front, stats(num_running=1)))
    front.first_token.observe(0.15)
    front.inter_token.observe(0.03, 9)
    front.end_http("/v1/completions", "POST", 503)
    front.end_http("/v1/completions", "POST", 404)
    front.count_request(is_aborted=True)
    later = {"num_prefill_tokens": 60, "num_hit_tokens": 20, "num_prompt_tokens": 80, "num_draft_rows": 4}
    later |= {"num_draft_tokens": 12, "num_accepted_drafts": 6, "steps": 5, "computed": 30, "padding": 10}
    history.append(take_row(102.0, front, stats(num_running=3, **later)))
    history.append(take_row(103.0, front, None))
    found = describe_history(history, 0.0)
    assert {len(values) for values in found.values()} == {3}
    assert {name: values[1] for name, values in found.items()} == {
        "time": 102.0,
        "up": 1,
        "running": 3,
        "waiting": 0,
        "retracted": 0,
        "http_active": -2,
        "used_tokens": 0,
        "cached_tokens": 0,
        "idle": 0,
        "tokens_in": 30,
        "tokens_found": 10,
        "tokens_out": 5,
        "steps": 2.5,
        "retractions": 0,
        "evicted_tokens": 0,
        "requests": 0.5,
        "aborted": 0.5,
        "answers_4xx": 0.5,
        "answers_5xx": 0.5,
        "hit_rate": 0.25,
        "padding": 0.25,
        "accept_rate": 0.5,
        "accept_length": 2.5,
        "ttft_p50": 0.15,
        "ttft_p95": 0.195,
        "ttft_p99": 0.199,
        "itl_p50": 0.0275,
        "itl_p95": 0.02975,
        "itl_p99": 0.02995,
    }
    assert {name for name, values in found.items() if values[2] is not None} == {
        *("time", "up", "http_active", "tokens_out", "requests", "aborted", "answers_4xx", "answers_5xx"),
        *(f"{name}_{label}" for name in ("ttft", "itl") for label in ("p50", "p95", "p99")),
    }, "what the engine alone knows is not known"
    assert found["up"][2] == 0
    assert all(value is None for name, (value, *_) in found.items() if name in ("tokens_in", "padding", "ttft_p50"))
    part = describe_history(history, 101.0)
    assert part == {name: values[1:] for name, values in found.items()}, "a part of it is the same"
    nothing = describe_history(history, 103.0)
    assert nothing.keys() == found.keys()
    assert not any(nothing.values())


def test_an_engine_that_was_started_again_counts_from_nothing() -> None:
    front = FrontMetrics(ObservabilityConfig())
    history = make_history(front)
    for time, answer in enumerate([stats(num_prefill_tokens=500), stats(num_prefill_tokens=30), None, stats()]):
        history.append(take_row(float(time), front, answer))
    assert describe_history(history, -1.0)["tokens_in"] == [None, 30, None, None]


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0], 0.5, math.nan),
        ([4, 0, 0], 0.5, 0.5),
        ([1, 2, 1], 0.5, 1.5),
        ([1, 1, 2], 0.99, 2.0),
        ([0, 10, 0], 0.95, 1.95),
    ],
)
def test_percentiles_are_those_of_prometheus(counts: list[int], share: float, expected: float) -> None:
    found = quantiles((1.0, 2.0), np.array([counts, counts], float), share)
    assert found == pytest.approx([expected, expected], nan_ok=True)
