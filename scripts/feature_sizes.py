#!/usr/bin/env python3
"""Prints what features took that came through a seam: their own files, and what else their commit changed.

    scripts/feature_sizes.py            # all of them
    scripts/feature_sizes.py family     # one kind

A commit often brings several features; then they share what it changed elsewhere. Lines are of the working tree.
"""

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("palladio/", "http/", "runtime/", "model/", "pallas_kernels/")
SEAMS = {  # kind of feature → its files, and what of them is the seam itself
    "family": (("model/families/*.py",), ("__init__",)),
    "format of weights": (("model/formats/*.py",), ("__init__", "packing", "stored_format")),
    "kind of weight": (("model/weights/scaled.py", "model/weights/quantize.py", "model/weights/file_matrix.py"), ()),
    "kind of cache": (("model/cache/*_cache.py",), ("kv_cache", "paged_cache")),
    "proposer": (("runtime/execution/**/*proposer*.py",), ()),
}


@dataclasses.dataclass(frozen=True)
class Feature:
    """
    Attributes:
        file: its own. lines: of it.
        commit: that added it.
        num_beside: product files that the commit changed and did not add; None: it merged others' changes as well.
        added, deleted: lines in these.
    """

    file: str
    lines: int
    commit: str
    num_beside: int | None
    added: int = 0
    deleted: int = 0

    @property
    def row(self) -> str:
        changed = f"{self.num_beside} files, +{self.added} −{self.deleted}" if self.num_beside else "nothing"
        changed = "unknown: the commit is a merge" if self.num_beside is None else changed
        return f"{self.file} | {self.lines} | {self.commit} | {changed}"


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def features(kind: str) -> Iterator[Feature]:
    """By name."""
    patterns, seam = SEAMS[kind]
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.stem not in seam):
        name = str(path.relative_to(ROOT))
        lines = path.read_text(encoding="utf-8").count("\n")
        found = git("log", "--diff-filter=A", "--follow", "--format=%h", "--", name)
        if not found:
            if merges := git("log", "-m", "--diff-filter=A", "--format=%h", "--", name):
                yield Feature(name, lines, merges[-1], None)
            continue  # or it is not committed yet
        commit = found[-1]
        new = set(git("show", "--diff-filter=A", "--format=", "--name-only", commit))
        rows = [row.split("\t") for row in git("show", "--format=", "--numstat", "--no-renames", commit)]
        beside = [row for row in rows if row[2].startswith(PRODUCT) and row[2] not in new and row[0] != "-"]
        added, deleted = (sum(int(row[column]) for row in beside) for column in (0, 1))
        yield Feature(name, lines, commit, len(beside), added, deleted)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(SEAMS)}; default: all")
    kinds = parser.parse_args(argv).kinds or list(SEAMS)
    if unknown := [kind for kind in kinds if kind not in SEAMS]:
        parser.error(f"unknown kind {unknown[0]!r}: there are {', '.join(SEAMS)}")
    print("| kind | own file | lines | commit | what else of the product it changed |\n|---|---|---|---|---|")
    for kind in kinds:
        for feature in features(kind):
            print(f"| {kind} | {feature.row} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
