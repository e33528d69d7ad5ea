"""The operations of one step in the order in which a TPU runs them, with XLA:TPU's own estimates of their cycles.

    PYTHONPATH=.venv-aot python benchmarks/aot/step_cycles.py --target tpu-v6e --layers 3 --prefill 2048
    … --option xla_tpu_scoped_vmem_limit_kib=49152          # an option of XLA's beside the engine's own
    … --layers 1 --kernel rotate_heads    # and the bundles of a kernel, by its final schedule: minutes more

"P" marks products, and what is fused with them. XLA has no estimate of kernels: they are listed without one.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets
from benchmarks.aot.aot_steps import MODELS, PROGRAMS, STORED, Sizes, compile_all, quantized
from benchmarks.aot.aot_targets import TARGETS, Compiled
from benchmarks.support import tpu_dump
from benchmarks.support.hlo_facts import entry_operations
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.scheduling.batch.buckets import Buckets, PrefillBucket

_NAME = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\S+)")


def print_operations(program: Compiled, least: int) -> None:
    """Print the operations of at least `least` cycles, kernels, and the sums."""
    total = products = 0
    for operation in entry_operations(program.hlo):
        total += operation.cycles
        products += operation.is_product * operation.cycles
        is_kernel = 'custom_call_target="tpu_custom_call"' in operation.line
        if (is_kernel or operation.cycles >= least) and (match := _NAME.match(operation.line)) is not None:
            cycles = "" if is_kernel else operation.cycles
            print(f"{cycles:>9} {'P' if operation.is_product else ' '} {match[1]:<40} {match[2][:70]}")
    print(f"{total:>9}   in all; products {products}, others {total - products}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=[name for name in TARGETS if name.startswith("tpu")], default="tpu-v6e")
    parser.add_argument("--model", choices=MODELS, default="llama-3.1-8b")
    parser.add_argument("--quantization", choices=tuple(STORED))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--expert-parts", type=int, default=1)
    parser.add_argument("--decode", type=int, nargs="*", default=[], help="requests of decode steps")
    parser.add_argument("--prefill", type=int, nargs="*", default=[], help="tokens of prefill steps")
    parser.add_argument("--requests", type=int, default=256, help="for which prefill steps have places")
    parser.add_argument("--only", choices=PROGRAMS, nargs="+", default=["forward"])
    parser.add_argument("--least", type=int, default=1000, help="cycles of an operation that is listed")
    parser.add_argument("--option", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--kernel", help="a part of the name of a kernel")
    args = parser.parse_args()
    options = dict(option.split("=", 1) for option in args.option)
    config = quantized(MODELS[args.model] | {"num_hidden_layers": args.layers}, args.quantization)
    running = PlatformDefaults.of("tpu").max_running
    prefill = tuple(PrefillBucket(tokens, args.requests) for tokens in args.prefill)
    sizes = Sizes(
        Buckets(tuple(args.decode), prefill, tuple(args.decode) or (64,)),
        16,
        running,
        config.max_position_embeddings,
        1,
    )
    compile_for = aot_targets.compile_for

    def compile_and_print(mesh: Any, jitted: Any, arguments: tuple[Any, ...]) -> Compiled:
        program = compile_for(mesh, jitted, arguments, options)
        print_operations(program, args.least)
        return program

    aot_targets.compile_for = compile_and_print  # type: ignore[assignment]  # compile_all gives no options
    with tempfile.TemporaryDirectory() as folder:
        if args.kernel:
            tpu_dump.dump_to(Path(folder))
        devices = args.devices, sizes, args.only, "auto", 1, args.expert_parts
        for row in compile_all(config, TARGETS[args.target], *devices):
            print(f"{row['program']}: {'; '.join(row['wrong']) or 'ok'}; collectives {row.get('collectives')}\n")
        if args.kernel:
            for part in tpu_dump.read_schedule(Path(folder), args.kernel):
                print(f"{args.kernel}: {part.bundles} bundles in {part.depth} loops, {part.units}")


if __name__ == "__main__":
    main()
