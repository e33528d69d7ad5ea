"""The log lines about loaded weights and the memory that they take."""

import dataclasses
import logging
from typing import Self

import jax
import jax.numpy as jnp

from palladio.model.functional import Model
from palladio.model.loading.load_model import describe_weights
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.memory import DeviceMemory
from palladio.runtime.telemetry.process_memory import resident_bytes

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the first device, in GiB.

    Attributes:
        available: what a program can still take.
        resident: of this process, which is what loading takes on a CPU: other programs change what is available there.
    """

    available: float
    resident: float
    is_cpu: bool

    @classmethod
    def now(cls) -> Self:
        device = jax.local_devices()[0]
        return cls(DeviceMemory.of(device).available / 2**30, resident_bytes() / 2**30, device.platform == "cpu")

    def used_since(self, before: "Memory") -> float:
        return self.resident - before.resident if self.is_cpu else before.available - self.available


def log_loaded(model: Model, dtypes: Dtypes, architecture: str, before: Memory, seconds: float) -> None:
    """Logs the weights by kind, and the memory that they take where it could be measured."""
    after = Memory.now()
    used = after.used_since(before)
    for line in describe_weights(model, dtypes.activations):
        logger.info(line)
    logger.info(
        "Load weight end. type=%s, dtype=%s, avail mem=%.2f GB, %s%.1f s.",
        architecture,
        jnp.dtype(dtypes.weights).name,
        after.available,
        f"mem usage={used:.2f} GB, " if used >= 0.005 else "",
        seconds,
    )
