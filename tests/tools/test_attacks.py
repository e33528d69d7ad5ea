"""benchmarks/faults/attacks.py: what it sends, and how it tells what came of it; no server is started."""

import dataclasses
import json
import time
from pathlib import Path

import orjson
import pytest

from benchmarks.faults.attack_list import ATTACKS, batch_form, chat_body, nested, text_of
from benchmarks.faults.attack_watch import Longest
from benchmarks.faults.attacks import HEAD, Row, chosen, table

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow  # of a benchmark, not of the server

ROW = Row("a", "200 in 0.10 s", 0.02, 1.5, 2_000_000, -1_000_000, is_alive=True, was_killed=False, errors={})
BEFORE = ROOT / "benchmarks" / "results" / "cpu-2026-11-23" / "attacks_before.json"


def test_bodies_have_their_size_and_are_json() -> None:
    for size in (1000, 100_000):
        assert 0.8 * size < len(nested(size)) < 1.1 * size
        assert orjson.loads(chat_body(size))["messages"][0]["role"] == "user"
        assert len(text_of(size)) == size
    line = batch_form(1000).split(b"\r\n\r\n")[2].partition(b"\r\n")[0]
    assert orjson.loads(line)["url"] == "/v1/chat/completions"


def test_attacks_are_chosen_by_name() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) == len(chosen([], quick=False))
    assert [attack.name for attack in chosen(["profile"], quick=False)] == ["start_profile {} under two streams"]
    assert 0 < len(chosen([], quick=True)) < len(ATTACKS)


def test_the_table() -> None:
    killed = dataclasses.replace(ROW, attack="b|c", is_alive=False, was_killed=True, errors={"stream: OSError": 3})
    lines = table([ROW, killed], [dataclasses.replace(ROW, gap=9.0)]).splitlines()
    assert [line.count("|") for line in lines] == [len(HEAD) + 1] * 4
    assert "| 9000 → 1500 | +2 / -1 → +2 / -1 | yes → yes |" in lines[2]
    assert lines[3].startswith("| b/c | 200 in 0.10 s (others: 3 × stream: OSError) | 20 | 1500 |")
    assert lines[3].endswith("| killed for its memory |")


def test_the_longest_wait_is_open_or_over() -> None:
    waits = Longest()
    assert waits.seconds == 0
    waits.begin()
    time.sleep(0.02)
    assert waits.seconds >= 0.02
    waits.end()
    longest = waits.seconds
    time.sleep(0.03)
    assert waits.seconds == longest
    waits.forget()
    assert waits.seconds == 0


@pytest.mark.parametrize("path", [BEFORE])
def test_stored_reports_can_be_shown_beside_new_ones(path: Path) -> None:
    rows = [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    assert {row.attack for row in rows} == {attack.name for attack in ATTACKS}
