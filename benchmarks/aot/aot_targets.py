"""Accelerators as compile targets: their real compilers run here, without the accelerator.

Importing this module sets up the environment for that, so import it before jax is first used.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else libtpu asks a cloud's metadata server where it runs
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")  # no chip is opened, so processes may compile side by side
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_LOG_DIR", "disabled")
os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import dataclasses
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from palladio.model.base.sharding import make_mesh
from palladio.model.functional import num_bytes
from palladio.runtime.planning.compile_only import compile_only_devices


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A kind of accelerator.

    Attributes:
        platform: as jax names it; "tpu" needs libtpu installed, "cuda" jax's CUDA plugin.
        topology: the smallest that libtpu knows; of GPUs a name.
        memory: bytes of one device.
    """

    platform: Literal["tpu", "cuda"]
    topology: str
    memory: int

    def mesh(self, num_devices: int = 1, num_ranks: int = 1, num_expert_parts: int = 1) -> Mesh:
        """Make a mesh of compile-only devices: groups of `num_devices`, in parts with experts of their own.

        Raises:
            ValueError: the topology has fewer devices.
        """
        devices = (
            compile_only_devices("tpu", self.topology)
            if self.platform == "tpu"
            else compile_only_devices("gpu", f"1x1x{num_ranks * num_devices}")
        )
        return make_mesh(num_devices, devices, num_ranks, num_expert_parts)


GIB = 2**30
TARGETS = {
    "tpu-v4": Target("tpu", "v4:2x2x1", 15 * GIB),  # a device is half a chip, and its compiler allows 15.25 GiB
    "tpu-v5e": Target("tpu", "v5e:2x2", 16 * GIB),
    "tpu-v5p": Target("tpu", "v5p:2x2x1", 95 * GIB),
    "tpu-v6e": Target("tpu", "v6e:2x2", 32 * GIB),
    "tpu7x": Target("tpu", "tpu7x:2x2x1", 96 * GIB),  # a device is half a chip
    "h200": Target("cuda", "h200", 139 * GIB),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A program as the target's compiler made it.

    Attributes:
        lower_seconds: seconds of tracing and lowering.
        compile_seconds: seconds of the compiler.
        compile_cpu_seconds: CPU seconds of the compiler on all cores; unlike the others it hardly depends on the
            machine's load.
        argument_bytes: bytes of one device, as the following ones.
        donated_bytes: arguments that may be updated in place.
        alias_bytes: results that reuse the memory of arguments.
        temp_bytes: scratch memory.
        hlo: the optimized program.
    """

    lower_seconds: float
    compile_seconds: float
    compile_cpu_seconds: float
    argument_bytes: int
    donated_bytes: int
    alias_bytes: int
    temp_bytes: int
    hlo: str


def compile_for(
    mesh: Mesh, jitted: Any, args: tuple[Any, ...], options: Mapping[str, str] = MappingProxyType({})
) -> Compiled:
    """Compile a jitted function for the mesh's devices.

    Args:
        args: jax.ShapeDtypeStruct trees; at least one leaf has a sharding on the mesh.
        options: XLA options in addition to those of the function.

    Raises:
        Exception: any refusal of the compiler.
    """
    start = time.perf_counter()
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # kernels ask it which device they are lowered for
        lowered = jitted.lower(*args)
    middle, cpu = time.perf_counter(), time.process_time()
    compiled = lowered.compile(compiler_options=dict(options))
    end, cpu_end = time.perf_counter(), time.process_time()
    memory = compiled.memory_analysis()
    return Compiled(
        middle - start,
        end - middle,
        cpu_end - cpu,
        memory.argument_size_in_bytes,
        _donated_bytes(args, lowered),
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        compiled.as_text(),
    )


def bytes_per_device(tree: Any) -> int:
    """Return the bytes per device of arrays, or of their shapes; those without a sharding are whole on every device."""
    return sum(
        num_bytes(x.shape if x.sharding is None else x.sharding.shard_shape(x.shape), x.dtype)
        for x in jax.tree.leaves(tree)
    )


def _donated_bytes(args: tuple[Any, ...], lowered: jax.stages.Lowered) -> int:
    infos = jax.tree.leaves(lowered.args_info)
    return sum(bytes_per_device(leaf) for leaf, info in zip(jax.tree.leaves(args), infos, strict=True) if info.donated)
