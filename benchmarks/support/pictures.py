"""Draws the pictures of the documentation from benchmarks/results: docs/pictures/*.svg.

python benchmarks/support/pictures.py [--into DIR]

The same results give the same bytes with the same matplotlib. A test compares the numbers that are written in the
pictures with the results.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"
BLUE, LIGHT, RED, GREY = "#2b6cb0", "#90bce8", "#c05621", "#b8c2cc"
FAULTS = {
    "engine-killed": "engine killed",
    "hung-step": "step hangs",
    "out-of-memory": "out of memory",
    "full-disk": "disk full",
    "sigterm": "stopped by SIGTERM",
}


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def best_at() -> Figure:
    """Draw the figures of the README: starts, crashes, batches."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained", facecolor="white")
    starts, fates, chats = figure.subplots(1, 3, width_ratios=(1, 1.2, 1))
    _starts(starts)
    _fates(fates)
    _chats(chats)
    return figure


def _starts(axes: Axes) -> None:
    report = read("cpu-2026-11-25/startup.json")
    moments = ("first answer", "all programs")
    for place, (kind, color, label) in enumerate((("cold", BLUE, "empty cache"), ("warm", LIGHT, "full cache"))):
        seconds = [report[kind][moment]["seconds"] for moment in moments]
        bars = axes.bar([index + 0.4 * place for index in range(len(moments))], seconds, 0.38, color=color, label=label)
        axes.bar_label(bars, fmt="%.0f s")
    axes.set_xticks([0.2, 1.2], ["first answer", "all programs compiled"])
    axes.set(title="Start, after the command", ylabel="seconds")
    _plain(axes)


def _fates(axes: Axes) -> None:
    rows = {row["fault"]: row for row in read("cpu-2026-11-21/faults.json")["faults"]}
    names = list(FAULTS)[::-1]
    start = [0] * len(names)
    for key, color, label in (
        ("finished", BLUE, "finish"),
        ("error", GREY, "end with an error"),
        ("lost", RED, "lost: 0"),
    ):
        counts = [rows[name][key] for name in names]
        bars = axes.barh([FAULTS[name] for name in names], counts, left=start, color=color, label=label)
        axes.bar_label(bars, labels=[str(count) if count else "" for count in counts], label_type="center")
        start = [one + more for one, more in zip(start, counts, strict=True)]
    axes.set(title="200 streams when something fails", xlabel="streams")
    _plain(axes)


def _chats(axes: Axes) -> None:
    report = read("cpu-2026-11-22/batch_latency.json")
    cases = (("alone", BLUE, "alone"), ("beside_batch", LIGHT, "beside a batch of 5,000 lines"))
    for place, (case, color, label) in enumerate(cases):
        times = [report[case][f"total_p{share}_ms"] for share in (50, 99)]
        bars = axes.bar([index + 0.4 * place for index in range(2)], times, 0.38, color=color, label=label)
        axes.bar_label(bars, fmt="%.0f")
    axes.set_xticks([0.2, 1.2], ["median", "99th percentile"])
    axes.set(title="Time of a chat answer", ylabel="milliseconds")
    _plain(axes)


def planned_rates() -> Figure:
    """The table of docs/hardware.md: bounds, not measurements."""
    rows = read("aot-2026-11-22/slices.json")["rows"][::-1]
    names = [f"{row['model']} on {row['slice']}" for row in rows]
    figure = Figure(figsize=(10.5, 3.6), layout="constrained", facecolor="white")
    one, full = figure.subplots(1, 2, sharey=True)
    for axes, key, title in (
        (one, "one_request_rate", "one request"),
        (full, "full_batch_rate", "a full batch"),
    ):
        bars = axes.barh(names, [row[key] for row in rows], color=BLUE)
        axes.bar_label(bars, labels=[f"{row[key]:,}" for row in rows], padding=2, fontsize=8)
        axes.set(title=f"At most, for {title}", xlabel="tokens per second")
        axes.set_xmargin(0.12)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=3)


DRAWN: dict[str, Callable[[], Figure]] = {"best-at.svg": best_at, "planned-rates.svg": planned_rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=PICTURES, metavar="DIR", help="default: docs/pictures")
    into = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams |= {
        "svg.hashsalt": "palladio",
        "svg.fonttype": "none",
        "font.size": 9,
        "font.family": "sans-serif",
    }
    for name, draw in DRAWN.items():
        draw().savefig(into / name, format="svg", metadata={"Date": None})
        print(into / name)


if __name__ == "__main__":
    main()
