"""How long the largest request of each route keeps the event loop from answering others, and what runs there.

    python benchmarks/serving/event_loop.py --json event_loop.json
    python benchmarks/serving/event_loop.py --only stop --only rerank
    python benchmarks/serving/event_loop.py --tree ../an-older-checkout --json before.json
    python benchmarks/serving/event_loop.py --beside before.json
    python benchmarks/serving/event_loop.py --clients 64  # waits for /health while so many send bodies of 1 MB
    python benchmarks/serving/event_loop.py --clients 64 --tree ../an-older-checkout --flags "--api-server-count 2"

A server of the embedded model, and one with --is-embedding, get each request of event_loop_requests.py, one at a time,
--times times. Meanwhile a client asks for /health every 10 ms. A row has the longest wait for it; how much CPU time
the loop's thread took in one of these waits, at most, which is what the loop did not give to others, and nothing that
a busy machine adds; and what it took in all. Each is the least of the repetitions. With --samples (py-spy installed,
and the right to trace), a row says in which function of ours most samples of the loop's thread were.

With --clients, that many clients send chat requests of --megabytes for --seconds, each one after the other. The prompt
is too long, so the server reads it and refuses it, and the engine has nothing to do. Meanwhile /health is asked for
every 10 ms, each time on a new connection. The clients are a process of their own, which shares the machine's cores.
"""

import argparse
import collections
import dataclasses
import http.client
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import numpy as np

from benchmarks.faults.attack_list import Target, text_of
from benchmarks.faults.attack_watch import FAILURES, Longest
from benchmarks.serving.event_loop_requests import REQUESTS, Largest, Room
from benchmarks.support.server_process import (
    RunningServer,
    exit_on_sigterm,
    palladio_command,
    provenance,
    running_server,
)

TREE = Path(__file__).resolve().parents[2]
EVERY = 0.01  # seconds between two questions
BASE_BYTES, TOKEN_BYTES, BASE_VALUES = 8 << 20, 64, 1_000_000  # of http/generation/context.py
_OURS = ("http/", "runtime/")
HEAD = ("route", "request", "answer", "longest wait, ms", "the loop's CPU in one, ms", "in all, ms", "most samples")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Attributes:
    wait: longest, for /health, in seconds.
    stall: seconds of CPU time of the loop's thread within one wait, at most. cpu: in all.
    where: the function with most samples of that thread, with their share.
    """

    path: str
    name: str
    answer: str
    wait: float
    stall: float
    cpu: float
    where: str

    def cells(self) -> tuple[str, ...]:
        times = (f"{seconds * 1e3:.0f}" for seconds in (self.wait, self.stall, self.cpu))
        return (self.path, self.name, self.answer, *times, self.where)


class HealthProbe:
    """Asks for /health all the time, on one connection.

    Attributes:
        waits: for its answers.
        stall: seconds of CPU time of the loop's thread within one of them, at most.
    """

    def __init__(self, server: RunningServer, pid: int) -> None:
        self.waits = Longest()
        self.stall = 0.0
        self._pid = pid
        self._address = urlsplit(server.url).netloc
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=120)
        while not self._over.wait(EVERY):
            self.waits.begin()
            before = loop_seconds(self._pid)
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except FAILURES:
                connection.close()
            self.waits.end()
            self.stall = max(self.stall, loop_seconds(self._pid) - before)


class Samples:
    """py-spy during a request. Without py-spy there are no samples."""

    def __init__(self, pid: int, folder: Path, seconds: float) -> None:
        self._path = folder / "samples"
        self._path.unlink(missing_ok=True)
        tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        command = [*(tool or "", "record", "--pid", str(pid), "--rate", "200", "--threads", "--format", "raw")]
        command += ["--duration", str(int(seconds)), "--output", str(self._path)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet) if tool else None
        time.sleep(0.5 if tool else 0)

    def most(self) -> str:
        if self._process is None:
            return ""
        self._process.send_signal(signal.SIGINT)  # it then writes what it has
        self._process.wait()
        counts: collections.Counter[str] = collections.Counter()
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            stack, _, count = line.rpartition(" ")
            if "MainThread" in stack:
                frames = [frame for frame in stack.split(";") if any(part in frame for part in _OURS)]
                counts[frames[-1] if frames else stack.rpartition(";")[2]] += int(count)
        total = sum(counts.values())
        return ", ".join(f"{name} {count / total:.0%}" for name, count in counts.most_common(2))


def loop_seconds(pid: int) -> float:
    """CPU time of the process's first thread, which runs the loop."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:  # it has ended
        return 0.0


def measure(server: RunningServer, largest: Largest, room: Room, args: argparse.Namespace, folder: Path) -> Row:
    body = largest.body(room)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", **largest.headers(room)}
    assert server.process is not None
    pid = server.process.pid
    waits, stalls, cpus, answer, where = [], [], [], "", ""
    for number in range(args.times):
        samples = Samples(pid, folder, args.limit) if args.samples and number == 0 else None
        probe = HealthProbe(server, pid)
        time.sleep(0.2)
        probe.waits.forget()
        probe.stall = 0.0
        before = loop_seconds(pid)
        got = Target(server.url, args.limit).send(largest.method, largest.path, data, headers)
        answer = str(got)
        time.sleep(0.3)
        cpus.append(loop_seconds(pid) - before)
        waits.append(probe.waits.seconds)
        stalls.append(max(probe.stall, loop_seconds(pid) - before if waits[-1] > args.limit else 0.0))
        if samples is not None:
            where = samples.most()
        probe.stop()
        if got.status is None:
            break
    return Row(largest.path, largest.name, answer, min(waits), min(stalls), min(cpus), where)


def send_bodies(address: str, num_clients: int, body: bytes, seconds: float) -> dict[str, int]:
    """Return the number of answers, by status."""
    counts: collections.Counter[str] = collections.Counter()
    until = time.monotonic() + seconds

    def send() -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        while time.monotonic() < until:
            try:
                connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                counts[str(answer.status)] += 1
            except FAILURES as error:
                connection.close()
                counts[type(error).__name__] += 1
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(counts)


def wait_for_health(address: str) -> float:
    """Seconds until the answer, on a new connection."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    assert status == 200, status
    return time.perf_counter() - begun


def measure_beside_clients(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the milliseconds of /health while clients send large bodies, and count the answers of these."""
    text = text_of(int(args.megabytes * 1e6))
    body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 1}).encode()
    with tempfile.TemporaryDirectory() as name, multiprocessing.get_context("spawn").Pool(1) as pool:
        command = palladio_command(None, shlex.split(args.flags))
        with running_server(command, Path(name) / "log", {"PYTHONPATH": str(args.tree)}, args.tree) as server:
            address = urlsplit(server.url).netloc
            pool.apply(send_bodies, (address, 1, body, 0.5))  # the process and the server have done so once
            sending = pool.apply_async(send_bodies, (address, args.clients, body, args.seconds))
            waits = []
            while not sending.ready():
                waits.append(1e3 * wait_for_health(address))
                time.sleep(EVERY)
            answers = sending.get()
    shares = {f"p{share}": round(float(np.percentile(waits, share)), 1) for share in (50, 99)}
    return {"health_ms": shares | {"longest": round(max(waits), 1), "number": len(waits)}, "answers": answers}


def room_of(server: RunningServer) -> Room:
    with urllib.request.urlopen(f"{server.url}/v1/models") as answer:
        context = json.load(answer)["data"][0]["max_model_len"]
    return Room(min(BASE_BYTES + TOKEN_BYTES * context, 4 * BASE_BYTES), BASE_VALUES + context, context)


def run(args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    chosen = [one for one in REQUESTS if not args.only or any(part in f"{one.path} {one.name}" for part in args.only)]
    for flags in ((), ("--is-embedding",)):
        requests = [one for one in chosen if one.is_embedding == bool(flags)]
        with tempfile.TemporaryDirectory() as name:
            while requests:
                folder = Path(name)
                environment = {"PYTHONPATH": str(args.tree)}
                command = palladio_command(None, flags)
                with running_server(command, folder / "log", environment, args.tree) as server:
                    room = room_of(server)
                    while requests:
                        rows.append(measure(server, requests.pop(0), room, args, folder))
                        print("| " + " | ".join(rows[-1].cells()) + " |", flush=True)
                        if Target(server.url, 5.0).send("GET", "/health").status != 200:
                            break  # it is not back yet: the next request would feel it
    return rows


def table(rows: Sequence[Row], before: Sequence[Row] = ()) -> str:
    """Format rows in Markdown.

    Args:
        before: rows of another tree, shown before an arrow.
    """
    earlier = {(row.path, row.name): row.cells() for row in before}
    lines = [HEAD, ("---",) * len(HEAD)]
    for row in rows:
        old = earlier.get((row.path, row.name))
        cells = row.cells()
        if old is not None:
            cells = (*cells[:2], *(f"{one} → {other}" for one, other in zip(old[2:], cells[2:], strict=True)))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="part of a route and a request's name; may be repeated")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one request may take")
    parser.add_argument("--samples", action="store_true", help="with py-spy; one more repetition, which is not timed")
    parser.add_argument("--tree", type=Path, default=TREE, help="whose server")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--beside", type=Path, help="rows of another run")
    parser.add_argument("--clients", type=int, default=0, help="that send large bodies; 0: the requests one at a time")
    parser.add_argument("--megabytes", type=float, default=1.0, help="of each body, with --clients")
    parser.add_argument("--seconds", type=float, default=30.0, help="that the clients send")
    parser.add_argument("--flags", default="", help="more flags of the server, with --clients")
    args = parser.parse_args()
    args.times += args.samples
    exit_on_sigterm()
    if args.clients:
        found = measure_beside_clients(args)
        print(json.dumps(found))
        if args.json:
            args.json.write_text(json.dumps(provenance() | found, indent=1))
        return
    rows = run(args)
    before = [Row(**row) for row in json.loads(args.beside.read_text())["rows"]] if args.beside else []
    print(table(rows, before))
    if args.json:
        args.json.write_text(json.dumps(provenance() | {"rows": [dataclasses.asdict(row) for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
