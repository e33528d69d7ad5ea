"""A sample of `make folder-fuzz`: damaged folders end in an answer, or in an error with one line."""

import subprocess
import sys

import pytest

from tests.source_tree import ROOT


def run(*arguments: str) -> str:
    command = [sys.executable, "scripts/folder_fuzz.py", *arguments]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr[-3000:]
    return found.stdout


@pytest.mark.slow  # tests/model/loading/test_damaged_formats.py has damages, one by one
def test_damaged_folders_are_read_or_refused():
    assert "'refused'" in run("8", "--count", "60", "--no-engine", "--kinds", "plain", "divided", "awq", "gguf")


@pytest.mark.slow
def test_damaged_folders_are_answered_for_or_refused():
    assert "'answered'" in run("9", "--count", "100")
