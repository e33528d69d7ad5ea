"""`palladio doctor`: what this machine has, what is wrong with it, and what to type."""

import argparse
import asyncio
import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palladio.cli.parsing import make_parser
from palladio.commands.doctor.doctor_checks import (
    Finding,
    check_devices,
    check_folders,
    check_gpu_driver,
    check_holders,
    check_limits,
    check_memory,
    check_port,
    check_variables,
    check_versions,
    probe_devices,
    redact,
)
from palladio.commands.doctor.doctor_kernels import REPORT, KernelReport, check_kernels, write_report
from palladio.load.http_client import ClientError, HttpClient
from palladio.processes.child import python_path
from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub.hub_download import hub_endpoint, is_offline
from palladio.server.launch import report_error

_HUB_SECONDS = 10.0
_MARKS = {"ok": "ok    ", "warn": "warn  ", "broken": "BROKEN"}


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "doctor",
        "Looks at versions, devices, memory, folders, ports and limits, and says what is wrong and what to type. Its "
        "output has no secrets: paste it into an issue.",
        [
            "palladio doctor",
            "palladio doctor --hub              # also asks the hub",
            "palladio doctor --json > doctor.json",
            "palladio doctor --kernels --model-path Qwen/Qwen3-8B --tp-size 4   # also tries the model's kernels",
        ],
        {1: "something is broken"},
    )
    found.add_argument("--json", action="store_true", help="print JSON")
    found.add_argument("--port", type=int, default=30000, help="the port that a server would have (default: 30000)")
    found.add_argument("--hub", action="store_true", help="ask whether the hub answers")
    found.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds that jax has to find devices (default: 60)"
    )
    help_of_kernels = (
        "try each kernel that a model's programs use, beside a plain implementation, and measure it; load the model, "
        "read weights back, and check a first answer; write a report for a bug report. Takes the flags of `palladio "
        "serve` too (default: the embedded model)"
    )
    found.add_argument("--kernels", action="store_true", help=help_of_kernels)
    found.add_argument(
        "--report", type=Path, default=Path(REPORT), metavar="FILE", help=f"the report of --kernels (default: {REPORT})"
    )
    return found


def doctor(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    args, words = parser().parse_known_args(argv)
    if words and not args.kernels:
        parser().error(f"unrecognized arguments: {' '.join(words)}")
    try:
        _check(args)
    except ConfigError as error:
        return report_error(error)
    findings = []
    for finding in _clean(_checks(args, environment), environment):
        findings.append(finding)
        if not args.json:
            _show(finding)
    broken, warned = ([one for one in findings if one.verdict == verdict] for verdict in ("broken", "warn"))
    if not args.json:
        print(f"\n{len(broken)} broken, {len(warned)} to look at" if broken or warned else "\nNothing is wrong.")
    shown: Any = [dataclasses.asdict(finding) for finding in findings]
    works = True
    if args.kernels:
        try:
            report, content = check_kernels(words, environment)
            write_report(args.report, content)
        except ConfigError as error:
            return report_error(error)
        works, shown = report.works, {"checks": shown, "kernels": content}
        if not args.json:
            _show_kernels(report, args.report, environment)
    if args.json:
        print(json.dumps(shown, indent=2))
    return 1 if broken or not works else 0


def _show_kernels(report: KernelReport, path: Path, environment: Mapping[str, str]) -> None:
    print()
    for line in report.table():
        print(line)
    if not report.results and not report.failure:
        print("No kernels of our own are in use here: XLA computes everything.")
    for result in report.results:
        verdict = result["verdict"]
        if verdict["outcome"] != "ok":
            print(f"{_MARKS['broken']}  {verdict['kernel']}: {redact(verdict['text'], environment)}")
    for note in report.notes():
        print(f"{_MARKS['ok']}  {note}")
    for problem in report.problems:
        print(f"{_MARKS['broken']}  {redact(problem, environment)}")
    if report.failure:
        print(f"{_MARKS['broken']}  kernels: {redact(report.failure, environment)}")
    print(f"\nThe report is in {path}: attach it to a bug report.")


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port must be in 0 … 65535, got {args.port}")
    if not 0 < args.timeout < math.inf:
        raise ConfigError(f"--timeout must be over 0 and finite, got {args.timeout:g}")


def _checks(args: argparse.Namespace, environment: Mapping[str, str]) -> Iterator[Finding]:
    command = [sys.executable, "-P", "-m", "palladio.commands.doctor.doctor_worker"]
    own = {**environment, "PYTHONPATH": python_path()}
    yield from check_versions()
    yield from check_memory()
    yield from check_gpu_driver()
    yield from check_holders()
    if not args.json:
        print("        (looking for devices …)", file=sys.stderr)
    yield from check_devices(probe_devices(command, own, args.timeout), Machine.look(), environment)
    yield from itertools.chain(check_folders(environment), check_limits(), check_port(args.port))
    yield from check_variables(environment)
    if args.hub:
        yield asyncio.run(_check_hub())


def _clean(findings: Iterable[Finding], environment: Mapping[str, str]) -> Iterator[Finding]:
    for finding in findings:
        text, fix = redact(finding.text, environment), redact(finding.fix, environment)
        yield dataclasses.replace(finding, text=text, fix=fix)


async def _check_hub() -> Finding:
    endpoint = hub_endpoint()
    if is_offline():
        return Finding("ok", "hub", "HF_HUB_OFFLINE is set: it is never asked")
    try:
        async with asyncio.timeout(_HUB_SECONDS), HttpClient(endpoint) as client:
            status, _ = await client.ask("GET", "/api/models?limit=1")
    except (ClientError, TimeoutError) as error:
        fix = "check the network, or set HF_HUB_OFFLINE=1 and give directories"
        return Finding("broken", "hub", str(error) or f"{endpoint} does not answer", fix)
    return Finding("ok" if status < 500 else "warn", "hub", f"{endpoint} answers (HTTP {status})")


def _show(finding: Finding) -> None:
    print(f"{_MARKS[finding.verdict]}  {finding.about}: {finding.text}", flush=True)
    if finding.fix:
        print(f"        → {finding.fix}", flush=True)
