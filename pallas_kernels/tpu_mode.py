"""Modes of a TPU kernel: compiled for a TPU, or interpreted on another host."""

import jax
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.target import Target


def require(target: Target) -> None:
    """Check that the target runs TPU kernels.

    Raises:
        NotImplementedError: the target is no TPU, and does not ask for interpretation.
    """
    if target.platform != "tpu" and target.interpret is None:
        raise NotImplementedError(f"it runs on TPUs, not on {target.platform}")


def interpret_mode(target: Target) -> bool | pltpu.InterpretParams:
    """Return pallas_call's `interpret` for a target."""
    if target.interpret is None or target.interpret == "plain":
        return target.interpret is not None
    if target.interpret == "on_wait":
        return pltpu.InterpretParams(dma_execution_mode="on_wait")
    return pltpu.InterpretParams(dma_execution_mode="eager", detect_races=True)


def hbm(x: jax.Array, target: Target) -> jax.Array:
    """Keep an array where it is; otherwise the compiler may bring a small cache into vector memory first."""
    return x if target.interpret is not None else pltpu.with_memory_space_constraint(x, pltpu.HBM)
