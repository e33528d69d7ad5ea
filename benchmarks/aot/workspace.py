"""What the largest programs need beside their arguments, by the real compilers, against the estimate of a plan.

    pip install 'jax[tpu]' 'jax-cuda13-plugin[with-cuda]'      # either alone will do; neither needs its hardware
    python benchmarks/aot/workspace.py --topology v6e-1 --model qwen2.5-0.5b --layers 2

`tests/runtime/planning/test_workspace_estimate.py` holds the estimate to the figures that are kept. With few layers,
since each program takes a minute or more; the scratch memory hardly depends on them, and the code grows by the same
with each.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # noqa: F401  # isort: skip  # first: it tells jax where to run
import jax

from benchmarks.aot.aot_steps import MODELS
from palladio.model.config.config import ModelConfig
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.kernel_choice import choose_kernels
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.planning.compile_only import PROBE_PAGES, compile_only_mesh
from palladio.runtime.planning.deployment import Deployment
from palladio.runtime.planning.hardware import find_slice


def deployment(model: ModelConfig, topology: str) -> Deployment:
    """With the kernels of an engine there, and the largest chunk that is a default anywhere."""
    place = find_slice(topology)
    chunk = PlatformDefaults.of("tpu").largest_chunk
    config = EngineConfig.from_flags({"model_path": "", "tp_size": place.num_devices, "chunked_prefill_size": chunk})
    mesh = compile_only_mesh(place, place.num_devices)
    plain = Deployment.of(config, model, place)
    shape = dataclasses.replace(plain.shape, mesh=mesh)
    kernels = choose_kernels(
        config.execution.attention_backend, Target.of(mesh.devices.flat[0]), plain.layout.config, shape
    )
    return Deployment.of(config, model, place, mesh, kernels)


def sizes(one: Deployment, only: Sequence[str]) -> dict[str, dict[str, int | float]]:
    """Return for each of the largest programs the bytes of a device, and the CPU seconds of its compilation."""
    built: ProgramCache[ProgramKey] = ProgramCache(CompileMonitor())
    state = one.shape.abstract(one.weights, PROBE_PAGES)
    programs = StepPrograms(one.static_model, state, one.shape, one.buckets, built)
    found: dict[str, dict[str, int | float]] = {}
    for key in programs.largest_keys():
        if not any(str(key).startswith(name) for name in only):
            continue
        start = time.process_time()
        jitted, args = built.declaration(key)
        with jax.sharding.use_abstract_mesh(one.shape.mesh.abstract_mesh):
            memory = jitted.lower(*args).compile().memory_analysis()
        found[str(key)] = {
            "scratch": memory.temp_size_in_bytes,
            "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
            "cpu_seconds": round(time.process_time() - start, 1),
        }
        print(f"  {key}: {found[str(key)]}", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topology", required=True, help="as of palladio plan, such as v6e-8; all of its devices")
    parser.add_argument("--model", choices=MODELS, default="llama-3.1-8b")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of programs' names")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    one = deployment(ModelConfig.from_hf(MODELS[args.model] | {"num_hidden_layers": args.layers}), args.topology)
    report: dict[str, Any] = {
        "command": " ".join(["python benchmarks/aot/workspace.py", *(sys.argv[1:] if argv is None else argv)]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "jax": jax.__version__,
        "topology": args.topology,
        "model": args.model,
        "layers": args.layers,
        "programs": sizes(one, args.only),
        "estimate": one.estimated_workspace(),
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
