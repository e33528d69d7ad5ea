"""Seconds from the launch command to a ready server and to its first token, by where the programs come from.

    python benchmarks/startup.py [--model-path DIR] [--json out.json] [-- more launch flags]

cold: an empty compilation cache; warm: the same cache again; exported: `palladio compile --compiled-dir` ran before;
background: --compile background with an empty cache, and what a stream sees of the compilation behind it, beside what
it sees once that is done.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from report import report
from server_process import provenance

from palladio.utils import launch_server_cmd, terminate_process

STREAM_TOKENS = 1000


def get(url: str) -> dict[str, Any] | None:
    """The JSON body of a 200 answer ({} if it has none), or None."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            body = response.read()
            return json.loads(body) if body.startswith(b"{") else {}
    except (urllib.error.URLError, OSError):
        return None


def stream(url: str, num_tokens: int) -> Iterator[float]:
    """The times at which the tokens of one request come."""
    body = {
        "text": "Once upon a time",
        "sampling_params": {"max_new_tokens": num_tokens, "ignore_eos": True, "temperature": 0},
        "stream": True,
    }
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if line.startswith(b"data: {"):
                yield time.perf_counter()


def gaps(url: str, seconds: float, goes_on: Callable[[], bool]) -> dict[str, float]:
    """Of streams one after the other, as long as it goes on and at most for so long: milliseconds between tokens."""
    deadline, found = time.perf_counter() + seconds, []
    while goes_on() and time.perf_counter() < deadline:
        times = list(stream(url, STREAM_TOKENS))
        found += [1000 * (after - before) for before, after in itertools.pairwise(times)]
    cuts = statistics.quantiles(found, n=1000)
    return {"tokens": len(found), "p50_ms": cuts[499], "p99_ms": cuts[989], "p999_ms": cuts[998], "max_ms": max(found)}


def start_once(command: str, limit: float, *, watches_streams: bool = False) -> dict[str, Any]:
    """Starts the server, waits until it is ready, asks it for its figures, ends it."""
    start = time.perf_counter()
    process, port = launch_server_cmd(command)
    url = f"http://127.0.0.1:{port}"
    try:
        listening = None
        while get(f"{url}/health") is None:
            if process.poll() is not None:
                raise RuntimeError(f"the server exited with code {process.returncode}")
            if time.perf_counter() - start > limit:
                raise TimeoutError(f"not ready after {limit:g} s")
            if listening is None and get(f"{url}/version") is not None:
                listening = time.perf_counter() - start
            time.sleep(0.05)
        ready = time.perf_counter() - start
        first_token = next(stream(url, 1)) - start
        figures = {
            "seconds_to_listening": listening or ready,
            "seconds_to_ready": ready,
            "seconds_to_first_token": first_token,
        }
        if watches_streams:
            figures |= watch(url, start, limit)
        info = get(f"{url}/get_server_info") or {}
    finally:
        terminate_process(process)
    programs = info["internal_states"][0]["compile"]["programs"]
    results = [program["result"] for program in programs]
    figures |= {"num_programs": len(results)} | {name: results.count(name) for name in ("miss", "hit", "exported")}
    return figures | {"compile_seconds": info["compile_seconds"], "device": info["device"]}


def watch(url: str, start: float, limit: float) -> dict[str, Any]:
    """A stream's view of a server that still compiles, and then of the same server when it is done."""

    def compiles() -> bool:
        return "done" in (get(f"{url}/ready") or {})

    during = gaps(url, limit, compiles)
    done = time.perf_counter() - start
    return {"seconds_to_all_programs": done, "while_compiling": during, "afterwards": gaps(url, 15, lambda: True)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", help="default: the embedded default model")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one start may take")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*", help="more flags of the launch command, after --")
    args = parser.parse_args(argv)
    model = f"--model-path {args.model_path}" if args.model_path else ""
    flags = f"{model} {' '.join(args.flags)}"
    starts: dict[str, Any] = {"launch": f"python -m palladio serve {flags}"}

    def measure(name: str, more: str, *, watches_streams: bool = False) -> None:
        command = f"python -m palladio serve {flags} --host 127.0.0.1 {more}"
        starts[name] = start_once(command, args.limit, watches_streams=watches_streams)
        print(name, json.dumps(starts[name]), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        measure("cold", f"--compilation-cache-dir {folder}/cold")
        measure("warm", f"--compilation-cache-dir {folder}/cold")
        compile_ahead = f"{sys.executable} -m palladio compile {flags} --compiled-dir {folder}/programs"
        subprocess.run(compile_ahead.split(), check=True, stderr=subprocess.DEVNULL, timeout=args.limit)
        measure("exported", f"--compiled-dir {folder}/programs --compilation-cache-dir {folder}/empty")
        background = f"--compile background --compilation-cache-dir {folder}/background"
        measure("background", background, watches_streams=True)
    report("startup.py", argv, provenance() | starts, args.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError, subprocess.SubprocessError) as failure:
        sys.exit(f"error: {failure}")
