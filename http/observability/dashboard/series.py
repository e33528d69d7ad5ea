"""What the history keeps of a moment, and what the dashboard draws from it: gauges, rates, shares and percentiles."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palladio.http.observability.dashboard.history import Columns, History, Row
from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.runtime.interface.messages.engine_stats import EngineStats, HistogramData

WINDOW = 10.0  # seconds over which percentiles and shares are taken, as far as rows lie closer together
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

_HISTOGRAMS = ("ttft", "itl")
_GAUGES = ("up", "running", "waiting", "retracted", "used_tokens", "cached_tokens", "http_active")
_COUNTERS = (
    *("prefill_tokens", "hit_tokens", "looked_up_tokens", "evicted_tokens", "retractions"),
    *("draft_rows", "draft_tokens", "accepted_drafts"),
    *("steps", "computed_tokens", "padding_tokens", "idle_seconds"),
    *("output_tokens", "requests", "aborted_requests", "answers_4xx", "answers_5xx"),
)
_RATES = {  # series → the counter whose growth a second it is
    "tokens_in": "prefill_tokens",
    "tokens_found": "hit_tokens",
    "tokens_out": "output_tokens",
    "requests": "requests",
    "aborted": "aborted_requests",
    "answers_4xx": "answers_4xx",
    "answers_5xx": "answers_5xx",
    "steps": "steps",
    "retractions": "retractions",
    "evicted_tokens": "evicted_tokens",
}
_SHARES = {  # series → growth of the first, by that of both or of the second
    "hit_rate": ("hit_tokens", ("looked_up_tokens",)),
    "padding": ("padding_tokens", ("padding_tokens", "computed_tokens")),
    "accept_rate": ("accepted_drafts", ("draft_tokens",)),
}


def make_history(front: FrontMetrics) -> History:
    """Make an empty history.

    Args:
        front: whose histograms the history keeps.
    """
    return History(Columns(_GAUGES, _COUNTERS, {name: tuple(data.bounds) for name, data in _latencies(front).items()}))


def take_row(now: float, front: FrontMetrics, stats: EngineStats | None) -> Row:
    """Make a row of the current figures.

    Args:
        now: seconds since the epoch.
        stats: None: the engine does not answer.
    """
    latencies = _latencies(front)
    counts = [count for data in latencies.values() for count in data.counts]
    answers = [sum(count for key, count in front.http_responses.items() if key[2] // 100 == kind) for kind in (4, 5)]
    of_front = [
        count_tokens(latencies),
        front.totals["requests"],
        front.totals["aborted_requests"],
        *answers,
    ]
    gauges, counters = ([math.nan] * 5, [math.nan] * 12) if stats is None else _of_engine(stats)
    up = [float(stats is not None)]
    return np.array([round(now, 3), *up, *gauges, front.http_active, *counters, *of_front, *counts], np.float64)


def count_tokens(latencies: Mapping[str, HistogramData]) -> int:
    """Tokens that clients have got, as the histograms count them: first ones, and those after another one."""
    return sum(sum(data.counts) for data in latencies.values())


def _latencies(front: FrontMetrics) -> dict[str, HistogramData]:
    return dict(zip(_HISTOGRAMS, (front.first_token.data(), front.inter_token.data()), strict=True))


def _of_engine(stats: EngineStats) -> tuple[list[float], list[float]]:
    total, steps = stats.total, stats.steps
    gauges = [
        *(total.num_running, total.num_waiting, total.num_retracted_waiting),
        *(total.num_used_tokens, total.num_cached_tokens),
    ]
    counters = [
        *(total.num_prefill_tokens, total.num_hit_tokens, total.num_prompt_tokens, total.num_evicted_tokens),
        *(total.num_retractions, total.num_draft_rows, total.num_draft_tokens, total.num_accepted_drafts),
        *(sum(step.steps for step in steps), sum(step.computed_tokens for step in steps)),
        *(sum(step.padding_tokens for step in steps), stats.device_idle.total),
    ]
    return list(map(float, gauges)), list(map(float, counters))


def describe_history(history: History, since: float) -> dict[str, Any]:
    """Return columns of equal length; null: not known, or nothing to compute it from.

    Args:
        since: seconds since the epoch: later rows only.
    """
    columns, rows = history.columns, history.rows()
    first = int(np.searchsorted(rows[:, 0], since, side="right"))
    series: dict[str, Sequence[float | None]] = {"time": _numbers(rows[first:, 0], 3)}
    for name in _GAUGES:
        series[name] = _numbers(rows[first:, columns.place(name)])
    if first == len(rows):
        return series | {name: [] for name in _names_of_changes()}
    begin = max(0, first - 1)
    seconds = np.diff(rows[begin:, 0])
    steps = _growth(rows[begin:-1], rows[begin + 1 :])
    lead = [None] * (first == 0)  # nothing comes before the very first row
    for name, counter in _RATES.items():
        series[name] = lead + _numbers(steps[:, columns.place(counter)] / seconds)
    series["idle"] = lead + _numbers(np.minimum(steps[:, columns.place("idle_seconds")] / seconds, 1.0))
    places = np.arange(first, len(rows))
    earlier = np.searchsorted(rows[:, 0], rows[first:, 0] - WINDOW - 0.5)
    earlier = np.maximum(np.minimum(earlier, places - 1), 0)
    grown = _growth(rows[earlier], rows[places])
    for name, (part, whole) in _SHARES.items():
        total = np.sum([grown[:, columns.place(each)] for each in whole], axis=0)
        series[name] = _numbers(_divide(grown[:, columns.place(part)], total))
    rows_with_drafts = _divide(grown[:, columns.place("accepted_drafts")], grown[:, columns.place("draft_rows")])
    series["accept_length"] = _numbers(1 + rows_with_drafts)
    for name, bounds in columns.histograms.items():
        counts = grown[:, columns.buckets(name)]
        for label, share in PERCENTILES.items():
            series[f"{name}_{label}"] = _numbers(quantiles(bounds, counts, share), 6)
    return series


def describe_latencies(front: FrontMetrics) -> dict[str, dict[str, float | None]]:
    """Percentiles since the server's start."""
    found = {}
    for name, data in _latencies(front).items():
        counts = np.array([data.counts], np.float64)
        shares = [_numbers(quantiles(data.bounds, counts, share), 6)[0] for share in PERCENTILES.values()]
        found[name] = dict(zip(PERCENTILES, shares, strict=True))
    return found


def quantiles(bounds: Sequence[float], counts: Row, share: float) -> Row:
    """As Prometheus's histogram_quantile: linear within a bucket, and the last bound for what is over it.

    Args:
        counts: [rows, buckets], the last one of what is over the last bound.

    Returns:
        One a row; NaN where there is nothing.
    """
    edges = np.array([0.0, *bounds, bounds[-1]])
    reached = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(counts, axis=1)], axis=1)
    wanted = share * reached[:, -1]
    place = np.minimum((reached[:, 1:] < wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
    each = np.arange(len(counts))
    inside = _divide(wanted - reached[each, place], counts[each, place])
    found: Row = edges[place] + (edges[place + 1] - edges[place]) * inside
    return found


def _names_of_changes() -> list[str]:
    percentiles = [f"{name}_{label}" for name in _HISTOGRAMS for label in PERCENTILES]
    return [*_RATES, "idle", *_SHARES, "accept_length", *percentiles]


def _growth(before: Row, after: Row) -> Row:
    """Return the growth of all columns. A value that fell counts from 0: its counter was reset."""
    with np.errstate(invalid="ignore"):
        return np.where(after < before, after, after - before)


def _divide(part: Row, whole: Row) -> Row:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def _numbers(values: Row, digits: int = 4) -> list[float | None]:
    return [None if math.isnan(value) else round(value, digits) for value in values.tolist()]
