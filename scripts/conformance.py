"""The openai SDK's own tests, and a fuzz test of /openapi.json, against a server of ours: `make conformance`.

The tests come with the source of the installed SDK's version, from the package index; it is kept beside the virtual
environment's packages. conformance.toml says which tests cannot pass, and why.

    scripts/conformance [--fuzz-seconds N] [arguments of pytest]
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from running_server import running_server

HERE = Path(__file__).resolve().parent
CACHE = Path(sys.prefix) / "conformance"
SERVER = (
    "python3 -m palladio serve --host 127.0.0.1 --served-model-name '*' --max-running-requests 8 --page-size 8 "
    "--chunked-prefill-size 128 --context-length 512 --request-timeout 30 --log-level warning --compile lazy"
)
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis")


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of requests.

    Attributes:
        added: fields that they get, unless they have them.
        without: fields that are removed.
    """

    added: Mapping[str, Any]
    without: Iterable[str]


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the server ends as well
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fuzz-seconds", type=float, default=40.0, help="for all routes together")
    own, arguments = parser.parse_known_args(argv)
    selection = tomllib.loads((HERE / "conformance.toml").read_text(encoding="utf-8"))
    source = sdk_source(importlib.metadata.version("openai"))
    with running_server(SERVER) as url:
        failed = run_sdk_tests(source, url, selection, arguments)
        fuzz = [sys.executable, HERE / "fuzz_openapi.py", url, str(own.fuzz_seconds)]
        failed |= subprocess.run(fuzz, check=False).returncode != 0
    with running_server(f"{SERVER} --is-embedding") as url:
        failed |= run_sdk_tests(source, url, selection["embeddings"], arguments)
    print("conformance: FAILED" if failed else "conformance: passed")
    return int(failed)


def sdk_source(version: str) -> Path:
    """The unpacked source of the SDK, its tests included."""
    folder = CACHE / f"openai-{version}"
    if not folder.is_dir():
        CACHE.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "openai"]
        subprocess.run([*command, "--dest", CACHE, f"openai=={version}"], check=True)
        with tarfile.open(CACHE / f"openai-{version}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder


def run_sdk_tests(source: Path, url: str, selection: dict[str, Any], arguments: Sequence[str]) -> bool:
    """Prints what passed and what was left out and why; returns whether a test failed."""
    root = "tests/api_resources"
    tests = collect(source, [f"{root}/{file}" for file in selection["files"]])
    left_out: set[str] = set()
    failed = False
    for group in selection["deselected"]:
        found = matching(tests, f"{root}/{group['file']}", group["tests"], group.get("clients", r"\w+"))
        left_out.update(found)
        print(f"deselected: {len(found)} of {group['file']}: {group['reason']}")
    groups = selection.get("without", ())
    altered = [(group, matching(tests, f"{root}/{group['file']}", group["tests"])) for group in groups]
    left_out.update(*(found for _, found in altered))
    print(f"running {len(tests) - len(left_out)} of the {len(tests)} tests of {source.name}", flush=True)
    failed |= run_pytest(source, url, [test for test in tests if test not in left_out], arguments)
    for group, found in altered:
        added = group.get("added", {})
        print(f"running {len(found)} more of {group['file']} with {added} and without these fields, which get a 400:")
        for field, reason in group["fields"].items():
            print(f"  {field}: {reason}")
        sys.stdout.flush()
        failed |= run_pytest(source, url, found, arguments, Change(added, group["fields"]))
    return failed


def matching(tests: Sequence[str], file: str, pattern: str, clients: str = r"\w+") -> list[str]:
    """The tests of a file whose name matches; that none does is an error, so that the list only shrinks.

    Args:
        clients: the SDK's clients that it runs with: loose, strict, aiohttp.
    """
    name = re.compile(rf"{re.escape(file)}::\w+::test_{pattern}\[(?:{clients})\]")
    found = [test for test in tests if name.fullmatch(test)]
    if not found:
        raise SystemExit(f"error: conformance.toml: no test of {file} matches {pattern!r}")
    return found


def collect(source: Path, files: Sequence[str]) -> list[str]:
    """The ids of all tests of these files."""
    command = [sys.executable, "-m", "pytest", *PLUGINS, "-o", "addopts=", "--collect-only", "-q", *files]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    tests = [line for line in result.stdout.splitlines() if "::" in line]
    if result.returncode != 0 or not tests:
        raise SystemExit(f"error: the SDK's tests cannot be collected:\n{result.stdout}{result.stderr}")
    return tests


def run_pytest(
    source: Path, url: str, tests: Sequence[str], arguments: Sequence[str], change: Change | None = None
) -> bool:
    """Run tests, and return whether one failed.

    Args:
        change: change of the requests.
    """
    environment = os.environ | {"TEST_API_BASE_URL": f"{url}/v1"}
    plugins = list(PLUGINS)
    if change is not None:
        plugins += ["-p", "conformance_plugin"]
        environment |= {
            "PALLADIO_WITHOUT_FIELDS": ",".join(change.without),
            "PALLADIO_ADDED_FIELDS": json.dumps(change.added),
            "PYTHONPATH": str(HERE),
        }
    command = [
        sys.executable,
        "-m",
        "pytest",
        *plugins,
        "-o",
        "addopts=--tb=short --timeout=60",
        "-q",
        *tests,
        *arguments,
    ]
    return subprocess.run(command, cwd=source, env=environment, check=False).returncode != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
