"""Kills servers while they work on a batch, starts them again on the same folder, and counts lines lost or doubled.

    python benchmarks/faults/batch_kills.py --repeats 3

Two kinds of end: `kill -9` of all of the server's processes, and a power failure. That is simulated: a library loaded
before libc (power_loss.c, compiled with cc) keeps what has been fsynced, and the next server starts from that alone.
Four points: while the batch is validated, while it runs, while its files are written, and after it was told to cancel.

    python benchmarks/faults/batch_kills.py --engine-kills 10

kills the engine alone, so often during one batch, and checks the rule of docs/batches.md: the lines that fail are those
that the engine had at three kills, at the last one beside no other line with two, and their errors say so.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import httpx

from benchmarks.serving.batches import ENDED, body_of
from benchmarks.support.report import report
from benchmarks.support.server_process import RunningServer, exit_on_sigterm, palladio_command, running_server

POINTS = ("validating", "running", "finalizing", "cancelling")
KINDS = ("kill", "power")
FLAGS = ("--compile", "lazy", "--served-model-name", "default", "--max-running-requests", "16")


def build_library(folder: Path) -> Path:
    source, library = Path(__file__).with_name("power_loss.c"), folder / "power_loss.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@contextlib.contextmanager
def serve(storage: Path, log: Path, library: Path, kept: Path) -> Iterator[RunningServer]:
    for part in ("inodes", "dirs"):
        (kept / part).mkdir(parents=True, exist_ok=True)
    environment = {"LD_PRELOAD": str(library), "POWER_LOSS_FOLDER": str(storage), "POWER_LOSS_KEPT": str(kept)}
    with running_server(palladio_command(None, [*FLAGS, "--file-storage-path", str(storage)]), log, environment) as one:
        yield one


def lose_power(storage: Path, kept: Path) -> None:
    """Leaves of the folder what has been fsynced."""
    shutil.rmtree(storage)
    storage.mkdir()
    listings = sorted((kept / "dirs").iterdir())
    for listing in listings:
        folder = storage / listing.name.replace("%", "/").strip("/")
        if not folder.is_dir():
            continue  # nobody knows of it: its parent was not fsynced
        for line in listing.read_text().splitlines():
            number, _, name = line.partition(" ")
            content = kept / "inodes" / number
            if any(
                other.name.replace("%", "/").strip("/") == str((folder / name).relative_to(storage))
                for other in listings
            ):
                (folder / name).mkdir(exist_ok=True)
            elif content.exists():
                shutil.copyfile(content, folder / name)
            else:
                (folder / name).touch()  # it was made, and nothing in it has reached the disk
    shutil.rmtree(kept)


def kill(server: RunningServer) -> None:
    """All of its processes at once."""
    assert server.process is not None
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


def create(client: httpx.Client, num_lines: int, max_tokens: int) -> str:
    lines: list[dict[str, Any]] = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body_of(number, max_tokens)}
        for number in range(num_lines)
    ]
    lines[num_lines // 2]["body"]["temperature"] = -1  # a bad line
    content = "\n".join(map(json.dumps, lines)).encode()
    upload = client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    asked = {"input_file_id": upload.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str(client.post("/v1/batches", json=asked).raise_for_status().json()["id"])


def state(client: httpx.Client, batch_id: str) -> dict[str, Any]:
    batch: dict[str, Any] = client.get(f"/v1/batches/{batch_id}").raise_for_status().json()
    return batch


def reach(client: httpx.Client, batch_id: str, point: str, num_lines: int, rng: random.Random) -> None:
    """Waits until the batch is where it is to be killed."""
    if point == "validating":
        time.sleep(rng.uniform(0, 0.02))
        return
    wanted = num_lines if point == "finalizing" else rng.randrange(1, num_lines * 3 // 4)
    while True:
        batch = state(client, batch_id)
        counts = batch["request_counts"]
        if batch["status"] in ("finalizing", *ENDED) or counts["completed"] + counts["failed"] >= wanted:
            break
        time.sleep(0.0 if point == "finalizing" else 0.01)
    if point == "cancelling":
        client.post(f"/v1/batches/{batch_id}/cancel").raise_for_status()
        time.sleep(rng.uniform(0, 0.05))
    if point == "finalizing":
        time.sleep(rng.uniform(0, 0.01))


def found(storage: Path, batch_id: str) -> dict[str, Any]:
    """The batch as the next server finds it, read from a copy."""
    with tempfile.TemporaryDirectory() as folder:
        for file in storage.glob("palladio.db*"):
            shutil.copy(file, folder)
        with contextlib.closing(sqlite3.connect(Path(folder) / "palladio.db")) as connection:
            row = connection.execute(
                "SELECT status, completed, failed FROM batches WHERE id = ?", (batch_id,)
            ).fetchone()
    return {"status": row[0], "ended_lines": row[1] + row[2]}


def check(client: httpx.Client, batch_id: str, num_lines: int) -> dict[str, Any]:
    """Waits for the batch's end and counts its lines."""
    deadline = time.monotonic() + 600
    while (batch := state(client, batch_id))["status"] not in ENDED:
        assert time.monotonic() < deadline, f"the batch stays {batch['status']}"
        time.sleep(0.05)
    seen: collections.Counter[str] = collections.Counter()
    good = 0
    for name in ("output_file_id", "error_file_id"):
        if batch[name] is not None:
            lines = client.get(f"/v1/files/{batch[name]}/content").raise_for_status().text.splitlines()
            good += len(lines) if name == "output_file_id" else 0
            seen.update(json.loads(line)["custom_id"] for line in lines)
    counts = batch["request_counts"]
    lost = num_lines - len(seen) if batch["status"] == "completed" else counts["completed"] - good
    return {
        "status": batch["status"],
        "counts": counts,
        "lost": lost,
        "doubled": sum(count - 1 for count in seen.values()),
    }


def run_case(kind: str, point: str, num_lines: int, rng: random.Random, library: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        storage, kept = folder / "storage", folder / "kept"
        storage.mkdir()
        max_tokens = 8
        if point == "validating":  # more lines, so that it takes a while
            num_lines, max_tokens = 15 * num_lines, 1
        with serve(storage, folder / "log1", library, kept) as server:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                batch_id = create(client, num_lines, max_tokens)
                reach(client, batch_id, point, num_lines, rng)
            kill(server)
        if kind == "power":
            lose_power(storage, kept)
        before = found(storage, batch_id)
        with serve(storage, folder / "log2", library, kept) as server, httpx.Client(base_url=server.url) as client:
            outcome = check(client, batch_id, num_lines)
    if point != "cancelling":
        assert outcome["status"] == "completed", outcome
    return {**outcome, "killed_at": before}


def engine_of(pid: int) -> int | None:
    """The engine's process of a server; None: there is none now."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"engine_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def crashes_of(storage: Path, batch_id: str) -> dict[str, int]:
    """Line → how many crashes the server has noted."""
    with contextlib.closing(sqlite3.connect(f"file:{storage / 'palladio.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT line, num_crashes FROM batch_crashes WHERE batch_id = ?", (batch_id,))
        return {str(line - 1): number for line, number in rows}  # custom_ids begin at 0


def run_engine_case(num_kills: int, num_lines: int, rng: random.Random) -> dict[str, Any]:
    """Kills the engine while a batch runs. Each kill's row: lines that it counted for, and how many were suspects."""
    kills: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = [*FLAGS, "--file-storage-path", str(folder / "storage"), "--max-engine-restarts", str(num_kills + 1)]
        with (
            running_server(palladio_command(None, flags), folder / "log") as server,
            httpx.Client(base_url=server.url, timeout=60) as client,
        ):
            assert server.process is not None
            batch_id = create(client, num_lines, 64)
            before: dict[str, int] = {}
            while len(kills) < num_kills and state(client, batch_id)["status"] not in ENDED:
                while client.get("/health").status_code != 200 or not state(client, batch_id)["in_progress_at"]:
                    time.sleep(0.05)
                time.sleep(rng.uniform(0.1, 2.0))
                engine = engine_of(server.process.pid)
                assert engine is not None
                os.kill(engine, signal.SIGKILL)
                while client.get("/health").status_code == 200:
                    time.sleep(0.01)
                time.sleep(1.0)  # lines hear of it, and count it
                after = crashes_of(folder / "storage", batch_id)
                had = [line for line, count in after.items() if count > before.get(line, 0)]
                kills.append({"lines": len(had), "suspects": sum(before.get(line, 0) >= 2 for line in had)})
                before = after
                print(json.dumps(kills[-1]), file=sys.stderr, flush=True)
            outcome = check(client, batch_id, num_lines)
            batch = state(client, batch_id)
            text = client.get(f"/v1/files/{batch['error_file_id']}/content").raise_for_status().text
    errors = {line["custom_id"]: line["response"] for line in map(json.loads, text.splitlines())}
    blamed = {
        line: response["body"]["error"]["message"]
        for line, response in errors.items()
        if response["status_code"] == 500
    }
    expected = {line for line, count in before.items() if count >= 3}
    return {
        **outcome,
        "kills": kills,
        "failed_for_crashes": sorted(blamed),
        "had_three_crashes": sorted(expected),
        "messages": sorted(set(blamed.values())),
        "is_the_rule": set(blamed) == expected
        and all(kill["suspects"] <= 1 for kill in kills)
        and all("failed 3 times while it had this line" in message for message in blamed.values()),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--engine-kills", type=int, help="kill the engine alone, so often; nothing else is done")
    parser.add_argument("--points", nargs="+", choices=POINTS, default=POINTS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    exit_on_sigterm()
    rng = random.Random(args.seed)
    if args.engine_kills:
        result = run_engine_case(args.engine_kills, args.lines, rng)
        report("faults/batch_kills.py", argv, {"lines": args.lines, "engine": result}, args.out)
        return 0 if result["is_the_rule"] and not (result["lost"] or result["doubled"]) else 1
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = build_library(Path(folder))
        for kind in args.kinds:
            for point in args.points:
                for _ in range(args.repeats):
                    cases.append({"kind": kind, "point": point, **run_case(kind, point, args.lines, rng, library)})
                    print(json.dumps(cases[-1]), file=sys.stderr, flush=True)
    bad = sum(bool(case["lost"] or case["doubled"]) for case in cases)
    report("faults/batch_kills.py", argv, {"lines": args.lines, "cases_with_a_fault": bad, "cases": cases}, args.out)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
