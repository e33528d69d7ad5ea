#!/usr/bin/env python3
"""Prints how large the product is, room by room: files, lines and statements.

    scripts/count_statements.py             # the working tree
    scripts/count_statements.py v0.1.0      # a git revision
    scripts/count_statements.py main HEAD   # two, and what changed between them

A statement is one of Python's grammar, whatever lines it takes; docstrings and imports are left out, so that neither
explaining nor moving code counts. Tests, scripts and training are no part of the product.
"""

import argparse
import ast
import collections
import dataclasses
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("palladio", "http", "runtime", "model", "pallas_kernels", "palladio_serve.py")


@dataclasses.dataclass
class Size:
    """The size of some files together."""

    files: int = 0
    lines: int = 0
    statements: int = 0

    def add(self, other: "Size") -> None:
        self.files += other.files
        self.lines += other.lines
        self.statements += other.statements


def count_statements(source: str) -> int:
    """Statements of a module, but docstrings (and other texts that stand alone) and imports."""
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt))
    return sum(not isinstance(node, ast.Import | ast.ImportFrom) and not _is_text(node) for node in statements)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def sizes(sources: Iterator[tuple[str, str]]) -> dict[str, Size]:
    """Return the size of each room.

    Args:
        sources: paths and texts; the room of `http/chat/chat_run.py` is http/chat.
    """
    rooms: dict[str, Size] = collections.defaultdict(Size)
    for path, text in sources:
        rooms[path.rpartition("/")[0] or path].add(Size(1, text.count("\n"), count_statements(text)))
    return dict(rooms)


def read_tree(root: Path) -> Iterator[tuple[str, str]]:
    """Paths and texts of the product's modules in the working tree; links, such as palladio/http, are not followed."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PRODUCT],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in names.split("\0"):
        if name.endswith(".py") and (root / name).is_file():
            yield name, (root / name).read_text(encoding="utf-8")


def read_revision(root: Path, revision: str) -> Iterator[tuple[str, str]]:
    """The same of a git revision."""
    listed = subprocess.run(["git", "ls-tree", "--name-only", revision], cwd=root, capture_output=True, check=True)
    paths = [path for path in PRODUCT if path in listed.stdout.decode().splitlines()]
    command = ["git", "archive", revision, "--", *paths]
    archive = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            file = files.extractfile(member) if member.isfile() and member.name.endswith(".py") else None
            if file is not None:
                yield member.name, file.read().decode("utf-8")


def table(rooms: dict[str, Size], before: dict[str, Size] | None = None) -> list[str]:
    """A line for each room, and one for all of them; with the change of statements since `before`."""
    total, old_total = Size(), Size()
    lines = [f"{'room':<40} {'files':>6} {'lines':>7} {'statements':>11}{'   change' if before is not None else ''}"]
    for room in sorted({*rooms, *(before or {})}):
        size, old = rooms.get(room, Size()), (before or {}).get(room, Size())
        total.add(size)
        old_total.add(old)
        lines.append(_row(room, size, None if before is None else old))
    return [*lines, _row("all", total, None if before is None else old_total)]


def _row(name: str, size: Size, old: Size | None) -> str:
    change = "" if old is None else f" {size.statements - old.statements:>+8}"
    return f"{name:<40} {size.files:>6} {size.lines:>7} {size.statements:>11}{change}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revisions", nargs="*", metavar="REVISION", help="of git; none: the working tree; at most two")
    revisions = parser.parse_args(argv).revisions
    if len(revisions) > 2:
        parser.error("give at most two revisions")
    try:
        found = [sizes(read_revision(ROOT, revision)) for revision in revisions] or [sizes(read_tree(ROOT))]
    except subprocess.CalledProcessError as error:
        print(error.stderr.decode().strip() if isinstance(error.stderr, bytes) else error.stderr, file=sys.stderr)
        return 1
    print("\n".join(table(found[-1], found[0] if len(found) == 2 else None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
