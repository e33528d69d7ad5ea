"""What a hostile client does to the others: a table of attacks on a server of the embedded model, on this machine.

    python benchmarks/faults/attacks.py --json attacks.json
    python benchmarks/faults/attacks.py --tree ../an-older-checkout
    python benchmarks/faults/attacks.py --quick
    python benchmarks/faults/attacks.py --beside benchmarks/results/cpu-2026-11-23/attacks_before.json

While each attack runs, two other clients read streams and a third asks for /health every 50 ms. A row has the attack's
answer, the longest wait for /health, the longest gap in a stream (between two streams included), how much the server's
memory grew (at most, and at the end), and whether the server was alive afterwards. Attacks are bounded: by --limit
seconds each, and by --max-memory of the server, which is killed beyond it. After that, and after attacks that leave the
server with work, the next one gets a new server.
The first row is without an attack: what this machine does to streams by itself.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.faults.attack_list import ATTACKS, Attack, Target
from benchmarks.faults.attack_watch import Bystanders, MemoryWatch
from benchmarks.support.server_process import (
    RunningServer,
    exit_on_sigterm,
    palladio_command,
    provenance,
    running_server,
)

TREE = Path(__file__).resolve().parents[2]
SETTLE = 2.0  # seconds that are watched after an attack
WARM = 3.0  # seconds that streams run before the first attack of a server
HEAD = ("attack", "answer", "max /health, ms", "longest gap, ms", "RSS at most / after, MB", "alive")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The result of one attack. Seconds and bytes.

    Attributes:
        rss_most, rss_after: growth of the server's memory.
        errors: errors of the other clients, with their number.
    """

    attack: str
    answer: str
    health: float
    gap: float
    rss_most: int
    rss_after: int
    is_alive: bool
    was_killed: bool
    errors: dict[str, int]

    def cells(self) -> tuple[str, ...]:
        alive = "killed for its memory" if self.was_killed else "yes" if self.is_alive else "no"
        answer = self.answer
        if self.errors:
            answer += f" (others: {', '.join(f'{count} × {name}' for name, count in sorted(self.errors.items()))})"
        memory = f"{self.rss_most / 1e6:+.0f} / {self.rss_after / 1e6:+.0f}"
        return (self.attack, answer, f"{self.health * 1e3:.0f}", f"{self.gap * 1e3:.0f}", memory, alive)


def table(rows: Sequence[Row], before: Sequence[Row] = ()) -> str:
    """Format rows in Markdown.

    Args:
        before: rows of another server, shown before an arrow.
    """
    earlier = {row.attack: row.cells() for row in before}
    shown = [row.cells() for row in rows]
    shown = [
        (name, *(f"{old} → {new}" for old, new in zip(earlier[name][1:], others, strict=True)))
        if name in earlier
        else (name, *others)
        for name, *others in shown
    ]
    lines = [HEAD, ("---",) * len(HEAD), *shown]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def chosen(names: Sequence[str], *, quick: bool) -> list[Attack]:
    """
    Args:
        names: parts of attacks' names; none: all of them.
        quick: leave the long ones out.
    """
    found = [attack for attack in ATTACKS if attack.is_quick or not quick]
    return [attack for attack in found if not names or any(name in attack.name for name in names)]


def attack_once(server: RunningServer, attack: Attack, limit: float, max_memory: int) -> Row:
    body = attack.prepare()
    memory = MemoryWatch(server, max_memory)
    others = Bystanders(server, key=attack.key)
    time.sleep(WARM)
    for waits in (others.health, *others.streams):
        waits.forget()
    answer = attack.run(Target(server.url, limit), body)
    time.sleep(SETTLE)
    health, gap = others.health.seconds, others.longest_gap
    others.stop()
    memory.stop()
    return Row(
        attack.name,
        answer,
        health,
        gap,
        memory.most - memory.before,
        memory.last - memory.before,
        is_alive=server.is_alive and answers(server),
        was_killed=memory.was_killed,
        errors=others.errors,
    )


def answers(server: RunningServer, seconds: float = 60.0) -> bool:
    """Return whether the server answers within `seconds`."""
    return Target(server.url, seconds).send("GET", "/health").status == 200


def run(args: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    attacks = chosen(args.only, quick=args.quick)
    while attacks:
        flags = attacks[0].flags
        with started(args.tree.resolve(), flags, args.log) as server:
            is_fit = True
            while attacks and is_fit and attacks[0].flags == flags:
                attack = attacks.pop(0)
                rows.append(attack_once(server, attack, args.limit, args.max_memory * 1_000_000))
                print(f"{attack.name}: {' | '.join(rows[-1].cells()[1:])}", file=sys.stderr, flush=True)
                is_fit = rows[-1].is_alive and not attack.is_last
    return rows


@contextlib.contextmanager
def started(tree: Path, flags: Sequence[str], log: Path | None) -> Iterator[RunningServer]:
    """A server of that checkout."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PYTHONPATH": str(tree)}
        command = palladio_command(None, flags)
        with running_server(command, log or Path(folder) / "log", environment, folder=tree) as server:
            yield server


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--tree", type=Path, default=TREE, help="the checkout whose server is attacked; default: this one"
    )
    parser.add_argument("--quick", action="store_true", help="leave out attacks that are long or large")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="attacks whose names hold one of these")
    parser.add_argument("--limit", type=float, default=25.0, help="seconds that an attack may take")
    parser.add_argument("--max-memory", type=int, default=6000, help="MB that the server may take")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--beside", type=Path, help="an earlier report, to show what was before")
    parser.add_argument("--log", type=Path, help="keep the server's log here")
    args = parser.parse_args(argv)
    exit_on_sigterm()
    rows = run(args)
    before = [Row(**row) for row in json.loads(args.beside.read_text())["rows"]] if args.beside else []
    print(table(rows, before))
    if args.json:
        report: dict[str, Any] = provenance() | {
            "tree": args.tree.name,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.is_alive for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
