"""What the user sees while the engine starts."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.interface.messages.engine_state import LoadProgress

REPOSITORY = Path(__file__).parents[4]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lines(caplog):
    with caplog.at_level("INFO", logger="palladio"):
        yield caplog


def ticks(display, clock, seconds):
    for _ in range(seconds):
        clock.now += 1
        display.tick()


def test_a_line_every_few_seconds_even_when_nothing_moves(clock, lines, capsys):
    display = ProgressDisplay(bar=False, clock=clock)
    ticks(display, clock, 20)  # nothing to tell yet
    display.update(LoadProgress("load", 120, 290))
    ticks(display, clock, 12)
    display.update(LoadProgress("load", 290, 290))
    ticks(display, clock, 12)  # the engine itself logs the end
    display.update(LoadProgress("compile", 0, 25))
    ticks(display, clock, 4)
    display.update(LoadProgress("compile", 7, 25))
    ticks(display, clock, 1)
    display.update(LoadProgress("compile", 20, 25, 1.4))
    ticks(display, clock, 5)
    display.close()
    ticks(display, clock, 20)
    assert lines.messages == [
        "Loading weights: 120/290 tensors, 5 s",
        "Loading weights: 120/290 tensors, 10 s",
        "Compiling programs: 7/25 programs, 5 s",
        "Compiling programs: 20/25 programs, 10 s, about 1 s left",
    ]
    assert capsys.readouterr().err == ""


def test_a_bar_for_each_phase_on_a_terminal(clock, lines, capsys):
    display = ProgressDisplay(bar=True, clock=clock)
    for progress in (("load", 1, 2), ("load", 2, 2), ("compile", 0, 3), ("compile", 1, 3)):
        display.update(LoadProgress(*progress))
        ticks(display, clock, 10)
    display.close()
    shown = capsys.readouterr().err
    assert "Loading weights: 100%" in shown
    assert "2/2" in shown
    assert "Compiling programs:  33%" in shown
    assert shown.endswith("\n")
    assert lines.messages == []


def test_bars_are_for_terminals_only(monkeypatch, capsys):
    ProgressDisplay().update(LoadProgress("load", 1, 2))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ProgressDisplay().update(LoadProgress("load", 1, 2))
    assert "Loading weights" in capsys.readouterr().err


def test_a_phase_may_begin_again(clock, lines):
    display = ProgressDisplay(bar=False, clock=clock)
    for _ in range(2):
        display.update(LoadProgress("load", 1, 2))
        ticks(display, clock, 5)
        display.close()
    assert lines.messages == ["Loading weights: 1/2 tensors, 5 s"] * 2


def test_a_command_without_a_log_takes_the_lines(clock, lines):
    taken = []
    display = ProgressDisplay(bar=False, say=taken.append, clock=clock)
    display.update(LoadProgress("load", 1, 2))
    ticks(display, clock, 6)
    assert (taken, lines.messages) == (["Loading weights: 1/2 tensors, 5 s"], [])


def test_a_terminal_of_unknown_size_shows_it_too():
    """As containers and `script` have it: 0 columns, 0 rows."""
    code = (
        "from palladio.runtime.front.control import progress\n"
        "from palladio.runtime.interface.messages import engine_state\n"
        "progress.ProgressDisplay().update(engine_state.LoadProgress('load', 2, 2))"
    )
    terminal, end = pty.openpty()
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, stdin=end, stdout=end, stderr=end, check=True)
    assert b"Loading weights: 100%" in os.read(terminal, 65536)
    os.close(terminal)
    os.close(end)
