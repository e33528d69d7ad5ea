"""`palladio bench`: loads any server with OpenAI's API, and says what it gives at which load."""

import argparse
import asyncio
import dataclasses
import json
import math
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from palladio.cli.parsing import check_output, json_value, make_parser
from palladio.load.client import Answer, Target, ask, find_model
from palladio.load.http_client import HttpClient
from palladio.load.plot import check_plot_path, write_plot
from palladio.load.runner import Pace, run_asks
from palladio.load.sweep import Slo, broken, sweep
from palladio.load.workloads import KINDS, Mix, make_asks
from palladio.runtime.interface.errors import ConfigError, PalladioError
from palladio.server.launch import report_error
from palladio.version import __version__

_HEAD = (
    f"{'load':>16} {'reqs':>5} {'req/s':>7} {'tokens/s':>9} {'ttft p50':>9} {'ttft p99':>9} {'tpot p50':>9} "
    f"{'itl p50':>8} {'itl p99':>8} {'e2e p50':>9} {'fail':>5}   (times in ms)"
)
_COLUMNS = (("ttft_p50", 9), ("ttft_p99", 9), ("tpot_p50", 9), ("itl_p50", 8), ("itl_p99", 8), ("e2e_p50", 9))


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "bench",
        "Loads a server that speaks OpenAI's API with streamed requests, and prints throughput and times of each level "
        "of load.",
        [
            "palladio bench                                             # one request a second, up to 8, of chats",
            "palladio bench --concurrency 1 8 64 --workload random --prompt-tokens 1024 --output-tokens 256",
            "palladio bench --sweep rate --slo 'ttft:p99<500ms' --slo 'itl:p95<50ms' --plot out.svg --json out.json",
            "palladio bench --base-url https://host/v1 --api-key KEY --endpoint chat --dataset sharegpt.json",
        ],
        {1: "requests failed, a promise of --slo broke at a level that you gave, or there is no such server"},
        more="sharegpt: lengths as people have them; random: --prompt-tokens and --output-tokens, from half to one and "
        "a half\ntimes that; prefix: all prompts begin with the same --shared-tokens.",
    )
    server = found.add_argument_group("server")
    server.add_argument("--base-url", default="http://127.0.0.1:30000/v1", help="(default: %(default)s)")
    server.add_argument("--api-key", help="(default: OPENAI_API_KEY)")
    server.add_argument("--model", default="", help="(default: the first one of /v1/models)")
    server.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    server.add_argument(
        "--extra", type=json_value, default={}, metavar="JSON", help="merged into each request; null removes a field"
    )
    load = found.add_argument_group("load")
    load.add_argument("--workload", choices=KINDS, default="sharegpt", help="(default: %(default)s)")
    load.add_argument("--dataset", type=Path, metavar="FILE", help="prompts of a ShareGPT JSON file")
    load.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="(default: %(default)s)")
    load.add_argument("--output-tokens", type=int, default=128, metavar="N", help="(default: %(default)s)")
    load.add_argument("--shared-tokens", type=int, metavar="N", help="of prefix (default: 3/4 of the prompt)")
    load.add_argument(
        "--requests", type=int, metavar="N", help="a level (default: 30 s of a rate, 4 x the concurrency)"
    )
    pace = load.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=float, nargs="+", metavar="R", help="requests a second, at random moments")
    pace.add_argument("--concurrency", type=int, nargs="+", metavar="C", help="requests under way at once")
    pace.add_argument("--sweep", choices=("rate", "concurrency"), help="double it until --slo breaks, then look closer")
    load.add_argument(
        "--slo", action="append", default=[], metavar="SLO", help="such as ttft:p99<500ms; several may be"
    )
    load.add_argument(
        "--refine", type=int, default=3, metavar="N", help="levels of a sweep after it broke (default: 3)"
    )
    load.add_argument("--limit", type=float, default=300.0, metavar="S", help="seconds a level may take (default: 300)")
    load.add_argument("--seed", type=int, default=0, help="another one makes other prompts (none of them cached)")
    out = found.add_argument_group("output")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    out.add_argument("--plot", type=Path, metavar="FILE", help="draw them: .svg, or .png if matplotlib is installed")
    return found


def bench(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    run = _Bench(args, environment)
    try:
        slos = [Slo.parse(text) for text in args.slo]
        _check(args)
        asyncio.run(run.run(slos))
    except PalladioError as error:
        return report_error(error)
    except KeyboardInterrupt:
        return run.stop()
    return run.finish(slos)


def _check(args: argparse.Namespace) -> None:
    if args.sweep and not args.slo:
        raise ConfigError("--sweep needs a promise to break: add --slo 'ttft:p99<500ms'")
    for name in ("prompt_tokens", "output_tokens", "requests", "limit"):
        if vars(args)[name] is not None and not 0 < vars(args)[name] < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} {vars(args)[name]} must be over 0 and finite")
    if not all(0 < value < math.inf for value in (args.rate or args.concurrency or [1])):
        raise ConfigError(f"--{'rate' if args.rate else 'concurrency'} must be over 0 and finite")
    if args.refine < 0:
        raise ConfigError(f"--refine {args.refine} must be at least 0")
    most = args.prompt_tokens - 1 if args.workload == "prefix" else math.inf
    if args.shared_tokens is not None and not 0 <= args.shared_tokens <= most:
        raise ConfigError(
            f"--shared-tokens {args.shared_tokens} must be at least 0, and of prefix less than --prompt-tokens"
        )
    if args.dataset is not None and not args.dataset.is_file():
        raise ConfigError(f"--dataset {args.dataset}: no such file")
    if not isinstance(args.extra, dict):
        raise ConfigError("--extra must be a JSON object")
    if args.json is not None:
        check_output("--json", args.json)
    if args.plot is not None:
        check_plot_path(args.plot)
        check_output("--plot", args.plot)


class _Bench:
    """One call of the command, and what it has measured."""

    def __init__(self, args: argparse.Namespace, environment: Mapping[str, str]) -> None:
        self._args = args
        key = args.api_key or environment.get("OPENAI_API_KEY")
        self._target = Target(args.base_url, args.model, args.endpoint, args.extra, key, exact=False)
        shared = args.prompt_tokens * 3 // 4 if args.shared_tokens is None else args.shared_tokens
        shared = shared if args.workload == "prefix" else args.shared_tokens or 0
        self._mix = Mix(args.workload, args.prompt_tokens, args.output_tokens, shared, args.dataset)
        self._levels: list[dict[str, Any]] = []

    async def run(self, slos: Sequence[Slo]) -> None:
        """Measures all levels, and prints each."""
        args = self._args
        async with self._target.client() as client:
            self._target = await find_model(self._target, client)
            first = await ask(self._target, client, "Hello", 4)
            if first.error is not None:
                print(f"note: the first request failed: {first.error}", file=sys.stderr)
            print(f"{client.base_url} {self._target.model}: {self._mix.kind}")
            print(_HEAD)

            async def measure(pace: Pace) -> dict[str, Any]:
                return await self._measure(client, pace, slos)

            if args.sweep:
                start = Pace(rate=1.0) if args.sweep == "rate" else Pace(concurrency=1)
                await sweep(measure, start, slos, args.refine)
                return
            paces = [Pace(concurrency=each) for each in args.concurrency or ()]
            paces += [Pace(rate=each) for each in args.rate or ()]
            for pace in paces or [Pace(rate=each) for each in (1.0, 2.0, 4.0, 8.0)]:
                await measure(pace)

    async def _measure(self, client: HttpClient, pace: Pace, slos: Sequence[Slo]) -> dict[str, Any]:
        args, number = self._args, len(self._levels)
        usual = round(30 * pace.rate) if pace.rate is not None else 4 * int(pace.value)
        seed = args.seed * 1000 + number
        count = max(args.requests or max(8, usual), pace.concurrency or 1)
        asks = await make_asks(self._target, client, self._mix, count, seed)
        columns, rows = shutil.get_terminal_size()
        with tqdm(
            total=len(asks), desc=f"{pace.name} {pace.value:g}", unit=" requests", ncols=columns, nrows=rows,
            leave=False, disable=not sys.stderr.isatty(),
        ) as bar:  # fmt: skip

            def on_answer(answer: Answer) -> None:
                bar.update(1)

            figures = await run_asks(self._target, client, asks, pace, args.limit, seed=seed, on_answer=on_answer)
        breaks = broken(slos, figures)
        self._levels.append({"load": pace.value, "of": pace.name} | figures | {"broken": breaks})
        print(_row(pace, figures, breaks), flush=True)
        for error in figures["errors"]:
            print(f"    {error}", file=sys.stderr)
        return figures

    def stop(self) -> int:
        """After Ctrl-C: keeps what was measured, and leaves files alone if that is nothing; returns the exit code."""
        if not self._levels:
            print("stopped; nothing was measured yet", file=sys.stderr)
            return 130
        print("stopped; what was measured so far is above", file=sys.stderr)
        self.finish([])
        return 130

    def finish(self, slos: Sequence[Slo]) -> int:
        """Writes the files, says which load holds; returns the exit code."""
        args, levels = self._args, self._levels
        held = [level for level in levels if not level["broken"]]
        if slos and held:
            best = max(held, key=lambda level: float(level["load"]))
            print(
                f"within {', '.join(slo.name for slo in slos)}: up to {best['of']} {best['load']:g} "
                f"({best['tokens_per_second']:.1f} tokens/s)"
            )
        elif slos and levels:
            print(f"none of these loads is within {', '.join(slo.name for slo in slos)}")
        if args.json:
            args.json.write_text(json.dumps(self._report(slos), indent=2) + "\n", encoding="utf-8")
        if args.plot and levels:
            title = f"{self._target.model}: {self._mix.kind}"
            write_plot(args.plot, title, levels[0]["of"], levels, slos)
        if args.sweep:
            return 0 if held else 1
        return 1 if any(level["broken"] for level in levels) else 0

    def _report(self, slos: Sequence[Slo]) -> dict[str, Any]:
        mix = dataclasses.asdict(self._mix) | {"dataset": str(self._mix.dataset) if self._mix.dataset else None}
        return {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "palladio": __version__,
            "machine": platform.platform(),
            "target": {name: vars(self._target)[name] for name in ("base_url", "model", "endpoint", "extra")},
            "workload": mix,
            "seed": self._args.seed,
            "slos": [slo.name for slo in slos],
            "levels": self._levels,
        }


def _row(pace: Pace, figures: Mapping[str, Any], breaks: Sequence[str]) -> str:
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value * 1000:.1f}"

    times = " ".join(f"{ms(figures[name]):>{width}}" for name, width in _COLUMNS)
    return (
        f"{f'{pace.name} {pace.value:g}':>16} {figures['requests']:>5} {figures['requests_per_second']:>7.2f} "
        f"{figures['tokens_per_second']:>9.1f} {times} {figures['failures']:>5}"
        + (f"   breaks {', '.join(breaks)}" if breaks else "")
    )
