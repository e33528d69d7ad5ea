"""Puts each fault of tests/faults/faults.py into a copy of the tree and runs the tests that ought to find it."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.faults.faults import FAULTS, Fault  # noqa: E402

SECONDS = 900  # that the tests of one fault may take
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    """The exit status: 1 if a fault was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="words of the faults to try; default: all")
    parser.add_argument("--tests-of", metavar="REVISION", help="take the folder tests/ of another git revision")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that are tried at once; default: 1")
    options = parser.parse_args()
    faults = [one for one in FAULTS if not options.names or any(name in one.name for name in options.names)]
    if not faults:
        parser.error(f"no fault has any of these words in its name: {', '.join(options.names)}")
    with tempfile.TemporaryDirectory(prefix="seeded-faults-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(min(options.jobs, len(faults))):
            copies.put(_copy(Path(folder) / str(number), options.tests_of))

        def one(fault: Fault) -> bool:
            copy = copies.get()
            try:
                return _report(fault, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(one, faults))
    print(f"\n{sum(found)} of {len(found)} faults were found")
    return 0 if all(found) else 1


def _report(fault: Fault, copy: Path) -> bool:
    """Whether it was found; prints a line."""
    begun = time.monotonic()
    verdict, by = _try(fault, copy)
    print(f"| {verdict:6} | {fault.name} | {by} | {time.monotonic() - begun:.0f} s |", flush=True)
    return verdict == "found"


def _try(fault: Fault, copy: Path) -> tuple[str, str]:
    """found, missed or unclear; and by which test, or why."""
    file = copy / fault.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(fault.old) != 1:
        return "stale", f"{fault.file} has {whole.count(fault.old)} times: {fault.old!r}"
    file.write_text(whole.replace(fault.old, fault.new), encoding="utf-8")
    words = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "-rfE"]
    tests = [path for path in fault.tests if (copy / path).exists()]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "found", f"the tests took over {SECONDS} s"
    finally:
        file.write_text(whole, encoding="utf-8")
    failed = _FAILED.search(done.stdout)
    if done.returncode == 1 and failed is not None:
        return "found", failed[1]
    if done.returncode == 0:
        return "MISSED", " ".join(fault.tests)
    return "broken", (done.stdout + done.stderr).strip().splitlines()[-1]


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
