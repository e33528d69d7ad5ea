"""The trials of kernels that a first start runs: how many, how long, how much memory; compiled for devices not here.

    python benchmarks/aot/kernel_trials.py --figures                  # by arithmetic, for four models on three devices
    python benchmarks/aot/kernel_trials.py --smoke --targets v6e      # one trial of each model, compiled
    python benchmarks/aot/kernel_trials.py --json out.json            # all trials, compiled, with their memory

The shapes are those of the models' programs (`ModelOnDevice`). Seconds are those of sending the inputs, of the bytes
and operations of the kernel and of the reference in float32, and, of compiled ones, of this host's compiler.
"""

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.aot.aot_steps import quantized
from benchmarks.support.checkpoints import DEEPSEEK_V3, LLAMA_8B, QWEN3_30B, QWEN3_NEXT_80B
from palladio.model.functional import num_bytes
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.kernel_choice import choose_kernels
from palladio.runtime.core.trials.case import Case, Kernel
from palladio.runtime.core.trials.kernels_in_use import ModelOnDevice
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.planning.deployment import Deployment
from palladio.runtime.planning.hardware import Slice, find_slice

MODELS: Final = {  # shape, quantization as stored, devices that share a layer
    "llama-3.1-8b": (LLAMA_8B, None, 1),
    "qwen3-30b-a3b": (QWEN3_30B, None, 4),
    "deepseek-v3": (DEEPSEEK_V3, "fp8-block", 8),
    "qwen3-next-80b": (QWEN3_NEXT_80B, None, 2),
}
TARGETS: Final = {  # names of slices, and the numbers in them
    "v6e": (Target("tpu", "v6e"), "v6e-{}", (1, 4, 8)),
    "7x": (Target("tpu", "7x"), "tpu7x-{}", (8,)),
    "h200": (Target("gpu", "9.0"), "h200-{}", (1, 2, 4, 8)),
}
COMPILERS: Final = {"v6e": "tpu-v6e", "7x": "tpu7x", "h200": "h200"}
TRANSFER_RATE = 8e9  # bytes per second from the host to a device, a low estimate
EXACT_PRODUCTS = 6  # products in bfloat16 for one in float32
REFERENCE_BYTES = 4  # of the kernel's: the reference widens and gathers


@functools.cache
def kernels_of(model: str, target: str) -> tuple[tuple[Kernel, ...], Target]:
    """Return the kernels of a model on a kind of device, and what they are compiled for."""
    shape, stored, num_shards = MODELS[model]
    kind, place = TARGETS[target][0], _slice(target, num_shards)
    config = EngineConfig.from_flags({"model_path": "", "tp_size": num_shards})
    one = Deployment.of(config, quantized(shape, stored), place)
    kernels = choose_kernels("auto", kind, one.layout.config, one.shape)
    on_device = ModelOnDevice(
        kernels=kernels,
        model=one.layout.config,
        shape=one.shape,
        structure=one.structure,
        weights=one.weights,
    )
    return tuple(on_device.kernels_in_use()), kernels.target


def figures(model: str, target: str) -> dict[str, Any]:
    """Return the number of trials, their seconds without compilation, and the most bytes of one, by arithmetic."""
    chip = _slice(target, 1).chip
    kernels, _ = kernels_of(model, target)
    seconds, most = 0.0, 0
    cases = [case for kernel in kernels for case in kernel.cases]
    for case in cases:
        held = bytes_of(case.abstract())
        most = max(most, held)
        for inputs in case.inputs:
            work = inputs.work
            seconds += 2 * held / TRANSFER_RATE
            seconds += (1 + REFERENCE_BYTES) * work.num_bytes / chip.bandwidth
            seconds += (1 + EXACT_PRODUCTS) * work.num_flops / chip.flops
    return {
        "model": model,
        "target": target,
        "kernels": [kernel.name for kernel in kernels],
        "programs": len(cases),
        "runs": sum(len(case.inputs) for case in cases),
        "seconds": round(seconds, 2),
        "argument_bytes": most,
    }


def _slice(target: str, num_devices: int) -> Slice:
    """Return the smallest slice of so many devices."""
    _, name, sizes = TARGETS[target]
    return find_slice(name.format(min(size for size in sizes if size >= num_devices)))


def bytes_of(tree: Any) -> int:
    """Return the bytes of arrays, or of their shapes."""
    return sum(num_bytes(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))


def compile_trials(model: str, target: str, *, smoke: bool) -> Iterator[dict[str, Any]]:
    """Compile the trials of a model, and return a row for each program.

    Args:
        smoke: the first program of the first kernel alone, and no reference.
    """
    kernels, kind = kernels_of(model, target)
    mesh = aot_targets.TARGETS[COMPILERS[target]].mesh()
    for kernel in kernels[:1] if smoke else kernels:
        for case in kernel.cases[:1] if smoke else kernel.cases:
            row = {"model": model, "target": target, "kernel": kernel.name, "case": case.name, "options": case.options}
            yield row | _compiled(mesh, kernel, case, kind, smoke=smoke)


def _compiled(mesh: Mesh, kernel: Kernel, case: Case, kind: Target, *, smoke: bool) -> dict[str, Any]:
    whole = NamedSharding(mesh, PartitionSpec())
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), case.abstract())
    jitted = jax.jit(functools.partial(case.call, kernel.backend, kind), donate_argnums=case.donated)
    start, found = time.process_time(), {"wrong": ""}
    try:
        programs = [aot_targets.compile_for(mesh, jitted, args)]
        if case.expected is not None and not smoke:
            programs.append(aot_targets.compile_for(mesh, jax.jit(case.expected), args))
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError, TypeError) as refusal:
        return {"wrong": f"{type(refusal).__name__}: {str(refusal).strip()[:400]}"}
    results = bytes_of(jax.eval_shape(jitted, *args))
    most = max(one.argument_bytes + one.temp_bytes + results for one in programs)
    return found | {"bytes": most, "cpu_seconds": round(time.process_time() - start, 1)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--figures", action="store_true", help="compile nothing")
    parser.add_argument("--smoke", action="store_true", help="compile one program of each model")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    pairs = [(model, target) for model in args.models for target in args.targets]
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "jax": jax.__version__}
    report["figures"] = [figures(*pair) for pair in pairs]
    for row in report["figures"]:
        mib = math.ceil(row["argument_bytes"] / 2**20)
        print(
            f"{row['model']:16} {row['target']:5} {len(row['kernels'])} kernels, {row['programs']} programs, "
            f"{row['runs']} runs, {row['seconds']:.2f} s, arguments of at most {mib} MiB: {', '.join(row['kernels'])}"
        )
    report["rows"] = []
    for pair in [] if args.figures else pairs:
        for row in compile_trials(*pair, smoke=args.smoke):
            report["rows"].append(row)
            print(f"  {row}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(row["wrong"] for row in report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
