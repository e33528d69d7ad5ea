"""The pages of docs/extending, followed: their blocks are applied to a copy of the tree, and their commands run there.

What a page may hold:
- ``New file `path`:`` and a fenced block: the file's content;
- ``In `path`:`` and a fenced block of diff: hunks without line numbers. Between `@@` lines, the lines that begin with a
  space or a minus must stand in the file exactly once, one after the other; a plus adds a line;
- a fenced block of bash: commands that must succeed.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "extending"
COPIED = ("palladio", "http", "runtime", "model", "pallas_kernels", "tests", "scripts", "docs", "benchmarks")
FILES = ("pyproject.toml", "README.md", "Makefile")

_BLOCK = re.compile(r"^(?:(New file|In) `([^`\n]+)`[^\n]*:\n\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Step:
    """One block of a page.

    Attributes:
        kind: create a file, edit one, or run commands.
        path: of the file, from the tree's root; "" for commands.
        text: of the block.
    """

    kind: str
    path: str
    text: str


def steps_of(page: Path) -> list[Step]:
    """The steps of a page, in order. Blocks of other languages are only to be read."""
    steps = []
    for verb, path, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        kind = "create" if verb == "New file" else "edit" if language == "diff" else "run"
        assert (kind == "run") == (path == ""), f"{page.name}: a diff or a file without `In` or `New file`: {text}"
        if kind != "run" or language == "bash":
            steps.append(Step(kind, path, text))
    return steps


def edited(text: str, diff: str, where: str) -> str:
    """`text` with all hunks of a diff applied."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = [line or " " for line in hunk.splitlines()]
        assert {line[0] for line in lines} <= set(" +-"), f"{where}: a line begins with none of ' +-':\n{hunk}"
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
        if not lines:
            continue
        places = [place.start() for place in re.finditer(f"^{re.escape(old)}", text, re.MULTILINE)]
        assert old, f"{where}: a hunk needs a line that stands in the file already:\n{hunk}"
        assert len(places) == 1, f"{where}: these lines stand in it {len(places)} times, not once:\n{old}"
        text = text[: places[0]] + new + text[places[0] + len(old) :]
    return text


def copy_tree(target: Path) -> None:
    """The folders that a developer changes, links kept."""
    ignore = shutil.ignore_patterns("__pycache__", "results")
    for name in COPIED:
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, target / name)


def apply_step(step: Step, source: Path, target: Path) -> None:
    """Writes what a step makes of `source`'s file into `target`, unless an earlier step has written it there."""
    file = target / step.path
    if step.kind == "create":
        assert not (source / step.path).exists(), f"{step.path} is there already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(step.text, encoding="utf-8")
        return
    before = (file if file.exists() else source / step.path).read_text(encoding="utf-8")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(edited(before, step.text, step.path), encoding="utf-8")


def run_in(tree: Path, commands: str) -> str:
    """Runs commands in a tree, with that tree first on the path; returns what they print."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PYTHONPATH": str(tree), "PATH": path, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-6000:]}"
    return done.stdout
