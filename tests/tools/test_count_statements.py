"""scripts/count_statements.py: what counts as a statement, and what as the product."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "count_statements.py"
MODULE = '''\
"""A docstring."""
import os
from sys import path


class Thing:
    """Another."""

    size: int = 0

    def grow(
        self,
        by: int,
    ) -> None:
        """And one more."""
        if by:
            self.size += by; self.size += 1
'''  # class, size, grow, if, and two additions


def run(folder: Path, *arguments: str) -> list[list[str]]:
    script = folder / "scripts" / SCRIPT.name
    result = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True)
    return [line.split() for line in result.stdout.splitlines()]


def test_statements_of_the_product_by_room_and_revision(tmp_path):
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True)

    for path, text in {
        "scripts/count_statements.py": SCRIPT.read_text(),
        "http/wire/body.py": MODULE,
        "http/app.py": "x = 1\n",
        "tests/test_body.py": MODULE,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git("init", "-q")
    git("add", "--all")
    git("commit", "-qm", "one")
    (tmp_path / "http/app.py").unlink()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/new.py").write_text("y = 1\ny = 2\n")

    committed = [["http", "1", "1", "1"], ["http/wire", "1", "17", "6"], ["all", "2", "18", "7"]]
    assert run(tmp_path, "HEAD")[1:] == committed
    assert run(tmp_path)[1:] == [["http/wire", "1", "17", "6"], ["model", "1", "2", "2"], ["all", "2", "19", "8"]]
    git("add", "--all")
    git("commit", "-qm", "two")
    changes = {row[0]: row[-1] for row in run(tmp_path, "HEAD~1", "HEAD")[1:]}
    assert changes == {"http": "-1", "http/wire": "+0", "model": "+2", "all": "+1"}
