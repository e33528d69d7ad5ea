"""What the steps of two trees compile to, by the accelerators' own compilers: operations and bytes.

    git worktree add /tmp/before d89055f
    PYTHONPATH=.venv-aot python benchmarks/aot/step_operations.py --before /tmp/before --target tpu-v6e h200

Each model is compiled with two numbers of layers: the difference is what layers add. An operation is what the device
runs: an instruction outside of fusions that is more than a name for a part of another's result. A TPU's prefetches are
not counted: they run beside others, and how many there are is up to the compiler's schedule.
"""

import argparse
import collections
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


HERE = Path(__file__).resolve().parents[2]
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = .*?[)\]}] ([a-z][\w-]*)\(")
_PART = re.compile(r" fusion\(.*calls=%?([\w.-]+)|(?<! call\()to_apply=%?([\w.-]+)")
_PREFETCHES = ("copy-start", "slice-start")  # into vector memory, beside what is computed
_NAMES = (*_PREFETCHES, "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all")


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One program of one tree.

    Attributes:
        operations: of the optimized program.
        argument_bytes, temp_bytes: by its memory analysis.
    """

    operations: int
    argument_bytes: int
    temp_bytes: int


def count_operations(hlo: str) -> int:
    """Instructions of an optimized program that are launched, loops' bodies counted once."""
    parts = {
        match[1] or match[2] for line in hlo.splitlines() if " call(" not in line and (match := _PART.search(line))
    }
    counts: collections.Counter[str] = collections.Counter()
    is_part = False
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            is_part = header[1] in parts
        elif not is_part and (match := _INSTRUCTION.match(line)) and match[1] not in _NAMES:
            counts[match[1]] += not match[1].endswith("-done")
    return counts.total()


def count_in_this_process(tree: Path, flags: list[str], report: Path) -> None:
    """Compiles with a tree's own `aot_steps`, whose report gets what it does not count.

    Args:
        flags: of aot_steps.
    """
    sys.path[:0] = [str(tree / "benchmarks" / "aot"), str(tree / "benchmarks"), str(tree)]  # later trees, earlier ones
    import aot_steps  # type: ignore[import-not-found]  # the tree's
    import jax

    counts: list[int] = []
    compile_lowered = jax.stages.Lowered.compile

    def compile_and_count(lowered: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = compile_lowered(lowered, *args, **kwargs)
        counts.append(count_operations(compiled.as_text() or ""))
        return compiled

    jax.stages.Lowered.compile = compile_and_count  # type: ignore[method-assign,assignment]
    aot_steps.main([*flags, "--json", str(report)])
    found = json.loads(report.read_text())
    for row, count in zip(found["programs"], counts, strict=True):
        row["operations"] = count
    report.write_text(json.dumps(found))


def steps_of(tree: Path, flags: list[str]) -> dict[str, Step]:
    """By the program's name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, __file__, "--count", str(tree), str(report), *flags]
        kept = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
        done = subprocess.run(command, cwd=tree, env=kept, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        names = [field.name for field in dataclasses.fields(Step)]
        programs = json.loads(report.read_text())["programs"]
    return {row["program"]: Step(**{name: row[name] for name in names}) for row in programs}


def compare(before: Path, target: str, model: str, flags: list[str], layers: tuple[int, int]) -> list[dict[str, Any]]:
    """A row for each program that both trees have."""
    found = {
        (tree, count): steps_of(tree, ["--target", target, "--model", model, "--layers", str(count), *flags])
        for tree in (before, HERE)
        for count in layers
    }
    few, many = layers
    rows: list[dict[str, Any]] = []
    for name in found[HERE, few]:
        if any(name not in steps for steps in found.values()):
            continue
        row: dict[str, Any] = {"target": target, "model": model, "program": name}
        for label, tree in (("before", before), ("after", HERE)):
            row[label] = [found[tree, count][name].operations for count in layers]
        old, new = found[before, many][name], found[HERE, many][name]
        for kind in ("argument_bytes", "temp_bytes"):
            row[kind] = [getattr(old, kind), getattr(new, kind)]
        rows.append(row)
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--count"]:
        tree, report, *flags = sys.argv[2:]
        count_in_this_process(Path(tree), flags, Path(report))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a worktree of the revision to compare with")
    parser.add_argument("--target", nargs="+", default=["tpu-v6e", "tpu7x", "h200"])
    parser.add_argument("--model", nargs="+", default=["llama-3.1-8b", "qwen3-30b-a3b"])
    parser.add_argument("--layers", type=int, nargs=2, default=[2, 4])
    parser.add_argument("--decode", default="64", help="requests of the decode step")
    parser.add_argument("--prefill", default="2048", help="tokens of the prefill step")
    parser.add_argument("--only", nargs="+", default=["forward", "sample"], help="kinds of programs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    flags = ["--decode", args.decode, "--prefill", args.prefill, "--only", *args.only]
    of_layers = (f"operations, {count} layers" for count in args.layers)
    columns = "target, model, program", *of_layers, "argument MiB", "temp MiB"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for target in args.target:
        for model in args.model:
            for row in compare(args.before.resolve(), target, model, flags, tuple(args.layers)):
                rows.append(row)
                mib = {kind: [value / 2**20 for value in row[f"{kind}_bytes"]] for kind in ("argument", "temp")}
                cells = (
                    *(f"{a} → {b}" for a, b in zip(row["before"], row["after"], strict=True)),
                    *(f"{a:.1f} → {b:.1f}" for a, b in mib.values()),
                )
                print(f"| {target} {model} {row['program']} | {' | '.join(cells)} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
