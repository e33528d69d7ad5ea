"""Products with weights of 8 and 4 bits, compiled for TPUs that are not there, beside tpu-inference's quantized_matmul.

    git clone https://github.com/vllm-project/tpu-inference /tmp/tpu-inference
    PYTHONPATH=.venv-aot python benchmarks/aot/product_schedule.py --clone /tmp/tpu-inference --chips v6e --json o.json

The size is Llama-3.1-8B's up projection, 4,096 inputs and 14,336 outputs. With a scale per channel, ours is XLA's
product, of which the compiler tells estimated cycles, reading included; theirs is a kernel, of which the bundles of all
steps of its grid are counted, each a cycle, without waiting for memory. With a scale per 128 inputs both are kernels;
ours keeps activations in bfloat16, theirs rounds them to 8 bits and adds up in bfloat16. "copy" is what reading the
weight and its scales takes at the chip's bandwidth. Blocks of theirs are its tuned ones. Its files are read from a
clone; nothing of vLLM is imported, and nothing of the clone is copied.
"""

import argparse
import functools
import logging
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.aot.kernel_matrix import CHIPS
from benchmarks.aot.tpu_schedule import BANDWIDTH_GBS, CLOCK_GHZ
from benchmarks.support.hlo_facts import Facts
from benchmarks.support.report import write_rows
from benchmarks.support.tpu_dump import dump_to, read_schedule
from palladio.model.weights.kinds import WeightKind
from palladio.model.weights.scaled import rounded_rows
from palladio.pallas_kernels.grouped_matmul import grouped_matmul
from palladio.pallas_kernels.grouped_matmul.scales import Scales
from palladio.pallas_kernels.grouped_matmul.tpu_scaled import STEP_INNER, WIDE_STEP_INNER, tile_rows
from palladio.pallas_kernels.target import Target

INPUTS, OUTPUTS, GROUP = 4096, 14336, 128
COLUMNS = 1024  # of a step of our kernel
EIGHT_BITS = {"v6e": "int8", "7x": "float8_e4m3fn"}  # what the chip multiplies faster than bfloat16
# Rows, outputs and inputs of a block, and columns of 256 at a time, as tuned_block_sizes.py has them; of 4 bits, as for
# 8,192 outputs, the nearest that it has.
TUNED = {
    ("v6e", 64): (64, 7168, 512, 1),
    ("v6e", 2048): (2048, 1024, 4096, 1),
    ("7x", 64): (64, 14336, 1024, 1),
    ("7x", 2048): (1024, 2048, 1024, 1),
}
TUNED_GROUPS = {64: (64, 2048, 4096, 2), 2048: (512, 2048, 2048, 2)}


def load_kernels(clone: Path) -> tuple[Any, Any]:
    """The clone's modules for channels and for groups, with stand-ins for what they take from vLLM."""
    package, logger = (types.ModuleType(f"tpu_inference{name}") for name in ("", ".logger"))
    package.__path__ = [str(clone / "tpu_inference")]
    vars(logger)["init_logger"] = logging.getLogger
    sys.modules |= {module.__name__: module for module in (package, logger)}
    from tpu_inference.kernels.quantized_matmul import blockwise_kernel, kernel  # type: ignore[import-not-found]

    for module in (blockwise_kernel, kernel):  # it asks the device of this machine, which is none
        vars(module)["get_device_vmem_limit"] = lambda: 48 * 2**20
    return kernel, blockwise_kernel


class Case:
    """A product on one chip."""

    def __init__(self, chip: str, num_rows: int, schedules: Path) -> None:
        self.chip, self.num_rows, self._schedules = chip, num_rows, schedules
        self._mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
        self._whole = NamedSharding(self._mesh, PartitionSpec())
        self.target = Target.of(self._mesh.devices.flat[0])

    def array(self, *sizes: int, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=self._whole)

    def compiled(self, call: Callable[..., jax.Array], *args: Any) -> aot_targets.Compiled:
        for file in self._schedules.iterdir():
            file.unlink()
        return aot_targets.compile_for(self._mesh, jax.jit(call), args)

    def row(self, weights: str, who: str, cycles: int, num_bytes: float) -> dict[str, Any]:
        copy = round(num_bytes / BANDWIDTH_GBS[self.chip] * CLOCK_GHZ[self.chip])
        row = {"chip": self.chip, "rows": self.num_rows, "weights": weights, "whose": who}
        return row | {"kilocycles": round(cycles / 1000), "copy": round(copy / 1000)}

    def our_channels(self) -> dict[str, Any]:
        """Compile the product of `Scaled`."""
        storage = EIGHT_BITS[self.chip]
        kind = WeightKind(storage, activation_bits=8)  # type: ignore[arg-type]

        def product(x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
            rounded, factors = rounded_rows(x, kind)
            sums = jnp.int32 if storage == "int8" else jnp.float32
            out = lax.dot_general(rounded, values, (((1,), (0,)), ((), ())), preferred_element_type=sums)
            return (out.astype(jnp.float32) * factors[:, None] * scales).astype(x.dtype)

        values = self.array(INPUTS, OUTPUTS, dtype=storage)
        scales = self.array(OUTPUTS, dtype=jnp.float32)
        program = self.compiled(product, self.array(self.num_rows, INPUTS), values, scales)
        cycles = Facts.of(program.hlo, (), ()).cycles["entry"]
        return self.row(f"{storage} by channel", "ours (XLA's estimate)", cycles, INPUTS * OUTPUTS)

    def their_channels(self, kernel: Any) -> dict[str, Any]:
        storage = EIGHT_BITS[self.chip]
        tuned = kernel.TunedValue(*TUNED[self.chip, self.num_rows])

        def product(x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
            out: jax.Array = kernel.quantized_matmul_kernel(
                x, values, scales, x_q_dtype=jnp.dtype(storage), tuned_value=tuned
            )
            return out

        values, scales = self.array(OUTPUTS, INPUTS, dtype=storage), self.array(OUTPUTS, dtype=jnp.float32)
        self.compiled(product, self.array(self.num_rows, INPUTS), values, scales)
        return self.row(f"{storage} by channel", "theirs", self._of_grid(tuned), INPUTS * OUTPUTS)

    def our_groups(self, storage: str) -> dict[str, Any]:
        def product(x: jax.Array, values: jax.Array, sizes: jax.Array, factors: jax.Array) -> jax.Array:
            scales = Scales(factors, GROUP)
            return grouped_matmul(x, values, sizes, scales=scales, backend="tpu_scaled", target=self.target)

        values = self.array(1, INPUTS, OUTPUTS, dtype=storage)
        scales = self.array(1, INPUTS // GROUP, OUTPUTS, dtype=jnp.float32)
        sizes = self.array(1, dtype=jnp.int32)
        self.compiled(product, self.array(self.num_rows, INPUTS), values, sizes, scales)
        segments = read_schedule(self._schedules, "scaled_grouped_matmul")
        step = sum(one.bundles for one in segments if one.depth)
        blocks = -(-self.num_rows // tile_rows(self.num_rows, 1)) * OUTPUTS // COLUMNS
        inputs = WIDE_STEP_INNER if storage == "int4" or self.chip == "7x" else STEP_INNER
        cycles = blocks * INPUTS // inputs * step
        return self.row(f"{storage}, groups of {GROUP}", "ours", cycles, _bytes_of_groups(storage))

    def their_groups(self, kernel: Any, storage: str) -> dict[str, Any]:
        tuned = kernel.TunedValue(*TUNED_GROUPS[self.num_rows])

        def product(x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
            rounded = jnp.dtype(EIGHT_BITS[self.chip])
            out: jax.Array = kernel.quantized_matmul_kernel(
                x, values, scales, block_size=GROUP, x_q_dtype=rounded, tuned_value=tuned
            )
            return out

        values = self.array(OUTPUTS, INPUTS, dtype=storage)
        scales = self.array(INPUTS // GROUP, 1, OUTPUTS, dtype=jnp.float32)
        self.compiled(product, self.array(self.num_rows, INPUTS), values, scales)
        return self.row(f"{storage}, groups of {GROUP}", "theirs", self._of_grid(tuned), _bytes_of_groups(storage))

    def _of_grid(self, tuned: Any) -> int:
        """Bundles of all steps: of each the piece that multiplies, and what the grid adds."""
        segments = [one for one in read_schedule(self._schedules, "kernel") if one.depth]
        turn = max(segments, key=lambda one: one.units["MXU"])
        step = sum(one.bundles for one in segments if not one.units["MXU"])
        num_steps: int = -(-self.num_rows // tuned.batch_block_size)
        num_steps *= -(-OUTPUTS // tuned.out_block_size) * -(-INPUTS // tuned.in_block_size)
        return num_steps * (turn.bundles + step)


def _bytes_of_groups(storage: str) -> float:
    return INPUTS * OUTPUTS * (0.5 if storage == "int4" else 1) + INPUTS // GROUP * OUTPUTS * 4


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clone", type=Path, help="of github.com/vllm-project/tpu-inference; without it, ours alone")
    parser.add_argument("--chips", choices=EIGHT_BITS, nargs="+", required=True)
    parser.add_argument("--rows", type=int, choices=TUNED_GROUPS, nargs="+", default=(64, 2048))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        dump_to(Path(folder))
        channels, groups = load_kernels(args.clone) if args.clone else (None, None)
        for chip in args.chips:
            for num_rows in args.rows:
                case = Case(chip, num_rows, Path(folder))
                compiles: list[Callable[[], dict[str, Any]]] = [case.our_channels]
                if channels:
                    compiles.append(functools.partial(case.their_channels, channels))
                for storage in (EIGHT_BITS[chip], "int4"):
                    compiles.append(functools.partial(case.our_groups, storage))
                    if groups:
                        compiles.append(functools.partial(case.their_groups, groups, storage))
                for compile_case in compiles:
                    try:
                        rows.append(compile_case())
                    except Exception as refusal:  # noqa: BLE001  # of kernels that are not ours: whatever it says
                        rows.append({"chip": chip, "rows": num_rows, "wrong": str(refusal).strip()[:300]})
                    print(rows[-1], flush=True)
    write_rows(rows, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
