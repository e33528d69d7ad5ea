"""Servers for benchmarks: started on a free port, watched through /proc, ended with all of their children."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palladio import __version__
from palladio.utils import terminate_process

START_SECONDS = 400.0
PACKAGES = ("jax", "jaxlib", "numpy", "transformers", "torch", "httpx", "uvicorn")


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a process and its descendants: bytes of resident memory (pss: shared memory counts once), open files
    (sockets too), threads."""

    rss: int = 0
    files: int = 0
    threads: int = 0
    pss: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        files, threads = self.files + other.files, self.threads + other.threads
        return Usage(self.rss + other.rss, files, threads, self.pss + other.pss)


@dataclasses.dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers.

    Attributes:
        url: its address, without a path.
        process: its process; None: another program started it.
        log: its output; None: another program started it.
    """

    url: str
    process: subprocess.Popen[str] | None = None
    log: Path | None = None

    @property
    def is_alive(self) -> bool:
        return self.process is None or self.process.poll() is None


def exit_on_sigterm() -> None:
    """Make this process end its servers too when it gets SIGTERM, from `timeout` for example."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def palladio_command(model_path: str | None, flags: Sequence[str]) -> list[str]:
    """The launch command; without a path, of the embedded model. It compiles everything first: nothing does so while
    something is measured."""
    model = ["--model-path", model_path] if model_path else []
    return [sys.executable, "-m", "palladio", "serve", "--compile", "full", *model, *flags]


@contextlib.contextmanager
def running_server(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator[RunningServer]:
    """Start `command` with a --host and a --port, wait until /health is 200, and end it at exit.

    Args:
        environment: variables in addition to this process's own.
        folder: its working folder; default: this process's.

    Raises:
        RuntimeError: it ended before it was ready.
        TimeoutError: it was not ready after START_SECONDS.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as data:
        ours = {"HF_HUB_OFFLINE": "1", "PALLADIO_DATA_DIR": data}
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | ours | dict(environment or {}),
                cwd=folder,
                start_new_session=True,
            )
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", process, START_SECONDS)
            yield RunningServer(f"http://127.0.0.1:{port}", process, log)
        finally:
            terminate_process(process)


def add_server_arguments(parser: argparse.ArgumentParser, default_flags: Sequence[str]) -> None:
    """The arguments of `chosen_server`."""
    parser.add_argument("--base-url", help="of a running server; default: start one")
    parser.add_argument("--model-path", help="default: the embedded default model")
    parser.add_argument("--log", type=Path, help="keep the server's log here")
    help_text = f"launch flags, after --; default: {' '.join(default_flags)}"
    parser.add_argument("flags", nargs="*", default=list(default_flags), help=help_text)


@contextlib.contextmanager
def chosen_server(args: argparse.Namespace) -> Iterator[RunningServer]:
    """The running server that the arguments name, or one of their own."""
    if args.base_url:
        yield RunningServer(args.base_url.rstrip("/").removesuffix("/v1"))
        return
    with tempfile.TemporaryDirectory() as folder:
        log = args.log or Path(folder) / "log"
        with running_server(palladio_command(args.model_path, args.flags), log) as server:
            yield server


def wait_until_healthy(url: str, process: subprocess.Popen[str], limit: float) -> None:
    deadline = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        if process.poll() is not None:
            raise RuntimeError(f"the server exited with code {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready after {limit:g} s")
        time.sleep(0.2)


def usage_of_tree(pid: int) -> Usage:
    """Return the usage of a process and all of its descendants together; Usage() when it has ended. Linux only."""
    return sum(map(_usage_of, _tree_of(pid)), Usage())


def peak_of_tree(pid: int) -> int:
    """Bytes of resident memory that a process and its descendants had at most, each at its own moment. Linux only."""
    return sum(map(_peak_of, _tree_of(pid)))


def cpu_seconds_of_tree(pid: int) -> float:
    """Return the CPU time of a process and all of its descendants, including ended ones. Linux only."""
    return sum(_cpu_seconds_of(member) for member in _tree_of(pid))


def cpu_seconds_by_kind(pid: int, kinds: Mapping[str, str], other: str) -> dict[str, float]:
    """CPU time of a process and all of its descendants, by what they are. Linux only.

    Args:
        kinds: word of a command line → its kind. The first one that fits counts.
        other: the kind of all others.
    """
    seconds: dict[str, float] = {}
    for member in _tree_of(pid):
        kind = _kind_of(member, kinds, other)
        seconds[kind] = seconds.get(kind, 0.0) + _cpu_seconds_of(member)
    return seconds


def memory_by_kind(pid: int, kinds: Mapping[str, str], other: str) -> dict[str, int]:
    """Resident bytes of a process and all of its descendants, by what they are: see cpu_seconds_by_kind. Linux only."""
    sizes: dict[str, int] = {}
    for member in _tree_of(pid):
        kind = _kind_of(member, kinds, other)
        sizes[kind] = sizes.get(kind, 0) + _usage_of(member).rss
    return sizes


def _kind_of(pid: int, kinds: Mapping[str, str], other: str) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended
        return other
    return next((kind for word, kind in kinds.items() if word in command), other)


def _cpu_seconds_of(pid: int) -> float:
    """With its children that have ended; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _tree_of(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    tree = [pid]
    for member in tree:  # grows while it is walked
        tree += children.get(member, ())
    return tree


def _usage_of(pid: int) -> Usage:
    folder = Path(f"/proc/{pid}")
    try:
        pages = int((folder / "statm").read_text().split()[1])
        files = len(list((folder / "fd").iterdir()))
        threads = len(list((folder / "task").iterdir()))
        shares = (folder / "smaps_rollup").read_text().partition("\nPss:")[2].split()
    except OSError:  # it has ended
        return Usage()
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), files, threads, int(shares[0]) << 10 if shares else 0)


def _peak_of(pid: int) -> int:
    """0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("\nVmHWM:")[2].split()[0]) << 10
    except (OSError, IndexError):
        return 0


def provenance() -> dict[str, Any]:
    """Return the origin of a report: date, machine, versions, command."""
    versions = {"palladio": __version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": versions,
        "command": shlex.join(["python", *sys.argv]),
    }
