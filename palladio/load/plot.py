"""A plot of a sweep: times and throughput over the load. SVG is written here, PNG by matplotlib, if installed."""

import html
import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from palladio.load.sweep import Slo
from palladio.runtime.interface.errors import ConfigError

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 720, 220, 70, 40, 60  # of a panel, in pixels
_COLORS: Final = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad")
PANELS: Final = (
    ("time to first token, ms", ("ttft_p50", "ttft_p99"), 1000.0),
    ("between tokens, ms", ("itl_p50", "itl_p99"), 1000.0),
    ("output tokens/s", ("tokens_per_second",), 1.0),
)


def check_plot_path(path: Path) -> None:
    """
    Raises:
        ConfigError: nothing here can write such a file.
    """
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"--plot {path}: the name must end with .svg or .png")
    if path.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"--plot {path}: PNG needs matplotlib (pip install matplotlib); .svg needs nothing")


def write_plot(path: Path, title: str, load: str, levels: Sequence[dict[str, Any]], slos: Sequence[Slo]) -> None:
    """
    Args:
        load: what the levels differ in: rate or concurrency.
        levels: figures of each, with `load`.
    """
    levels = sorted(levels, key=lambda level: float(level["load"]))
    if path.suffix == ".png":
        _write_png(path, title, load, levels, slos)
    else:
        path.write_text(render_svg(title, load, levels, slos), encoding="utf-8")


def render_svg(title: str, load: str, levels: Sequence[dict[str, Any]], slos: Sequence[Slo]) -> str:
    height = _TOP + len(PANELS) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 150} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{_LEFT}" y="22" font-size="15">'
        f"{html.escape(title)}</text>",
    ]
    xs = [float(level["load"]) for level in levels]
    for number, (name, keys, scale) in enumerate(PANELS):
        series = {key: [None if level[key] is None else level[key] * scale for level in levels] for key in keys}
        limits = [slo.limit * scale for slo in slos if slo.key in keys]
        parts += _panel(_TOP + number * (_HEIGHT + _GAP), name, load, xs, series, limits)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    top: float,
    name: str,
    load: str,
    xs: Sequence[float],
    series: dict[str, list[float | None]],
    limits: Sequence[float],
) -> list[str]:
    values = [value for line in series.values() for value in line if value is not None]
    highest, widest = _round_up(max([*values, *limits], default=1.0)), _round_up(max(xs, default=1.0))

    def x(value: float) -> float:
        return round(_LEFT + value / widest * _WIDTH, 1)

    def y(value: float) -> float:
        return round(top + _HEIGHT - value / highest * (_HEIGHT - 20), 1)

    parts = [f'<text x="{_LEFT}" y="{top + 10}" font-weight="bold">{name}</text>']
    for step in range(6):
        at, across = highest * step / 5, widest * step / 5
        parts += [
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(at)}" y2="{y(at)}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{y(at) + 4}" text-anchor="end">{at:g}</text>',
            f'<text x="{x(across)}" y="{top + _HEIGHT + 16}" text-anchor="middle">{across:g}</text>',
        ]
    parts.append(f'<text x="{_LEFT + _WIDTH + 20}" y="{top + _HEIGHT + 16}">{load}</text>')
    parts += [
        f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(limit)}" y2="{y(limit)}" stroke="#888" '
        'stroke-dasharray="6 4"/>'
        for limit in limits
    ]
    for number, (key, line) in enumerate(series.items()):
        color = _COLORS[number]
        points = [(x(at), y(value)) for at, value in zip(xs, line, strict=True) if value is not None]
        joined = " ".join(f"{left},{up}" for left, up in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{left}" cy="{up}" r="3" fill="{color}"/>' for left, up in points]
        label = key.replace("_p", " p").replace("_", " ")
        parts.append(f'<text x="{_LEFT + _WIDTH + 8}" y="{top + 30 + 16 * number}" fill="{color}">{label}</text>')
    return parts


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if value <= step * power * (1 + 1e-9))


def _write_png(path: Path, title: str, load: str, levels: Sequence[dict[str, Any]], slos: Sequence[Slo]) -> None:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(len(PANELS), 1, figsize=(9, 10), sharex=True)
    xs = [level["load"] for level in levels]
    for axis, (name, keys, scale) in zip(axes, PANELS, strict=True):
        for key in keys:
            axis.plot(xs, [math.nan if level[key] is None else level[key] * scale for level in levels], "o-", label=key)
        for slo in slos:
            if slo.key in keys:
                axis.axhline(slo.limit * scale, linestyle="--", color="gray")
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
        axis.legend()
    axes[0].set_title(title)
    axes[-1].set_xlabel(load)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
