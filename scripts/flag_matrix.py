"""Runs the rows of tests/flag_matrix/rows.py: a server each, with an empty folder for native code, and one request;
once as this processor, and once as one with AVX2 and nothing newer. A line for each row; exit status 1 if one fails.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.peers.peer_builds import BuildError, avx2_library  # noqa: E402
from tests.flag_matrix.files import Folder  # noqa: E402
from tests.flag_matrix.rows import ROWS, Row  # noqa: E402
from tests.flag_matrix.runner import KEEPS_OBJECTS, RowFailed, Runner, compiler, own_environment  # noqa: E402

_FORMS = "import pathlib; from palladio.pallas_kernels.cpu_native.forms import forms_of; "
_FORMS += "print(*forms_of(pathlib.Path('/proc/cpuinfo').read_text()))"


class Usual:
    """The servers that rows are compared with; each runs once."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._found: dict[tuple[Path, str], float] = {}
        self._locks: dict[tuple[Path, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, row: Row) -> float:
        """
        Raises:
            RowFailed: the server without the row's flags does not serve.
        """
        with self._lock:  # a file is made once
            self._runner.files.path(row.file)
            key = self._runner.files.twin(row.file), row.usual
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._found:
                self._found[key] = self._runner.usual(row)
            return self._found[key]


def run_rows(rows: Sequence[Row], runner: Runner, jobs: int, processor: str) -> int:
    """Print a line a row.

    Returns:
        The number of failed rows.
    """
    usual = Usual(runner)

    def run(row: Row) -> str | None:
        start = time.monotonic()
        try:
            outcome = runner.run(row, usual.of(row))
            found = "refused, as it ought to be"
            if outcome.mean is not None:
                found = f"{outcome.mean:.5f}, {outcome.difference:.5f} of {row.tolerance}"
        except (RowFailed, subprocess.TimeoutExpired) as error:
            print(f"FAILED {processor}  {row.name}  {error}", flush=True)
            return row.name
        print(f"ok  {processor}  {row.name}  {found}  ({time.monotonic() - start:.0f} s)", flush=True)
        return None

    pool = ThreadPoolExecutor(jobs)
    try:
        failed = [name for name in pool.map(run, rows) if name is not None]
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C only rows that have begun go on, to end their servers
    print(f"{processor}: {len(rows)} rows, {len(failed)} failed: {'; '.join(failed) or 'none'}", flush=True)
    return len(failed)


def avx2_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that shows programs a processor with AVX2 and nothing newer.

    Raises:
        BuildError: it does not; the message says why.
    """
    shown = {**environment, "LD_PRELOAD": str(avx2_library(folder))}
    done = subprocess.run(
        [sys.executable, "-c", _FORMS], env=shown, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    if done.stdout.split() != ["avx2"]:
        raise BuildError(f"benchmarks/peers/avx2_cpu.c shows {done.stdout.strip() or done.stderr.strip() or 'nothing'}")
    return shown


def main() -> int:
    """The exit status: 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", dest="name", default="", help="only rows in whose name this regular expression is found")
    parser.add_argument("--processor", choices=("this", "avx2", "both"), default="both")
    parser.add_argument("--jobs", type=int, default=2, help="servers at a time; default: 2")
    parser.add_argument("--seconds", type=float, default=600.0, help="that a row may take; default: 600")
    parser.add_argument("--list", action="store_true", help="only print the rows' names")
    args = parser.parse_args()
    rows = [row for row in ROWS if re.search(args.name, row.name)]
    if args.list or not rows:
        print(*(row.name for row in rows), f"{len(rows)} rows", sep="\n")
        return 0 if rows else 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = own_environment(compiler(folder / "tools", KEEPS_OBJECTS), PYTHONPATH=str(ROOT))
        environment.pop("LD_PRELOAD", None)
        files, failed = Folder(folder / "files"), 0
        if args.processor in ("this", "both"):
            failed += run_rows(rows, Runner(files, environment, seconds=args.seconds), args.jobs, "this processor")
        if args.processor in ("avx2", "both"):
            try:
                shown = avx2_environment(folder, environment)
            except BuildError as error:
                print(f"AVX2: no row ran, because it cannot be shown here: {error}")
                return 1 if failed or args.processor == "avx2" else 0
            failed += run_rows(rows, Runner(files, shown, seconds=args.seconds), args.jobs, "AVX2")
    return 1 if failed else 0


if __name__ == "__main__":
    os.umask(0o022)  # a folder of native code that others can write to is refused
    sys.exit(main())
