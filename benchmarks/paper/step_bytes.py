"""What a decode step of Llama-3.1-8B reads: its matrices in bfloat16, 8 and 4 bits, on each target, beside the floor.

    python benchmarks/paper/step_bytes.py [--targets tpu-v6e h200] [--json FILE]

The floor reads every matrix and its scales once, but for the embedding. A program adds its scratch, written and read,
and what it holds of a matrix in more bits, of which there must be nothing. Compiled by the targets' own compilers, of
two layers and 64 requests; scratch is the same with 32 layers.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_steps  # isort: skip  # first: it tells jax where to run
import jax

from benchmarks.aot.aot_targets import TARGETS
from palladio.runtime.planning.hardware import CHIPS
from palladio.runtime.scheduling.batch.buckets import Buckets

KINDS = (None, "int8", "w8a8_int8", "w8a8_fp8", "int4")
LAYERS, COMPILED_LAYERS, GIB = 32, 2, 2**30
CHIP = {"tpu-v5e": "v5e", "tpu-v6e": "v6e", "tpu7x": "tpu7x", "h200": "h200"}


def measure(target: str, quantization: str | None) -> dict[str, Any]:
    """A row of the table."""
    hf_config = aot_steps.MODELS["llama-3.1-8b"] | {"num_hidden_layers": COMPILED_LAYERS}
    config = aot_steps.quantized(hf_config, quantization)
    sizes = aot_steps.Sizes(Buckets((64,), (), (64,)), 32, 64, 512, 1)
    (row,) = aot_steps.compile_all(config, TARGETS[target], 1, sizes, ("forward",))
    one_byte = quantization is not None
    table = config.vocab_size * (config.hidden_size * (1 if one_byte else 2) + (4 if one_byte else 0))
    layer = (row["weight_bytes"] - 2 * table) / COMPILED_LAYERS  # the norm behind the last one is lost in the rounding
    floor = LAYERS * layer + table
    moved = floor + 2 * row["temp_bytes"]
    return {
        "target": target,
        "quantization": quantization or "bfloat16",
        "floor_gib": floor / GIB,
        "scratch_mib": row["temp_bytes"] / 2**20,
        "ratio": moved / floor,
        "milliseconds": 1e3 * floor / CHIPS[CHIP[target]].bandwidth,
        "products": row["products"],
        "widened": row["widened"],
        "wrong": row["wrong"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", choices=CHIP, nargs="+", default=list(CHIP))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows = []
    for target in args.targets:
        for quantization in KINDS:
            row = measure(target, quantization)
            rows.append(row)
            print(
                f"| {target} | {row['quantization']} | {row['floor_gib']:.2f} | {row['milliseconds']:.2f} | "
                f"{row['scratch_mib']:.1f} | {row['ratio']:.3f} | {row['products']} | "
                f"{'; '.join(row['wrong']) or 'ok'} |",
                flush=True,
            )
    if args.json:
        report = {"date": time.strftime("%Y-%m-%d"), "jax": jax.__version__, "rows": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(row["wrong"] or row["widened"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
