"""Draws what benchmarks/h200.sh measured: tokens per second over batch size, beside what the card allows.

python benchmarks/gpu/h200_plot.py benchmarks/results/h200_*.json --svg docs/h200.svg
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

MODELS = {"Qwen2.5-0.5B": ("sweep qwen", "qwen2.5-0.5b"), "Llama-3.1-8B": ("sweep llama", "llama-3.1-8b")}
TORCH = "torch: a step as one CUDA graph, 1,024 tokens of context"


def draw(report: Mapping[str, Any], svg: Path) -> None:
    """One panel a model; points that were not measured are not there.

    Raises:
        ValueError: the report has no batch sizes.
    """
    parts = report["parts"]
    measured = {name: parts.get(part, {}).get("batch sizes", []) for name, (part, _) in MODELS.items()}
    measured = {name: rows for name, rows in measured.items() if rows}
    if not measured:
        raise ValueError("no batch sizes in it: benchmarks/h200.sh measures them in its parts 'sweep qwen' and llama's")
    matplotlib.rcParams |= {"svg.hashsalt": "palladio", "svg.fonttype": "none", "font.size": 9}
    figure = Figure(figsize=(4.6 * len(measured), 3.8), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured.items(), strict=True):
        _panel(axes, name, rows, _graphs(parts.get("peers", {}), MODELS[name][1]))
    versions = report["versions"]
    figure.suptitle(f"Decode on one H200, bfloat16, JAX {versions.get('jax')}, {report['date'][:10]}", fontsize=9)
    figure.savefig(svg, format="svg", metadata={"Date": None})


def _panel(axes: Axes, name: str, rows: Sequence[Mapping[str, float]], graphs: Mapping[int, float]) -> None:
    sizes = [row["requests"] for row in rows]
    axes.plot(
        sizes, [row["limit tokens/s"] for row in rows], color="0.5", linestyle="--", label="bandwidth, operations"
    )
    axes.plot(sizes, [row["tokens/s"] for row in rows], marker="o", markersize=4, label="Palladio")
    if graphs:
        axes.plot(list(graphs), list(graphs.values()), marker="x", linestyle="none", color="0.2", label=TORCH)
    axes.set(title=name, xlabel="requests at once", ylabel="tokens per second")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _graphs(peers: Mapping[str, Any], model: str) -> dict[int, float]:
    """Tokens per second of torch's captured decode steps, by batch size."""
    found = {}
    for name, figures in peers.get("graph", {}).items():
        if name.startswith(f"{model} batch ") and "graph ms" in figures:
            size = int(name.removeprefix(f"{model} batch "))
            found[size] = 1e3 * size / figures["graph ms"]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="that benchmarks/h200.sh has written")
    parser.add_argument("--svg", type=Path, default=Path("docs/h200.svg"))
    args = parser.parse_args(argv)
    try:
        draw(json.loads(args.report.read_text(encoding="utf-8")), args.svg)
    except (OSError, ValueError, KeyError) as error:
        print(f"{args.report}: {error}", file=sys.stderr)
        return 1
    print(args.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
