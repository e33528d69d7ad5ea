"""Seconds from the launch command to a ready server, with an empty and with a filled compilation cache.

python benchmarks/startup.py [--model-path DIR] [--json out.json] [-- more launch flags]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from palladio.utils import launch_server_cmd, terminate_process


def get(url: str) -> dict[str, Any] | None:
    """The JSON body of a 200 answer ({} if it has none), or None."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            body = response.read()
            return json.loads(body) if body.startswith(b"{") else {}
    except (urllib.error.URLError, OSError):
        return None


def start_once(command: str, limit: float) -> dict[str, Any]:
    """Starts the server, waits until it is ready, asks it for its figures, ends it."""
    start = time.perf_counter()
    process, port = launch_server_cmd(command)
    try:
        listening = None
        while get(f"http://127.0.0.1:{port}/health") is None:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.returncode}")
            if time.perf_counter() - start > limit:
                raise TimeoutError(f"not ready after {limit:g} s")
            if listening is None and get(f"http://127.0.0.1:{port}/version") is not None:
                listening = time.perf_counter() - start
            time.sleep(0.05)
        ready = time.perf_counter() - start
        info = get(f"http://127.0.0.1:{port}/get_server_info") or {}
    finally:
        terminate_process(process)
    figures = {key: info.get(key) for key in ("num_programs", "compile_seconds", "cache_hits", "device")}
    return {"seconds_to_ready": ready, "seconds_to_listening": listening or ready} | figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", help="default: the embedded default model")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one start may take")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*", help="more flags of the launch command, after --")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as cache:
        model = f"--model-path {args.model_path}" if args.model_path else ""
        command = f"python -m palladio serve {model} --compilation-cache-dir {cache} {' '.join(args.flags)}"
        report = {"command": command, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        for temperature in ("cold", "warm"):
            report[temperature] = start_once(command, args.limit)
            print(temperature, json.dumps(report[temperature]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError, subprocess.SubprocessError) as failure:
        sys.exit(f"error: {failure}")
