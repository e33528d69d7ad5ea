"""Property tests draw the same examples everywhere by default, and say how to go on from a failing one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # of the tests themselves

ROOT = Path(__file__).parents[2]
FAILING = """
import hypothesis
from hypothesis import strategies as st
from tests.properties import examples

@hypothesis.given(st.lists(st.integers(0, 1000), min_size=3))
@examples(30)
def test_sum(numbers):
    print("drawn:", numbers)
    assert sum(numbers) < 1500
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A test outside of the tree, with this tree's conftest."""
    folder = tmp_path_factory.mktemp("properties")
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_sum.py").write_text(FAILING)
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> str:
    plugins = ("-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider")  # the others take seconds to import
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "GITHUB_ACTIONS")}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "test_sum.py", *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert not (folder / ".hypothesis" / "examples").exists(), "no failing example is kept for the next run"
    return result.stdout


def drawn(output: str) -> list[str]:
    return re.findall(r"drawn: (.*)", output)


def test_the_same_examples_everywhere_and_no_shrinking(folder: Path) -> None:
    plain, ci = run(folder), run(folder, CI="true", GITHUB_ACTIONS="true")
    assert len(drawn(plain)) >= 2
    assert drawn(plain) == drawn(ci)
    assert "--hypothesis-profile=shrink 'test_sum.py::test_sum'" in plain
    smaller = run(folder, "--hypothesis-profile=shrink")
    assert len(drawn(smaller)) > len(drawn(plain))
    assert sum(map(int, re.findall(r"\d+", drawn(smaller)[-1]))) == 1500, "this is the smallest"


def test_the_long_run_draws_new_examples_and_tells_its_seed(folder: Path) -> None:
    first = run(folder, "--hypothesis-profile=long")
    (seed,) = re.findall(r"^--hypothesis-seed=(\d+) draws these examples again$", first, re.MULTILINE)
    assert f"--hypothesis-profile=long-shrink --hypothesis-seed={seed} 'test_sum.py::test_sum'" in first
    assert drawn(run(folder, "--hypothesis-profile=long", f"--hypothesis-seed={seed}")) == drawn(first)
    assert drawn(run(folder, "--hypothesis-profile=long")) != drawn(first)
