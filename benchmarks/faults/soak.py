"""Mixed traffic for many minutes against one server, which must answer all of it, rightly, and not grow.

    python benchmarks/faults/soak.py --minutes 20 --output soak.json
    python benchmarks/faults/soak.py --fields cache_salt timeout -- --max-total-tokens 2048 --schedule-policy lpm
    python benchmarks/faults/soak.py --minutes 5 --kinds grammars tools
    python benchmarks/faults/soak.py --minutes 5 -- --is-embedding
    python benchmarks/faults/soak.py --base-url http://127.0.0.1:30000 --pid 4711

It starts a server of its own with a small KV pool, so that requests are retracted; launch flags after `--` replace
these. Half of what it sends is generation: chat, completions and /generate, streamed and whole, greedy and seeded,
n > 1, logprobs, shared prefixes, long prompts; clients that read slowly, go away or abort; bad requests. The other half
is of all other kinds (soak_kinds.py). `--kinds` sends some kinds alone, to see which of them makes a server grow.
Exit code 1 if anything of this does not hold:

- each request ends exactly one way: answered in full, refused with the right status, aborted, or timed out as it asked;
- probes (soak_probes.py) always get the tokens and logprobs of their first time;
- at quiet points, when no request is under way, nothing runs or waits, no token is used, no page is lost;
- nothing is compiled, /health is 200, no traceback is in the log;
- memory, open files and threads of the server's processes stop growing: their medians over the first and the last
  quarter after the warm-up differ by less than the tolerances. The report has the least memory of each process in
  each third of the time, and its slope over the last third.
"""

import argparse
import asyncio
import collections
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import httpx

from benchmarks.faults.soak_growth import Sample, judge_growth
from benchmarks.faults.soak_kinds import KINDS, Client, play
from benchmarks.faults.soak_probes import Probes
from benchmarks.faults.soak_traffic import FIELDS, Dice, Limits, WrongAnswerError, bad_requests, finish, send_bad
from benchmarks.support.server_process import (
    RunningServer,
    add_server_arguments,
    chosen_server,
    exit_on_sigterm,
    memory_by_kind,
    provenance,
    usage_of_tree,
)
from palladio.load.figures import percentile

SMALL_POOL = ("--max-total-tokens", "2048", "--max-running-requests", "16", "--schedule-conservativeness", "0.2")
MODEL = Path(__file__).resolve().parents[2] / "palladio/default_checkpoint"
DEFAULT_FLAGS = (*SMALL_POOL, "--enable-input-embeds", "--weight-update-folders", str(MODEL))
GENERATION, PROBE, BAD = "generation", "probe", "bad request"
PROCESSES = {"engine_main": "engine", "check_process": "judge"}  # a word of a command line → what it is; else the front
SAMPLE_SECONDS = 2.0
MAX_VIOLATIONS = 50  # then it is clear, and the soak ends
MAX_PRINTED = 5  # the report has all of them
FAILURES = (httpx.HTTPError, TimeoutError, WrongAnswerError, ValueError, KeyError, TypeError, IndexError)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long and how hard.

    Attributes:
        quiet_every: seconds between two quiet points.
        request_limit: seconds that one request may take.
        fields: optional request fields to use, of FIELDS.
        kinds: what is sent → how often beside the others.
    """

    seconds: float
    concurrency: int
    seed: int
    quiet_every: float
    request_limit: float
    fields: tuple[str, ...]
    kinds: dict[str, float]
    tie: float
    max_drift: float


class Soak:
    """One soak of a running server.

    Attributes:
        ends: (kind, way it ended) → requests.
    """

    def __init__(self, server: RunningServer, pid: int | None, limits: Limits, plan: Plan, model_path: str) -> None:
        self._server, self._pid, self._limits, self._plan = server, pid, limits, plan
        self._model_path = model_path
        self.violations: list[str] = []
        self.ends: collections.Counter[tuple[str, str]] = collections.Counter()
        self.sent: collections.Counter[str] = collections.Counter()
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.samples: list[Sample] = []
        self.retractions = self.cached_tokens = self.quiet_points = 0
        self.probes = Probes(plan.seed, limits, tie=plan.tie, max_drift=plan.max_drift)
        self._bad = bad_requests(limits)
        self._gate = asyncio.Event()
        self._in_flight = 0
        self._start = time.monotonic()

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def _is_over(self) -> bool:
        is_clear = len(self.violations) >= MAX_VIOLATIONS or not self._server.is_alive
        return is_clear or self._elapsed >= self._plan.seconds

    async def run(self) -> None:
        connections = httpx.Limits(max_connections=None, max_keepalive_connections=self._plan.concurrency)
        timeout = httpx.Timeout(self._plan.request_limit)
        async with httpx.AsyncClient(base_url=self._server.url, limits=connections, timeout=timeout) as client:
            await self.probes.learn(client)
            self._start = time.monotonic()
            self._gate.set()
            workers = [asyncio.create_task(self._work(client, number)) for number in range(self._plan.concurrency)]
            watcher = asyncio.create_task(self._watch(client))
            next_quiet = self._plan.quiet_every
            while not self._is_over:
                await asyncio.sleep(0.2)
                if self._elapsed >= next_quiet:
                    await self._quiet_point(client)
                    next_quiet = self._elapsed + self._plan.quiet_every
            self._gate.set()
            await asyncio.gather(*workers)
            await self._quiet_point(client)
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        self._check_ledger()
        self._check_log()

    def _violation(self, text: str) -> None:
        self.violations.append(f"at {self._elapsed:.0f} s, {text}")
        if len(self.violations) <= MAX_PRINTED:
            print(f"VIOLATION {self.violations[-1][:400]}", file=sys.stderr, flush=True)

    async def _work(self, client: httpx.AsyncClient, number: int) -> None:
        """One client: request after request, until the time is over."""
        plan = self._plan
        dice = Dice(f"{plan.seed} {number}", f"{plan.seed} shared", self._limits, plan.fields)
        other = Client(client, dice.rng, self._limits, self._model_path)
        while not self._is_over:
            await self._gate.wait()
            self._in_flight += 1
            try:
                await self._one(client, dice, other)
            finally:
                self._in_flight -= 1
            if dice.rng.random() < 0.05:
                await asyncio.sleep(dice.rng.random())

    async def _one(self, client: httpx.AsyncClient, dice: Dice, other: Client) -> None:
        start, rng = time.monotonic(), dice.rng
        kind = rng.choices(list(self._plan.kinds), list(self._plan.kinds.values()))[0]
        end, what = "failed", ""
        draw = dice.draw() if kind == GENERATION else None
        if draw is not None:
            kind, what = draw.kind, json.dumps(draw.body)[:300]
        self.sent[kind] += 1
        try:
            async with asyncio.timeout(self._plan.request_limit):
                if draw is not None:
                    end, answer = await finish(client, draw, rng)
                    self.retractions += answer.retractions
                    self.cached_tokens += answer.cached_tokens
                elif kind == PROBE:
                    number = rng.randrange(len(self.probes.bodies))
                    what = f"probe {number}"
                    await self._probe(client, number)
                    end = "answered"
                elif kind == BAD:
                    end = await send_bad(client, rng.choice(self._bad))
                else:
                    end = await play(other, kind)
        except FAILURES as error:
            self._violation(f"{kind}: {type(error).__name__}: {error} ({what})")
        self.ends[kind, end] += 1
        if end == "answered":
            self.seconds[kind].append(time.monotonic() - start)

    async def _probe(self, client: httpx.AsyncClient, number: int) -> None:
        verdict, text = await self.probes.ask(client, number)
        if verdict in ("other tokens", "other logprobs"):
            self._violation(text)

    async def _quiet_point(self, client: httpx.AsyncClient) -> None:
        """Lets what is under way end, and looks whether the server is empty; then the probes, and sometimes a flush."""
        self._gate.clear()
        try:
            deadline = time.monotonic() + self._plan.request_limit + 10
            while self._in_flight and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            await self._check_empty(client)
            for number in range(len(self.probes.bodies)):
                await self._probe(client, number)
            if self.quiet_points % 2:
                (await client.post("/flush_cache", params={"timeout": 10})).raise_for_status()
            self.quiet_points += 1
        except FAILURES as error:
            self._violation(f"quiet point: {type(error).__name__}: {error}")
        finally:
            self._gate.set()

    async def _check_empty(self, client: httpx.AsyncClient) -> None:
        wanted: dict[str, int | None] = {"num_running": 0, "num_waiting": 0, "num_used_tokens": 0}
        deadline = time.monotonic() + 20
        stats = await self._stats(client)
        while any(stats[name] != value for name, value in wanted.items()) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            stats = await self._stats(client)
        wanted |= {"integrity_error": None, "num_compiles_after_ready": 0}
        wrong = {name: stats[name] for name, value in wanted.items() if stats[name] != value}
        if wrong:
            self._violation(f"with no request under way: {wrong}")

    async def _stats(self, client: httpx.AsyncClient) -> dict[str, Any]:
        info = (await client.get("/get_server_info", timeout=20)).raise_for_status().json()
        return dict(info["internal_states"][0])

    async def _watch(self, client: httpx.AsyncClient) -> None:
        """Samples the processes, asks for /health, and tells how it goes once a minute."""
        next_line = 60.0
        while True:
            if self._pid is not None:
                memory = memory_by_kind(self._pid, PROCESSES, "front")
                requests = sum(self.ends.values())
                self.samples.append(Sample(self._elapsed, requests, usage_of_tree(self._pid), memory))
            try:
                (await client.get("/health", timeout=20)).raise_for_status()
            except httpx.HTTPError as error:
                self._violation(f"/health: {type(error).__name__}: {error}")
            if self._elapsed >= next_line:
                next_line += 60.0
                last = self.samples[-1].processes if self.samples else {}
                shown = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in last.items())
                print(
                    f"{self._elapsed:5.0f} s: {sum(self.ends.values())} requests, {self.retractions} retractions, "
                    f"{shown}, {len(self.violations)} violations",
                    flush=True,
                )
            await asyncio.sleep(SAMPLE_SECONDS)

    def _check_ledger(self) -> None:
        ended: collections.Counter[str] = collections.Counter()
        for (kind, _), count in self.ends.items():
            ended[kind] += count
        if self._in_flight or ended != self.sent:
            self._violation(f"{dict(self.sent - ended)} requests never ended; {self._in_flight} in flight")
        if not self._server.is_alive:
            self._violation("the server's process has ended")

    def _check_log(self) -> None:
        if self._server.log is not None:
            count = self._server.log.read_text(errors="replace").count("Traceback")
            if count:
                self._violation(f"{count} tracebacks in the server's log")


def report_of(soak: Soak, info: dict[str, Any], plan: Plan) -> dict[str, Any]:
    figures, wrong = judge_growth(soak.samples)
    for text in wrong:
        soak.violations.append(text)
    tally = soak.probes.tally
    thinned = soak.samples[:: max(1, len(soak.samples) // 100)]
    kinds: dict[str, dict[str, Any]] = {}
    for (kind, end), count in sorted(soak.ends.items()):
        kinds.setdefault(kind, {})[end] = count
    for kind, times in soak.seconds.items():
        kinds[kind] |= {"seconds_p50": percentile(times, 50), "seconds_p99": percentile(times, 99)}
    return provenance() | {
        "plan": dataclasses.asdict(plan),
        "server": {name: info.get(name) for name in ("version", "model_path", "dtype", "device", "max_total_tokens")},
        "requests": sum(soak.sent.values()),
        "kinds": kinds,
        "retractions": soak.retractions,
        "cached_tokens": soak.cached_tokens,
        "quiet_points": soak.quiet_points,
        "probes": dataclasses.asdict(tally),
        "growth": figures,
        "samples": [sample.row() for sample in thinned],
        "violations": soak.violations,
    }


def show(report: dict[str, Any]) -> None:
    ends = ("answered", "aborted", "refused", "timed out", "failed")
    print(f"\n{'':>20}" + "".join(f"{end:>11}" for end in ends) + f"{'p50 s':>9}{'p99 s':>9}")
    for kind, row in report["kinds"].items():
        times = "".join(
            f"{row[name]:>9.2f}" if row.get(name) else f"{'-':>9}" for name in ("seconds_p50", "seconds_p99")
        )
        print(f"{kind:>20}" + "".join(f"{row.get(end, 0):>11}" for end in ends) + times)
    probes = report["probes"]
    print(f"probes: {probes['verdicts']}, logprobs differ by at most {probes['drift']:.2g}; ", end="")
    print(f"{probes['cached']} found a cached prefix, {probes['retracted']} were retracted")
    print(f"retractions: {report['retractions']} seen; cached tokens: {report['cached_tokens']}")
    for name, figures in report["growth"].items():
        if name == "last_third":
            for process, slopes in figures.items():
                print(f"{process}, last third: " + ", ".join(f"{value:g} {unit}" for unit, value in slopes.items()))
            continue
        if name == "least_mib":
            print(f"least MiB in each third: {figures}")
            continue
        scale = 2**20 if name == "rss" else 1
        values = " → ".join(f"{value / scale:.1f}" for value in figures.values())
        print(f"{name + (' MiB' if name == 'rss' else '')}: {values}")
    print(
        f"{report['requests']} requests, {report['quiet_points']} quiet points, {len(report['violations'])} violations"
    )


def kinds_of(info: dict[str, Any], chosen: Sequence[str] | None) -> dict[str, float]:
    """What is sent to this server → how often beside the others: generation half of the time."""
    others = {name: often for name, (_, often) in KINDS.items()}
    if info["is_embedding"]:
        kinds = {name: others[name] for name in ("embeddings", "tokens")}
    else:
        others.pop("embeddings")
        if not info["enable_input_embeds"]:
            others.pop("embeds")
        if not info["weight_update_folders"]:
            others.pop("weights")
        total = sum(others.values())
        kinds = {GENERATION: 0.4 * 2 * total, PROBE: 0.05 * 2 * total, BAD: 0.05 * 2 * total, **others}
    return {name: often for name, often in kinds.items() if chosen is None or name in chosen}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--concurrency", type=int, default=24, help="clients, each with one request at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet-every", type=float, default=120.0, help="seconds between two quiet points")
    parser.add_argument("--request-limit", type=float, default=180.0, help="seconds that one request may take")
    parser.add_argument("--fields", nargs="+", choices=FIELDS, default=(), help="request fields that the server knows")
    parser.add_argument(
        "--kinds", nargs="+", choices=(GENERATION, PROBE, BAD, *KINDS), help="send these alone; default: all it can"
    )
    parser.add_argument("--tie", type=float, default=1e-3, help="tokens whose logprobs are closer may change places")
    parser.add_argument("--max-drift", type=float, default=1e-2, help="a probe's logprobs may differ by this much")
    parser.add_argument("--pid", type=int, help="with --base-url: its process, to watch its memory")
    parser.add_argument("--output", type=Path, help="write the report here, as JSON")
    add_server_arguments(parser, DEFAULT_FLAGS)
    args = parser.parse_args(argv)
    exit_on_sigterm()
    with chosen_server(args) as server:
        info = httpx.get(f"{server.url}/get_server_info", timeout=20).raise_for_status().json()
        model = httpx.get(f"{server.url}/v1/models", timeout=20).raise_for_status().json()["data"][0]
        hidden_size = json.loads(Path(info["model_path"], "config.json").read_text(encoding="utf-8"))["hidden_size"]
        limits = Limits(model["max_model_len"], info["vocab_size"], hidden_size)
        plan = Plan(
            seconds=60 * args.minutes,
            concurrency=args.concurrency,
            seed=args.seed,
            quiet_every=args.quiet_every,
            request_limit=args.request_limit,
            fields=tuple(args.fields),
            kinds=kinds_of(info, args.kinds),
            tie=args.tie,
            max_drift=args.max_drift,
        )
        pid = server.process.pid if server.process is not None else args.pid
        soak = Soak(server, pid, limits, plan, info["model_path"])
        asyncio.run(soak.run())
        report = report_of(soak, info, plan)
    show(report)
    if args.output:
        args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
