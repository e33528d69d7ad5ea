"""What Pallas kernels by way of Mosaic GPU share: where JAX's versions differ, and how such kernels are interpreted."""

import os
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from palladio.pallas_kernels.target import Target

INTERPRETER_THREADS = 8
WARPGROUP_ROWS = 64  # of a product that one warpgroup starts
# Rows of 128 bytes, eight of which are kept together: what the tensor cores read without conflicts.
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def transposed(ref: Any) -> Any:
    """A matrix in shared memory as its transpose, which costs nothing."""
    if jax.__version_info__ < (0, 11):
        return plgpu.transpose_ref(ref, (1, 0))
    return ref.transpose((1, 0))


def store_rows(ref: Any, values: jax.Array) -> None:
    """Into shared memory that lies row by row, from the layout of the tensor cores: conflicts of banks are accepted."""
    if jax.__version_info__ < (0, 12):
        ref[...] = values
    else:
        plgpu.store(ref, values, optimized=False)


def refusal(target: Target) -> str | None:
    """Why no such kernel can be compiled, or interpreted, for a target; None: it can."""
    if target.interpret is not None:
        if jax.__version_info__ < (0, 11):
            return f"JAX {jax.__version__} cannot interpret kernels for Hopper GPUs, 0.11 and later can"
        # XLA has a thread for each processor or each CPU device. Warpgroups that wait for each other hold one each, so
        # with too few of them the interpreter would hang.
        if max(os.cpu_count() or 1, jax.device_count("cpu")) < INTERPRETER_THREADS:
            return (
                f"interpreting it takes {INTERPRETER_THREADS} threads, more than this host has processors: set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={INTERPRETER_THREADS}"
            )
        return None
    if target.platform != "gpu":
        return f"Mosaic compiles for GPUs, not for {target.platform}"
    if target.kind and int(float(target.kind)) != 9:
        return f"it is made for compute capability 9.x (Hopper), this GPU has {target.kind}"
    return None


def interpreter(target: Target, num_threads: int) -> Any:
    """For plgpu.kernel(interpret=…): None compiles; num_threads: warpgroups of a block."""
    if target.interpret is None:
        return None
    return plgpu.InterpretGPUParams(num_cores_or_threads=num_threads, detect_races=target.interpret == "eager")
