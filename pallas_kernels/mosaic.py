"""Shared parts of Pallas kernels that use Mosaic GPU: differences of JAX versions, and interpretation of such
kernels."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from palladio.pallas_kernels.target import Target

INTERPRETER_THREADS = 8
WARPGROUP_ROWS = 64  # of a product that one warpgroup starts
COMPUTE_REGISTERS, FETCH_REGISTERS = 232, 40  # a thread, of two warpgroups that compute and one: they have 504 together
# Rows of 128 bytes, eight of which are kept together: what the tensor cores read without conflicts.
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def transposed(ref: Any) -> Any:
    """Return a matrix in shared memory as its transpose, at no cost."""
    if jax.__version_info__ < (0, 11):
        return plgpu.transpose_ref(ref, (1, 0))
    return ref.transpose((1, 0))


def store_rows(ref: Any, values: jax.Array) -> None:
    """Store values in row-major shared memory, from the layout of the tensor cores; bank conflicts are accepted."""
    if jax.__version_info__ < (0, 12):
        ref[...] = values
    else:
        plgpu.store(ref, values, optimized=False)


def load(ref: Any, layout: Any) -> jax.Array:
    """Load from shared memory, into that layout."""
    beside = ((),) if jax.__version_info__ < (0, 12) else ()
    found: jax.Array = plgpu.load(ref, *beside, layout=layout)
    return found


def copy_out(rows: Any, into: Callable[[jax.Array | int, int], Any], count: jax.Array) -> None:
    """Copy the first `count` of a warpgroup's rows [64, C] from shared memory to the device's, and wait for the copy.

    Args:
        into: (first, size) → target of rows first … first + size - 1.
    """

    def copy(first: jax.Array | int, size: int) -> None:
        plgpu.copy_smem_to_gmem(rows.at[pl.ds(first, size)], into(first, size))

    # A copy's size is fixed: any number of rows is a sum of powers of two.
    done: jax.Array | int = 0
    size = WARPGROUP_ROWS
    while size:
        pl.when(count & size != 0)(functools.partial(copy, done, size))
        done, size = done + (count & jnp.int32(size)), size // 2
    plgpu.wait_smem_to_gmem(0)


def fetch_all(num_steps: jax.Array, stages: jax.Array, fetch: Callable[[jax.Array], None], free: Any) -> None:
    """Run the fetching warpgroup: fill a ring of buffers.

    Args:
        stages: buffers of the ring.
        fetch: fetches the data of a step.
        free: a barrier of each buffer, which opens when the buffer has been read.
    """
    plgpu.set_max_registers(FETCH_REGISTERS, action="decrease")

    def wait(step: jax.Array) -> None:
        plgpu.barrier_wait(free.at[lax.rem(step, stages)])

    def refill(step: jax.Array) -> None:
        wait(step)
        fetch(step + stages)

    ahead = jnp.maximum(num_steps - stages, 0)
    pl.loop(0, jnp.minimum(num_steps, stages))(fetch)
    pl.loop(0, ahead)(refill)
    pl.loop(ahead, num_steps)(wait)  # every barrier's last phase is waited for: JAX's interpreter asks for that


def refusal(target: Target) -> str | None:
    """Return why no such kernel can be compiled, or interpreted, for a target; None: it can."""
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


def auto_order(target: Target, order: tuple[str, ...]) -> tuple[str, ...]:
    """Return the backends of `order` that `auto` may try for this target.

    Before JAX 0.12 gpu_mosaic runs only by name: JAX 0.10 cannot interpret its kernels, so their results are unchecked
    there, and no device has shown on any version that they are faster.
    """
    if target.kind.startswith("9.") and jax.__version_info__ >= (0, 12):
        return order
    return tuple(name for name in order if name != "gpu_mosaic")


def interpreter(target: Target, num_threads: int) -> Any:
    """Return plgpu.kernel's `interpret`: None compiles. num_threads: warpgroups of a block."""
    if target.interpret is None:
        return None
    return plgpu.InterpretGPUParams(num_cores_or_threads=num_threads, detect_races=target.interpret == "eager")
