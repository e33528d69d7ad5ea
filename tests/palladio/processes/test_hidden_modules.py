"""A user's file that has the name of a module of Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(("http", ["palladio.launch_server"]), ("signal", ["palladio", "serve"])),
        *(
            pytest.param(name, words, marks=pytest.mark.slow)
            for name, words in (
                ("http/__init__", ["palladio.launch_server"]),
                ("http", ["palladio", "serve"]),
                ("signal", ["palladio.launch_server"]),
                ("http/__init__", ["palladio", "serve"]),
            )
        ),
    ],
)
def test_a_file_that_hides_a_module_is_one_line(name: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    if file.name == "__init__.py":
        file, name = file.parent, file.parent.name
    done = subprocess.run(
        [sys.executable, "-m", *words, "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PALLADIO_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {file} hides Python's module {name}, ")
    assert "Traceback" not in done.stderr
