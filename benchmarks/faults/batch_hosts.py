"""Batches of several servers with one PostgreSQL: kills at random moments, and lines/s beside one SQLite server.

    python benchmarks/faults/batch_hosts.py kills --lines 5000 --repeats 3
    python benchmarks/faults/batch_hosts.py throughput --lines 1000 --turns 3

Each "host" is a server of its own, with the embedded model. Kills: of all processes of a server, of its HTTP process
alone, of its engine alone, and of the database, each with SIGKILL (the database's processes: SIGQUIT, at which they end
without writing anything); what was killed is started again. PostgreSQL runs from a temporary folder, with fsync.
"""

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import httpx

from benchmarks.faults.batch_kills import create
from benchmarks.serving.batches import ENDED, body_of, by_batch
from benchmarks.support.report import report
from benchmarks.support.server_process import (
    RunningServer,
    cpu_seconds_of_tree,
    exit_on_sigterm,
    palladio_command,
    running_server,
)
from tests.postgres_server import PostgresServer, missing

FLAGS = ("--served-model-name", "default", "--max-running-requests", "16", "--max-total-tokens")
WARM_LINES = 200
VICTIMS = ("server", "http", "engine", "database")


class Host:
    """A server that can be killed and started again."""

    def __init__(self, name: str, folder: Path, flags: Sequence[str]) -> None:
        self.name = name
        self._folder = folder
        self._flags = flags
        self._stack = contextlib.ExitStack()
        self._starts = 0
        self.server: RunningServer | None = None

    def start(self) -> None:
        self._starts += 1
        log = self._folder / f"{self.name}-{self._starts}.log"
        self.server = self._stack.enter_context(running_server(palladio_command(None, self._flags), log))

    def kill(self, what: str) -> None:
        """Kill processes of the server.

        Args:
            what: server, http or engine. All but an engine must be started again.
        """
        assert self.server is not None
        assert self.server.process is not None
        pid = self.server.process.pid
        if what == "engine":
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            return
        (os.killpg if what == "server" else os.kill)(pid, signal.SIGKILL)
        self.server.process.wait()
        self.stop()

    def stop(self) -> None:
        self._stack.close()
        self.server = None


@contextlib.contextmanager
def hosts(
    count: int, folder: Path, database: PostgresServer | None, lease: float, *, is_quick: bool
) -> Iterator[list[Host]]:
    """Yield hosts that are not started.

    Args:
        is_quick: start quickly, and compile later.
    """
    compile_flags = ["--compile", "lazy" if is_quick else "full"]  # the latter: nothing is compiled later on
    flags = [*FLAGS, "16384", *compile_flags, "--file-storage-path", str(folder / "storage")]
    if database is not None:
        flags += ["--database-url", database.url(), "--database-lease", str(lease)]
    made = [Host(f"host{number}", folder, flags) for number in range(count)]
    try:
        yield made
    finally:
        for host in made:
            host.stop()


def start_all(made: Sequence[Host]) -> None:
    """At once: nothing is measured yet."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(Host.start, made))


@contextlib.contextmanager
def database_server() -> Iterator[PostgresServer]:
    server = PostgresServer.create(is_durable=True)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def ask(made: Sequence[Host], path: str, seconds: float = 60.0) -> httpx.Response:
    """From any server that answers."""
    deadline = time.monotonic() + seconds
    while True:
        for host in made:
            if host.server is not None:
                with contextlib.suppress(httpx.HTTPError):
                    answer = httpx.get(f"{host.server.url}{path}", timeout=20)
                    if answer.status_code == 200:
                        return answer
        assert time.monotonic() < deadline, f"no server answers {path}"
        time.sleep(0.2)


def strike(victim: str, rng: random.Random, made: Sequence[Host], database: PostgresServer) -> str:
    """Kills one, and starts it again."""
    if victim == "database":
        database.stop(signal.SIGKILL)
        time.sleep(rng.uniform(0.0, 3.0))
        database.start()
        return victim
    host = rng.choice(made)
    host.kill(victim)
    if victim != "engine":
        time.sleep(rng.uniform(0.0, 2.0))
        host.start()
    return f"{victim} of {host.name}"


def kill_case(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    begun, struck = time.monotonic(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name, database_server() as database:
        folder = Path(name).resolve()
        with hosts(2, folder, database, args.lease, is_quick=True) as made:
            start_all(made)
            assert made[0].server is not None
            with httpx.Client(base_url=made[0].server.url, timeout=60) as client:
                batch_id = create(client, args.lines, args.max_tokens)
            victims = list(VICTIMS)
            rng.shuffle(victims)
            while (batch := ask(made, f"/v1/batches/{batch_id}").json())["status"] not in ENDED:
                assert time.monotonic() - begun < args.limit, f"the batch stays {batch['status']}"
                time.sleep(rng.uniform(0.5, args.pause))
                if victims:
                    done = batch["request_counts"]["completed"] + batch["request_counts"]["failed"]
                    struck.append({"killed": strike(victims.pop(), rng, made, database), "lines_before": done})
                    print(json.dumps(struck[-1]), file=sys.stderr, flush=True)
            seen: collections.Counter[str] = collections.Counter()
            for field in ("output_file_id", "error_file_id"):
                if batch[field] is not None:
                    lines = ask(made, f"/v1/files/{batch[field]}/content").text.splitlines()
                    seen.update(json.loads(line)["custom_id"] for line in lines)
    return {
        "seed": seed,
        "status": batch["status"],
        "counts": batch["request_counts"],
        "kills": struck,
        "lost": args.lines - len(seen),
        "doubled": sum(count - 1 for count in seen.values()),
        "seconds": round(time.monotonic() - begun, 1),
    }


def kills(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    cases = []
    for number in range(args.repeats):
        cases.append(kill_case(args, args.seed + number))
        print(json.dumps(cases[-1]), file=sys.stderr, flush=True)
    bad = sum(bool(case["lost"] or case["doubled"] or case["status"] != "completed") for case in cases)
    return {"lines": args.lines, "lease_seconds": args.lease, "cases_with_a_fault": bad, "cases": cases}, bad == 0


async def rate(url: str, first: int, num_lines: int, args: argparse.Namespace) -> float:
    bodies = [body_of(first + number, args.max_tokens) for number in range(num_lines)]
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        return await asyncio.wait_for(by_batch(client, bodies), args.limit)


def throughput(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measure alternately: one server has the cores, or two share them. CPU time is that of the servers and of
    PostgreSQL together."""
    rates = collections.defaultdict[str, list[float]](list)
    cpu = collections.defaultdict[str, list[float]](list)  # ms a line
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        database = stack.enter_context(database_server())
        for name in ("alone", "shared"):
            (folder / name).mkdir()
        (alone,) = stack.enter_context(hosts(1, folder / "alone", None, args.lease, is_quick=args.quick))
        first, second = stack.enter_context(hosts(2, folder / "shared", database, args.lease, is_quick=args.quick))
        start_all((alone, first, second))
        assert second.server is not None
        paused = second.server.process
        assert paused is not None
        assert database.process is not None
        pids = [host.server.process.pid for host in (alone, first, second) if host.server and host.server.process]
        pids.append(database.process.pid)
        used = 0

        def measure(host: Host, side: str) -> None:
            nonlocal used
            assert host.server is not None
            used += args.lines
            before = sum(map(cpu_seconds_of_tree, pids))  # who has nothing to do takes next to none
            rates[side].append(asyncio.run(rate(host.server.url, used, args.lines, args)))
            cpu[side].append(1000 * (sum(map(cpu_seconds_of_tree, pids)) - before) / args.lines)
            print(f"{side}: {rates[side][-1]:.1f} lines/s, {cpu[side][-1]:.2f} ms", file=sys.stderr, flush=True)

        for host in (alone, first):  # the first requests of a server are slower
            assert host.server is not None
            asyncio.run(rate(host.server.url, -WARM_LINES, WARM_LINES, args))
        for _ in range(args.turns):
            os.killpg(paused.pid, signal.SIGSTOP)
            time.sleep(args.lease + 1)
            measure(alone, "sqlite, one server")
            measure(first, "postgresql, one server")
            os.killpg(paused.pid, signal.SIGCONT)
            time.sleep(1)
            measure(first, "postgresql, two servers")
    medians = {side: round(statistics.median(values), 1) for side, values in rates.items()}
    base = medians["sqlite, one server"]
    ratios = {side: round(value / base, 3) for side, value in medians.items()}
    milliseconds = {side: round(statistics.median(values), 3) for side, values in cpu.items()}
    result = {"lines": args.lines, "lines_per_second": rates, "medians": medians, "ratios": ratios}
    return result | {"cpu_ms_per_line": milliseconds}, True


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("kills", "throughput"))
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--max-tokens", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--lease", type=float, default=4.0, help="seconds (--database-lease)")
    parser.add_argument("--pause", type=float, default=6.0, help="seconds between two kills, at most")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds that one batch may take")
    parser.add_argument("--quick", action="store_true", help="throughput: compile while the first lines run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if (reason := missing()) is not None:
        parser.error(reason)
    exit_on_sigterm()
    result, is_good = {"kills": kills, "throughput": throughput}[args.what](args)
    report("faults/batch_hosts.py", argv, result, args.out)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
