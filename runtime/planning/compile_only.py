"""Devices that only compile: the real compilers of TPUs and GPUs run here, and need no chip."""

import collections
import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Literal

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from palladio.model.base.sharding import make_mesh
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.compiled.workspace import ProgramMemory, workspace_of
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.planning.deployment import Deployment
from palladio.runtime.planning.hardware import Slice

PROBE_PAGES = 64  # of the KV cache that programs are compiled with: what they need does not depend on their number
_INSTALL = {"tpu": "pip install 'jax[tpu]'", "gpu": "pip install 'jax-cuda13-plugin[with-cuda]'"}
_COLLECTIVES = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")

# What XLA:GPU asks of a device before it generates code, in its text format. Without the driver's version it takes none
# that can record the calls of libraries, and leaves these outside of CUDA graphs.
_H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98 device_memory_size: 150000000000
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  driver_version: "13.0.0" runtime_version: "13.0.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H200"
"""


def compile_only_mesh(
    place: Slice, num_shards: int, num_ranks: int = 1, num_expert_parts: int = 1, *, shares_experts: bool = False
) -> Mesh:
    """The first devices of a slice, in groups that share each layer: `num_shards` devices each. See `make_mesh`.

    Raises:
        ConfigError: the slice's compiler is not installed, or does not know it.
    """
    # Without the hardware a v4's devices are half a chip each, and XLA:GPU needs a description of the device.
    if place.chip.name == "v4" or (place.chip.platform == "gpu" and place.chip.name != "h200"):
        raise ConfigError(
            f"--topology {place.name}: --compile knows TPUs except v4, and the H200; omit --compile for an estimate"
        )
    platform = place.chip.platform
    try:
        devices = compile_only_devices(platform, place.topology)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # jax's own errors are RuntimeErrors
        raise ConfigError(
            f"cannot compile for --topology {place.name} ({' '.join(str(error).split())[:200]}); install its compiler "
            f"with {_INSTALL[platform]}, or omit --compile for an estimate"
        ) from error
    return make_mesh(num_shards, devices, num_ranks, num_expert_parts, shares_experts=shares_experts)


def compile_only_devices(platform: Literal["tpu", "gpu"], topology: str) -> Sequence[jax.Device]:
    """
    Args:
        topology: as libtpu names it; of H200s 1x1x their number.

    Raises:
        RuntimeError, ValueError, NotImplementedError: from jax: there is no such compiler, or it does not know it.
    """
    if platform == "tpu":
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    else:
        found = topologies.get_topology_desc(
            platform="cuda", topology_name="h200", topology=topology, target_config=_H200
        )
    devices: Sequence[jax.Device] = found.devices
    return devices


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledPlan:
    """What the real compiler says.

    Attributes:
        workspace: bytes of a device that the programs need in addition to their arguments.
        seconds: how long the largest programs took to compile.
        collectives: collectives of a decode step's forward pass, by kind.
    """

    workspace: int
    seconds: float
    collectives: dict[str, int]


def compile_deployment(deployment: Deployment) -> CompiledPlan:
    """Compiles the programs that need most memory, and the largest decode step.

    Args:
        deployment: over a mesh of `compile_only_mesh`.

    Raises:
        ConfigError: the compiler refuses one; the message has its words.
    """
    shape = deployment.shape
    built: ProgramCache[ProgramKey] = ProgramCache(CompileMonitor())
    state = shape.abstract(deployment.weights, PROBE_PAGES)
    programs = StepPrograms(deployment.static_model, state, shape, deployment.buckets, built)
    compiled, start = {}, time.perf_counter()
    for key in programs.largest_keys():
        jitted, args = built.declaration(key)
        try:
            with jax.sharding.use_abstract_mesh(shape.mesh.abstract_mesh):  # kernels ask it what they are lowered for
                compiled[key] = jitted.lower(*args).compile()
        except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"{key} does not compile for {deployment.place.name}: {reason}") from error
    decodes = [one for key, one in compiled.items() if programs.by_key[key].runs_layers and not key.num_tokens]
    text = "".join(one.as_text() for one in decodes)
    return CompiledPlan(
        workspace=workspace_of({key: ProgramMemory.of(one) for key, one in compiled.items()}, built.declared),
        seconds=time.perf_counter() - start,
        collectives=dict(collections.Counter(_COLLECTIVES.findall(text))),
    )
