"""Puts each fault of tests/faults/faults.py into a copy of the tree and runs the quick tests that ought
to catch it, until the first one fails. It counts only if the same test passes in the copy without the fault.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.support.server_process import provenance  # noqa: E402
from tests.faults.fault import Fault  # noqa: E402
from tests.faults.faults import FAULTS  # noqa: E402

SECONDS = 600  # that one run of pytest may take
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - (.*))?$", re.MULTILINE)  # not a log line of level ERROR
_PYTEST = ("-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """
    Attributes:
        verdict: caught or MISSED; STALE: the fault has no place in the tree; BROKEN: pytest did not run.
        by: the test that caught it, or why none did.
        reason: what the catching test said.
    """

    fault: str
    file: str
    verdict: str
    by: str
    reason: str = ""
    seconds: float = 0.0


class Baseline:
    """Which tests pass without a fault; each is tried once."""

    def __init__(self) -> None:
        self._passes: dict[str, bool] = {}
        self._lock = threading.Lock()

    def failing(self) -> list[str]:
        with self._lock:
            return sorted(test for test, passes in self._passes.items() if not passes)

    def passes(self, test: str, copy: Path) -> bool:
        """`copy` has no fault now."""
        with self._lock:
            known = self._passes.get(test)
        if known is None:
            done = _pytest(copy, [test])
            known = done is not None and done.returncode == 0
            with self._lock:
                self._passes[test] = known
        return known


def main() -> int:
    """The exit status: 1 if a fault was not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="words of the faults to try; default: all")
    parser.add_argument("--tests-of", metavar="REVISION", help="take the folder tests/ of another git revision")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that are tried at once; default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args()
    faults = [one for one in FAULTS if not options.names or any(name in one.name for name in options.names)]
    if not faults:
        parser.error(f"no fault has any of these words in its name: {', '.join(options.names)}")
    baseline = Baseline()
    with tempfile.TemporaryDirectory(prefix="seeded-faults-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(min(options.jobs, len(faults))):
            copies.put(_copy(Path(folder) / str(number), options.tests_of))

        def one(fault: Fault) -> Outcome:
            copy = copies.get()
            begun = time.monotonic()
            try:
                outcome = _try(fault, copy, baseline)
            finally:
                copies.put(copy)
            outcome = dataclasses.replace(outcome, seconds=round(time.monotonic() - begun, 1))
            print(f"| {outcome.verdict} | {fault.name} | {outcome.by} | {outcome.seconds:.0f} s |", flush=True)
            return outcome

        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(one, faults))
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    for test in baseline.failing():
        print(f"fails without any fault, so it counted for none: {test}")
    print(f"\ncaught {caught} of {len(outcomes)}")
    if options.json:
        report = provenance() | {
            "caught": caught,
            "of": len(outcomes),
            "fail_without_a_fault": baseline.failing(),
            "rows": [dataclasses.asdict(outcome) for outcome in outcomes],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if caught == len(outcomes) else 1


def _try(fault: Fault, copy: Path, baseline: Baseline) -> Outcome:
    file = copy / fault.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(fault.old) != 1:
        found = f"{fault.file} has {whole.count(fault.old)} times: {fault.old!r}"
        return Outcome(fault.name, fault.file, "STALE", found)
    tests = [path for path in fault.tests if (copy / path).exists()]
    while tests:
        file.write_text(whole.replace(fault.old, fault.new), encoding="utf-8")
        try:
            done = _pytest(copy, tests[:1], without=baseline.failing())
        finally:
            file.write_text(whole, encoding="utf-8")
        if done is None:
            return Outcome(fault.name, fault.file, "BROKEN", f"{tests[0]} took over {SECONDS} s")
        failed = _FAILED.search(done.stdout)
        if done.returncode == 1 and failed is not None:
            if baseline.passes(failed[1], copy):
                return Outcome(fault.name, fault.file, "caught", failed[1], failed[2] or "")
        elif done.returncode in (0, 5):  # passed; none was left to run
            del tests[0]
        else:
            return Outcome(fault.name, fault.file, "BROKEN", (done.stdout + done.stderr).strip().splitlines()[-1])
    return Outcome(fault.name, fault.file, "MISSED", " ".join(fault.tests))


def _pytest(copy: Path, tests: list[str], without: Sequence[str] = ()) -> subprocess.CompletedProcess[str] | None:
    """None: it took too long."""
    skipped = [f"--deselect={test}" for test in without]
    try:
        return subprocess.run(
            [sys.executable, *_PYTEST, "-rfE", *skipped, *tests],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "240"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def _copy(folder: Path, tests_of: str | None) -> Path:
    """The files that git knows, as they are now, and new ones that it does not ignore."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    if tests_of is not None:
        shutil.rmtree(folder / "tests")
        archive = subprocess.run(["git", "archive", tests_of, "tests"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
    return folder


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
