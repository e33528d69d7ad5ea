"""How the workers share the tests, and what the run without quick settings leaves out."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import work_order
from tests.source_tree import ROOT


def session_fixtures() -> Iterator[str]:
    for path in (ROOT / "tests").rglob("conftest.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                marks = map(ast.unparse, node.decorator_list)
                yield from (node.name for mark in marks if "fixture(" in mark and "'session'" in mark)


def test_shared_fixtures_are_made_once_for_a_process() -> None:
    assert set(session_fixtures()) >= work_order.SHARED


@pytest.mark.parametrize(
    ("file", "scope"),
    [
        ("tests/integration/test_aborts.py", "shared_server"),  # through `client` of its conftest.py
        ("tests/integration/seeds/test_cells.py", "shared_server"),  # through conftest.py of two folders
        ("tests/integration/test_examples.py", "embedded_model_server"),  # its own `server` is another
        ("tests/runtime/core/test_drafts.py", "tiny"),
        ("tests/integration/test_embedding_server.py", "tests/integration/test_embedding_server.py"),
        ("tests/runtime/core/test_windows.py", "tests/runtime/core/test_windows.py"),
    ],
)
def test_files_of_a_shared_fixture_are_one_scope(file: str, scope: str) -> None:
    assert work_order.scope(f"{file}::test_a[x::y]") == scope


def test_unknown_files_run_first_and_then_the_longest() -> None:
    files = {name: [f"tests/{name}::test_a", f"tests/{name}::test_b"] for name in ("pairwise.py", "fake_engine.py")}
    assert work_order.sorted_scopes(files, {}) == ["fake_engine.py", "pairwise.py"], "by size"
    lasted = {"tests/fake_engine.py::test_a": 1.0, "tests/fake_engine.py::test_b": 2.0}
    assert work_order.sorted_scopes(files, lasted) == ["pairwise.py", "fake_engine.py"]
    lasted |= {"tests/pairwise.py::test_b": 2.5}
    assert work_order.sorted_scopes(files, lasted) == ["fake_engine.py", "pairwise.py"]


def test_durations_are_kept_for_the_next_run() -> None:
    class Config:
        cache: Any

    class Cache(dict[str, object]):
        def set(self, key: str, value: object) -> None:
            self[key] = value

    class Report:
        nodeid, duration = "tests/pairwise.py::test_a", 1.5

    config = Config()
    config.cache = Cache({work_order._RECORD: {"tests/gone.py::test_a": 1.0, "tests/fake_hub.py::test_a": 4.0}})
    recorder = work_order.Recorder(config)
    for _ in range(3):  # its set-up, its call and its end
        recorder.pytest_runtest_logreport(Report())
    recorder.pytest_sessionfinish()
    assert work_order.recorded(config) == {"tests/fake_hub.py::test_a": 4.0, "tests/pairwise.py::test_a": 4.5}


@pytest.mark.parametrize("plain", ["", "1"])
def test_the_plain_run_has_no_quick_settings(plain: str) -> None:
    names = ("XLA_FLAGS", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "SSL_CERT_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    program = f"import gc, os, tests.conftest; print(gc.isenabled(), *[name in os.environ for name in {names}])"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment | {"PALLADIO_TESTS_PLAIN": plain, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == (["True", *["False"] * 3] if plain else ["False", *["True"] * 3])
