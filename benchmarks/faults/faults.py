"""Faults under load, each against a server of its own: who was answered, who got an error; nobody may be lost.

    python benchmarks/faults/faults.py --output faults.json
    python benchmarks/faults/faults.py engine-killed sigterm --model-path … -- --max-running-requests 64

    engine-killed   kill -9 of the engine's process, while some requests run and the others wait
    server-killed   kill -9 of the server; this script starts a new one at once
    full-disk       as engine-killed, with compilation cache and crash dumps on a full disk (needs the right to mount)
    hung-step       one thread of the engine, the one that runs the steps, is halted for good (ptrace); the watchdog
                    has --watchdog-timeout 5
    out-of-memory   XLA says once that the device's memory does not suffice for a decode step (exhausted_server.py)
    sigterm         SIGTERM: all streams may finish, then the server exits with 0

A request ends `finished`, with an `error` event, `refused` (a status other than 200), or `cut` (the connection closed,
which only a killed server may do). Whatever else happens to one is `lost`. Exit code 1 if a request is lost, ends in a
way that the fault does not allow, or the server is not well again within --limit seconds.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import httpx

from benchmarks.faults.fault_means import NotHereError, halt_thread, small_disk
from benchmarks.faults.torture import allow_connections
from benchmarks.support.server_process import (
    RunningServer,
    exit_on_sigterm,
    palladio_command,
    provenance,
    running_server,
)
from palladio.utils import _descendants

FLAGS = ("--max-running-requests", "64", "--max-total-tokens", "40960", "--drain-timeout", "300")
ENDS = ("finished", "error", "refused", "cut", "lost")
WATCHDOG_TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """Attributes:
    requests: streams, sent at once. started: how many have had a token before the fault comes.
    limit: seconds for each fault, the server's start left out.
    """

    model_path: str | None
    flags: tuple[str, ...]
    requests: int
    started: int
    max_tokens: int
    limit: float


@dataclasses.dataclass(slots=True)
class Fate:
    """The end of a request; `lost` until it is known."""

    end: str = "lost"
    has_started: bool = False
    message: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one fault.

    Attributes:
        seconds_to_healthy: from the fault until /health is 200; None: it never should be (sigterm).
        facts: facts of this fault only.
    """

    fates: list[Fate]
    seconds_to_healthy: float | None
    violations: list[str]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.asynccontextmanager
async def load(server: RunningServer, plan: Plan) -> Any:
    """Streams under way; afterwards each has ended, or is lost."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=plan.limit, limits=limits) as client:
        fates = [Fate() for _ in range(plan.requests)]
        tasks = [asyncio.create_task(_stream(client, i, plan.max_tokens, fate)) for i, fate in enumerate(fates)]
        async with asyncio.timeout(plan.limit):
            while sum(fate.has_started for fate in fates) < plan.started:
                await asyncio.sleep(0.01)
        try:
            yield fates
            await asyncio.wait(tasks, timeout=plan.limit)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(client: httpx.AsyncClient, number: int, max_tokens: int, fate: Fate) -> None:
    body = {"prompt": f"Request {number}", "max_tokens": max_tokens, "ignore_eos": True, "seed": number, "stream": True}
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                fate.end, fate.message = "refused", (await response.aread()).decode()
                return
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _take(json.loads(line.removeprefix("data: ")), fate)
    except httpx.TransportError as error:
        if fate.end == "lost" and not isinstance(error, httpx.TimeoutException):
            fate.end, fate.message = "cut", type(error).__name__


def _take(event: dict[str, Any], fate: Fate) -> None:
    if "error" in event:
        fate.end, fate.message = "error", event["error"]["message"]
        return
    fate.has_started = True
    reasons = [choice["finish_reason"] for choice in event["choices"] if choice["finish_reason"]]
    if reasons:
        fate.end, fate.message = ("finished" if reasons[0] in ("stop", "length") else "error"), reasons[0]


def engine_pid(server: RunningServer) -> int:
    assert server.process is not None
    for pid in _descendants(server.process.pid):
        with contextlib.suppress(OSError):
            if b"palladio.runtime.process.engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise RuntimeError("the server has no engine process")


async def until_healthy(url: str, since: float, limit: float) -> float | None:
    """Seconds from `since` until /health is 200; None: not within the limit."""
    async with httpx.AsyncClient(base_url=url, timeout=5) as client:
        while time.perf_counter() - since < limit:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/health")).status_code == 200:
                    return time.perf_counter() - since
            await asyncio.sleep(0.05)
    return None


async def check_clean(server: RunningServer, limit: float) -> list[str]:
    """List errors after the fault: something still runs or holds memory, or a new request is not answered."""
    wanted = {"num_running": 0, "num_waiting": 0, "num_used_tokens": 0, "integrity_error": None}
    fate = Fate()
    async with httpx.AsyncClient(base_url=server.url, timeout=limit) as client:
        await _stream(client, -1, 8, fate)
        info = (await client.get("/get_server_info")).raise_for_status().json()
    stats = info["internal_states"][0]
    wrong = {name: stats[name] for name, value in wanted.items() if stats[name] != value}
    violations = [f"afterwards: {wrong}"] if wrong else []
    return violations + ([] if fate.end == "finished" else [f"a new request: {fate.end} {fate.message}"])


async def _engine_fault(server: RunningServer, plan: Plan, strike: Callable[[int], object], words: str) -> Result:
    """The engine fails; the server starts it again."""
    async with load(server, plan) as fates:
        since = time.perf_counter()
        strike(engine_pid(server))
        await _until_not_ready(server.url, plan.limit)
        seconds = await until_healthy(server.url, since, plan.limit)
    violations = [] if seconds is not None else [f"not healthy after {plan.limit:g} s"]
    violations += [f"ended with: {fate.message}" for fate in fates if fate.end == "error" and words not in fate.message]
    violations += [f"{fate.end}: {fate.message}" for fate in fates if fate.end in ("refused", "cut")]
    if seconds is not None:
        violations += await check_clean(server, plan.limit)
    return Result(fates, seconds, violations)


async def _until_not_ready(url: str, limit: float) -> None:
    deadline = time.perf_counter() + limit
    async with httpx.AsyncClient(base_url=url, timeout=limit) as client:
        while (await client.get("/health")).status_code == 200:
            if time.perf_counter() > deadline:
                return
            await asyncio.sleep(0.02)


async def engine_killed(plan: Plan, folder: Path) -> Result:
    with _server(plan, folder, "--crash-dump-folder", str(folder / "dumps")) as server:
        result = await _engine_fault(server, plan, lambda pid: os.kill(pid, signal.SIGKILL), "SIGKILL")
    dumps = [path.stat().st_size for path in (folder / "dumps").glob("crash-*.json")]
    return dataclasses.replace(result, facts={"crash_dump_bytes": dumps})


async def full_disk(plan: Plan, folder: Path) -> Result:
    with small_disk(folder / "disk") as disk:
        flags = ("--crash-dump-folder", str(disk / "dumps"), "--compilation-cache-dir", str(disk / "xla"))
        with _server(plan, folder, *flags) as server:
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
            result = await _engine_fault(server, plan, lambda pid: os.kill(pid, signal.SIGKILL), "SIGKILL")
            said = "Cannot write the crash dump" in (folder / "log").read_text()
        left = os.statvfs(disk).f_bavail
        dumps = [path.name for path in (disk / "dumps").iterdir()]
    violations = result.violations + ([] if said else ["no warning of the dump that failed"])
    violations += [f"half a dump: {name}" for name in dumps]
    return dataclasses.replace(result, violations=violations, facts={"free_blocks": left})


async def hung_step(plan: Plan, folder: Path) -> Result:
    with _server(plan, folder, "--watchdog-timeout", str(WATCHDOG_TIMEOUT)) as server:
        result = await _engine_fault(server, plan, halt_thread, "--watchdog-timeout")
    return dataclasses.replace(result, facts={"watchdog_timeout": WATCHDOG_TIMEOUT})


async def server_killed(plan: Plan, folder: Path) -> Result:
    with _server(plan, folder) as server:
        assert server.process is not None
        engine = engine_pid(server)
        async with load(server, plan) as fates:
            since = time.perf_counter()
            server.process.kill()
            server.process.wait()
            while Path(f"/proc/{engine}").exists() and time.perf_counter() - since < plan.limit:
                await asyncio.sleep(0.01)
            engine_seconds = time.perf_counter() - since
    violations = [f"{fate.end}: {fate.message}" for fate in fates if fate.end in ("error", "refused")]
    with _server(plan, folder) as server:
        seconds = time.perf_counter() - since
        violations += await check_clean(server, plan.limit)
    return Result(fates, seconds, violations, {"seconds_to_engine_gone": engine_seconds})


async def out_of_memory(plan: Plan, folder: Path) -> Result:
    _, _, _, *arguments = palladio_command(plan.model_path, plan.flags)
    command = [sys.executable, str(Path(__file__).with_name("exhausted_server.py")), *arguments]
    with running_server(command, folder / "log") as server:
        async with load(server, plan) as fates:
            since = time.perf_counter()
        seconds = await until_healthy(server.url, since, plan.limit)
        violations = await check_clean(server, plan.limit)
        said = "ran out of memory" in (folder / "log").read_text()
    violations += [f"ended with: {fate.message}" for fate in fates if fate.end == "error" and "--m" not in fate.message]
    violations += [f"{fate.end}: {fate.message}" for fate in fates if fate.end in ("refused", "cut")]
    return Result(fates, 0.0 if seconds else None, violations + ([] if said else ["it did not happen"]))


async def sigterm(plan: Plan, folder: Path) -> Result:
    with _server(plan, folder) as server:
        assert server.process is not None
        engine = engine_pid(server)
        async with load(server, plan) as fates:
            since = time.perf_counter()
            server.process.send_signal(signal.SIGTERM)
        try:
            status = await asyncio.to_thread(server.process.wait, plan.limit)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.perf_counter() - since
    violations = [f"{fate.end}: {fate.message}" for fate in fates if fate.end != "finished"]
    if status != 0:
        violations.append(f"exit status {status}")
    if Path(f"/proc/{engine}").exists():
        violations.append("the engine is still there")
    return Result(fates, None, violations, {"seconds_to_exit": seconds})


FAULTS: dict[str, Callable[[Plan, Path], Coroutine[Any, Any, Result]]] = {
    "engine-killed": engine_killed,
    "server-killed": server_killed,
    "full-disk": full_disk,
    "hung-step": hung_step,
    "out-of-memory": out_of_memory,
    "sigterm": sigterm,
}


def _server(plan: Plan, folder: Path, *flags: str) -> contextlib.AbstractContextManager[RunningServer]:
    return running_server(palladio_command(plan.model_path, [*plan.flags, *flags]), folder / "log")


def run_fault(name: str, plan: Plan, logs: Path | None) -> dict[str, Any]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            result = asyncio.run(FAULTS[name](plan, folder))
        except NotHereError as error:
            return {"fault": name, "skipped": str(error), "violations": []}
        except (OSError, RuntimeError, httpx.HTTPError) as error:
            return {"fault": name, "violations": [f"{type(error).__name__}: {error}"]}
        finally:
            if logs is not None and (folder / "log").exists():
                logs.mkdir(parents=True, exist_ok=True)
                (logs / f"{name}.log").write_bytes((folder / "log").read_bytes())
    ends = collections.Counter(fate.end for fate in result.fates)
    lost = [f"{ends['lost']} requests were lost"] if ends["lost"] else []
    return {
        "fault": name,
        "sent": len(result.fates),
        **{end: ends[end] for end in ENDS},
        "seconds_to_healthy": result.seconds_to_healthy,
        **result.facts,
        "violations": [*lost, *sorted(set(result.violations))],
    }


def show(row: dict[str, Any]) -> None:
    if "skipped" in row:
        print(f"{row['fault']:<14} skipped: {row['skipped']}")
    elif "sent" in row:
        healthy = row["seconds_to_healthy"]
        counts = ", ".join(f"{end} {row[end]}" for end in ENDS)
        print(
            f"{row['fault']:<14} sent {row['sent']}: {counts}; healthy after "
            f"{'-' if healthy is None else f'{healthy:.1f} s'}"
        )
    for violation in row["violations"]:
        print(f"VIOLATION {row['fault']}: {violation}")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; default: all")
    parser.add_argument("--model-path", help="default: the embedded default model")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each fault, after the server's start")
    parser.add_argument("--logs", type=Path, help="keep the servers' logs in this folder")
    parser.add_argument("--output", type=Path, help="write the report here, as JSON")
    words = list(sys.argv[1:] if argv is None else argv)
    flags = words[words.index("--") + 1 :] if "--" in words else FLAGS
    args = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    unknown = sorted(set(args.faults) - set(FAULTS))
    if unknown:
        parser.error(f"unknown fault {unknown[0]!r}; known: {', '.join(FAULTS)}")
    exit_on_sigterm()
    allow_connections(args.requests)
    plan = Plan(
        model_path=args.model_path,
        flags=tuple(flags),
        requests=args.requests,
        started=min(args.requests, 32),
        max_tokens=args.max_tokens,
        limit=args.limit,
    )
    rows = []
    for name in args.faults or FAULTS:
        rows.append(run_fault(name, plan, args.logs))
        show(rows[-1])
    if args.output:
        report = provenance() | {"plan": dataclasses.asdict(plan), "faults": rows}
        args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(row["violations"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
