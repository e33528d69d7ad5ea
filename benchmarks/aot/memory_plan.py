"""The memory plan of an engine against what the real compilers then ask for, on accelerators that are not there.

    pip install 'jax[tpu]' 'jax-cuda13-plugin[with-cuda]'      # either alone will do; neither needs its hardware
    python benchmarks/aot/memory_plan.py --target tpu-v6e --model llama-3.1-8b --all

The plan is made as at an engine's start: a few programs are compiled with a small KV cache, and the pool takes what
they leave. Then the programs are compiled with that pool (--all: every one, else the largest), and their own figures
are added up: the bytes that an engine holds, and the most that a program takes beside them.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot.aot_targets import TARGETS, Target  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.aot.aot_steps import DEFAULTS, DTYPE, MODELS, Sizes, declare, device_shape, needs_of
from palladio.model.config.config import ModelConfig
from palladio.model.functional import flatten_model
from palladio.model.loading.load_model import abstract_model
from palladio.runtime.core.plan.engine_plan import PROBE_PAGES
from palladio.runtime.core.plan.memory import DeviceMemory, plan_memory
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.compiled.workspace import ProgramMemory, workspace_of
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.scheduling.batch.buckets import Buckets


def compile_them(mesh: Mesh, programs: StepPrograms, keys: Iterable[ProgramKey]) -> dict[ProgramKey, Any]:
    """The compiled programs."""
    compiled = {}
    for key in keys:
        start = time.perf_counter()
        jitted, args = programs.built.declaration(key)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            lowered = jitted.lower(*args)
        compiled[key] = lowered.compile()
        print(f"  {key}: {time.perf_counter() - start:.1f} s", flush=True)
    return compiled


def bytes_held(config: ModelConfig, compiled: Mapping[ProgramKey, Any]) -> int:
    """All that stays on the device, as the compiler lays it out: what the largest forward step takes, the sampler's
    state, which `reset` takes, and the head's weights, which forward steps do not take unless they are the embedding's.
    """
    forward = max(program.memory_analysis().argument_size_in_bytes for program in compiled.values())
    sampler = compiled[ProgramKey("reset")].memory_analysis().argument_size_in_bytes
    key = next(key for key in compiled if key.kind == "score")
    hidden = key.num_tokens * (config.hidden_size * jnp.dtype(DTYPE).itemsize + 4)
    head = compiled[key].memory_analysis().argument_size_in_bytes - hidden
    return int(forward + sampler + (0 if config.tie_word_embeddings else head))


def needed(programs: StepPrograms, compiled: Mapping[ProgramKey, Any]) -> int:
    """Return the workspace, estimated from some of the programs."""
    return workspace_of({key: ProgramMemory.of(one) for key, one in compiled.items()}, programs.built.declared)


def compare(config: ModelConfig, target: Target, num_devices: int, sizes: Sizes, *, everything: bool) -> dict[str, Any]:
    """Plan and reality, in bytes of one device."""
    mesh = target.mesh(num_devices)
    structure, weights = flatten_model(abstract_model(config, dtype=DTYPE, mesh=mesh))
    shape = device_shape(config, mesh, sizes)
    needs = needs_of(target, shape, weights, sizes)
    memory = DeviceMemory(target.memory, target.memory)
    print("planning")
    probe = declare(config, shape, structure, weights, PROBE_PAGES, sizes)
    largest = probe.largest_keys()
    plan = plan_memory(memory, needs, needed(probe, compile_them(mesh, probe, largest)))
    print(*plan.table(), sep="\n")
    print("compiling with that pool")
    programs = declare(config, shape, structure, weights, plan.num_pages, sizes)
    keys = programs.built.declared if everything else [*largest, ProgramKey("reset")]
    compiled = compile_them(mesh, programs, keys)
    workspace, held = needed(programs, compiled), bytes_held(config, compiled)
    planned = plan.report
    return {
        "num_tokens": plan.num_tokens,
        "usable": planned.usable,
        "planned": planned.planned,
        "used": held + workspace,
        "ratio": planned.planned / (held + workspace),
        "workspace_planned": planned.workspace,
        "workspace_used": workspace,
        "workspace_ratio": planned.workspace / workspace,
        "fits": held + workspace <= target.memory,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, required=True)
    parser.add_argument("--model", choices=MODELS, default="llama-3.1-8b")
    parser.add_argument("--layers", type=int, help="other than the model's own, for a quick look")
    parser.add_argument("--devices", type=int, default=1, help="tensor parallelism")
    parser.add_argument("--all", action="store_true", help="compile every program with the planned pool")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    config = ModelConfig.from_hf(MODELS[args.model] | ({"num_hidden_layers": args.layers} if args.layers else {}))
    target = TARGETS[args.target]
    chunk = PlatformDefaults.of(target.platform).chunk_of(config, args.devices)
    buckets = Buckets.create(max_running=DEFAULTS.max_running, max_step_tokens=chunk, growth=DEFAULTS.bucket_growth)
    sizes = Sizes(buckets, 16, DEFAULTS.max_running, config.max_position_embeddings, 1)
    result = compare(config, target, args.devices, sizes, everything=args.all)
    report = {
        "command": " ".join(["python benchmarks/aot/memory_plan.py", *(argv or sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "jax": jax.__version__,
        "target": args.target,
        "model": args.model,
        **result,
    }
    print(json.dumps(report, indent=2))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if result["fits"] and abs(result["ratio"] - 1) < 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
