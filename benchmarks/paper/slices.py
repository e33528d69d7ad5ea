"""The table of docs/hardware.md: well-known models on slices, by the accelerators' own compilers, without either.

    pip install 'jax[tpu]' 'jax-cuda13-plugin[with-cuda]'      # neither needs its hardware
    python benchmarks/paper/slices.py --json slices.json                     # all rows, each in a process; hours of CPU
    python benchmarks/paper/slices.py --json slices.json --only v6e-8  # those with it in their model's or slice's name
    python benchmarks/paper/slices.py --json slices.json --write docs/hardware.md

Each row is an engine with default flags and one group of all devices of the slice: its largest prefill and decode
steps, scoring and sampling are compiled with all layers. Rows that the file has already are made again only if --only
names them.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # noqa: F401  # isort: skip  # first: it tells jax where to run
import jax

from benchmarks.support.checkpoints import HALF_BILLION, LLAMA_8B
from palladio.model.config.config import ModelConfig
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.kernel_choice import choose_kernels
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.planning.compile_only import compile_deployment, compile_only_mesh
from palladio.runtime.planning.deployment import Deployment, Roofline
from palladio.runtime.planning.hardware import Slice, find_slice

MODELS: dict[str, dict[str, Any]] = {
    "Qwen2.5-0.5B": HALF_BILLION,
    "Llama-3.1-8B": LLAMA_8B,
    "Qwen3-32B": HALF_BILLION
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
    "Llama-3.1-70B": LLAMA_8B
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
ROWS = (
    ("Qwen2.5-0.5B", "v5e-1"),
    ("Llama-3.1-8B", "v5e-4"),
    ("Llama-3.1-8B", "v6e-8"),
    ("Llama-3.1-8B", "h200-1"),
    ("Qwen3-32B", "v6e-4"),
    ("Llama-3.1-70B", "v6e-8"),
    ("Llama-3.1-70B", "v5p-8"),
    ("Llama-3.1-70B", "tpu7x-8"),
    ("Llama-3.1-70B", "h200-8"),
)
CONTEXT = 2048  # tokens that a request of the full batch has in the cache
BEGIN, END = "<!-- benchmarks/paper/slices.py -->", "<!-- end -->"


def plan_row(model_name: str, place: Slice) -> dict[str, Any]:
    """The figures of one row, or in "error" why there are none."""
    model = ModelConfig.from_hf(MODELS[model_name])
    config = EngineConfig(source=ModelSource(model_path=model_name), parallel=ParallelConfig(tp_size=place.num_devices))
    row: dict[str, Any] = {"model": model_name, "slice": place.name, "devices": place.num_devices}
    row |= {"chip": place.chip.label, "jax": jax.__version__, "date": time.strftime("%Y-%m-%d")}
    try:
        one = Deployment.of(config, model, place)
        row |= {"weight_bytes": one.weight_bytes, "estimated_workspace": one.estimated_workspace()}
        mesh = compile_only_mesh(place, place.num_devices)
        kernels = choose_kernels("auto", Target.of(mesh.devices.flat[0]), one.layout.config, one.shape)
        one = Deployment.of(config, model, place, mesh, kernels)
        cpu = time.process_time()
        compiled = compile_deployment(one)
        plan = one.plan(config, compiled.workspace)
    except ConfigError as error:
        return row | {"error": str(error)}
    many = max(1, min(one.limits.max_running, plan.num_tokens // CONTEXT))
    return row | {
        "attention": kernels.attention,
        "workspace": compiled.workspace,
        "kv_tokens": plan.num_tokens,
        "collectives": compiled.collectives,
        "compile_seconds": round(compiled.seconds, 1),
        "compile_cpu_seconds": round(time.process_time() - cpu, 1),
        "one_request_rate": round(Roofline(one).decode_rate(1, CONTEXT)),
        "full_batch": many,
        "full_batch_rate": round(Roofline(one).decode_rate(many, CONTEXT)),
        "layout": one.layout.table(),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| model | slice | weights | KV tokens | workspace (estimate) | sums of a decode pass | compile | 1 request "
        "| full batch |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        head = f"| {row['model']} | {row['slice']} |"
        if "error" in row:
            lines.append(f"{head} {row['error']} | | | | | | |")
            continue
        sums = ", ".join(f"{count} {kind}" for kind, count in sorted(row["collectives"].items())) or "none"
        lines.append(
            f"{head} {row['weight_bytes'] / 2**30:.2f} GiB | {row['kv_tokens']:,} | {row['workspace'] / 2**30:.2f} GiB "
            f"({row['estimated_workspace'] / 2**30:.2f}) | {sums} | {row['compile_cpu_seconds']:,.0f} s | "
            f"{row['one_request_rate']:,} t/s | {row['full_batch_rate']:,} t/s ×{row['full_batch']} |"
        )
    return "\n".join(lines)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a file, in the order of ROWS; none if there is no file."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return sorted(rows, key=lambda row: ROWS.index((row["model"], row["slice"])))


def write_table(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Puts the table between the page's two marks."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", default="", help="rows that have this in their model's or slice's name")
    parser.add_argument("--write", type=Path, help="put the file's rows into this page, and compile nothing")
    parser.add_argument("--row", nargs=2, metavar=("MODEL", "SLICE"), help="one row, in this process")
    args = parser.parse_args(argv)
    if args.write:
        write_table(args.write, read_rows(args.json))
        return 0
    if args.row:
        model_name, name = args.row
        rows = [row for row in read_rows(args.json) if [row["model"], row["slice"]] != args.row]
        rows.append(plan_row(model_name, find_slice(name)))
        args.json.write_text(
            json.dumps({"command": "python benchmarks/paper/slices.py", "rows": rows}, indent=1) + "\n"
        )
        print(table(rows[-1:]), flush=True)
        return 1 if "error" in rows[-1] else 0
    done = {(row["model"], row["slice"]) for row in read_rows(args.json)}
    wanted = [row for row in ROWS if (args.only in " ".join(row) if args.only else row not in done)]
    command = [sys.executable, __file__, "--json", str(args.json), "--row"]
    return max([subprocess.run([*command, *row], check=False).returncode for row in wanted], default=0)


if __name__ == "__main__":
    sys.exit(main())
