"""Compiles products of MXFP4 experts for TPUs that are not there, and reads the final schedule of their kernel.

    pip install 'jax[tpu]'
    python benchmarks/aot/expert_schedule.py --chip v6e --json out.json

The size is a third of one of gpt-oss-120b's matrices: 2,880 inputs and 1,024 outputs, a block of columns. A bundle of
instructions takes a cycle. A turn widens and multiplies 128 inputs. A step of the grid has eight of them one after the
other, the last step has the rest, in a loop. Beside a turn of the eight stand the cycles that copying the same numbers
and their scales takes at the chip's bandwidth.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.aot.kernel_matrix import CHIPS
from benchmarks.aot.tpu_schedule import BANDWIDTH_GBS, CLOCK_GHZ
from benchmarks.support.report import write_rows
from benchmarks.support.tpu_dump import dump_to, read_schedule
from palladio.pallas_kernels.grouped_matmul import grouped_matmul
from palladio.pallas_kernels.grouped_matmul.scales import Scales
from palladio.pallas_kernels.target import Target

EXPERTS, INPUTS, OUTPUTS, GROUP, TURN = 16, 2880, 1024, 32, 128
TURNS_OF_A_STEP = 8


def compile_product(chip: str, num_rows: int, schedules: Path) -> dict[str, Any]:
    """Compile one row.

    Args:
        num_rows: rows of all experts.
        schedules: folder where libtpu writes schedules.
    """
    mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
    target = Target.of(mesh.devices.flat[0])
    whole = NamedSharding(mesh, PartitionSpec())

    def array(*sizes: int, dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=whole)

    def product(rows: jax.Array, matrices: jax.Array, sizes: jax.Array, factors: jax.Array) -> jax.Array:
        scales = Scales(factors, GROUP, is_float4=True)
        return grouped_matmul(rows, matrices, sizes, scales=scales, backend="tpu_scaled", target=target)

    args = (
        array(num_rows, INPUTS, dtype=jnp.bfloat16),
        array(EXPERTS, INPUTS, OUTPUTS, dtype=jnp.int4),
        array(EXPERTS, dtype=jnp.int32),
        array(EXPERTS, INPUTS // GROUP, OUTPUTS, dtype=jnp.float32),
    )
    aot_targets.compile_for(mesh, jax.jit(product), args)
    segments = read_schedule(schedules, "scaled_grouped_matmul")
    loop, turns = sorted(segments, key=lambda one: one.units["MXU"])[-2:]
    step = sum(one.bundles for one in segments) - loop.bundles - turns.bundles
    steps, turns_of_rest = divmod(-(-INPUTS // TURN), TURNS_OF_A_STEP)
    num_bytes = TURN * OUTPUTS // 2 + TURN // GROUP * OUTPUTS * 4
    return {
        "chip": chip,
        "turn_bundles": round(turns.bundles / TURNS_OF_A_STEP),
        "turn_vector_slots": round(turns.units["VALU"] / TURNS_OF_A_STEP),
        "rest_turn_bundles": loop.bundles,
        "turn_copy_cycles": round(num_bytes / BANDWIDTH_GBS[chip] * CLOCK_GHZ[chip]),
        "step_bundles": step,
        "block_bundles": steps * turns.bundles + turns_of_rest * loop.bundles + (steps + 1) * step,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chip", choices=CHIPS, required=True)
    parser.add_argument("--rows", type=int, default=64, help="of all experts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        dump_to(Path(folder))
        row = compile_product(args.chip, args.rows, Path(folder))
    print(row, flush=True)
    write_rows([row], args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
