"""Pictures and tables of the documentation show what benchmarks/results hold."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.worked_example import ROOT

PICTURES = ROOT / "docs" / "pictures"
RESULTS = ROOT / "benchmarks" / "results"
MAX_BYTES = 300_000


def texts(picture: Path) -> list[str]:
    """What is written in a picture."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text(encoding="utf-8"))


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def test_figures_of_the_first_page() -> None:
    start, latency = read("cpu-2026-11-25/startup.json"), read("cpu-2026-11-22/batch_latency.json")
    seconds = [
        start[kind][moment]["seconds"] for kind in ("cold", "warm") for moment in ("first answer", "all programs")
    ]
    times = [latency[case][f"total_p{share}_ms"] for case in ("alone", "beside_batch") for share in (50, 99)]
    written = texts(PICTURES / "best-at.svg")
    assert {*(f"{value:.0f} s" for value in seconds), *(f"{value:.0f}" for value in times)} <= {*written}
    for row in read("cpu-2026-11-21/faults.json")["faults"]:
        assert row["lost"] == 0
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    first, all_there, first_warm, all_warm = (f"{value:.0f} s" for value in seconds)
    assert (
        f"First answer after {first} ({first_warm} with a warm cache), all programs after {all_there} ({all_warm})"
        in page
    )


def test_planned_rates() -> None:
    rates = [
        row[key]
        for row in read("aot-2026-11-22/slices.json")["rows"]
        for key in ("one_request_rate", "full_batch_rate")
    ]
    assert {f"{rate:,}" for rate in rates} <= {*texts(PICTURES / "planned-rates.svg")}


def test_table_of_hardware() -> None:
    """`benchmarks/paper/slices.py --write` makes it of the same results."""
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    lines = page.split("<!-- benchmarks/paper/slices.py -->")[1].split("<!-- end -->")[0].strip().splitlines()[2:]
    rows = read("aot-2026-11-22/slices.json")["rows"]
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(f"| {row['model']} | {row['slice']} |")
        figures = (row["kv_tokens"], row["one_request_rate"], row["full_batch_rate"])
        assert [f"{value:,}" for value in figures if f" {value:,} " not in line] == []


def test_pictures_are_small_and_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for picture in PICTURES.iterdir():
        assert picture.stat().st_size < MAX_BYTES, picture.name
        assert f"pictures/{picture.name})" in text, f"{picture.name} is on no page"


@pytest.mark.slow
def test_pictures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "benchmarks/support/pictures.py", "--into", str(tmp_path)], cwd=ROOT, check=True)
    drawn = {file.name: texts(file) for file in tmp_path.iterdir()}
    assert drawn
    assert drawn == {name: texts(PICTURES / name) for name in drawn}, "run `make docs-pictures`"
