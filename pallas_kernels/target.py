"""What a kernel is compiled for: said by the caller, never asked of the local device while tracing."""

import dataclasses
from typing import Literal, Self

import jax

Interpret = Literal["plain", "on_wait", "eager"]

_TPU_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "7x",
    "TPU v7x": "7x",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A kind of device.

    Attributes:
        platform: as jax names it.
        kind: of a TPU its generation (v4, v5e, v5p, v6e, 7x), of a GPU its compute capability (9.0); "" if unknown.
        interpret: compute Pallas kernels on this host instead of compiling them. plain: as ordinary XLA operations,
            fast; on_wait and eager: a simulated TPU, which runs a copy when it is waited for, or at once and looks for
            races.
    """

    platform: Literal["cpu", "tpu", "gpu"] = "cpu"
    kind: str = ""
    interpret: Interpret | None = None

    @classmethod
    def of(cls, device: jax.Device) -> Self:
        """The kind of a device, which may be one that only compiles."""
        if device.platform == "tpu":
            return cls("tpu", _TPU_KINDS.get(device.device_kind, ""))
        if device.platform in ("gpu", "cuda"):
            return cls("gpu", str(device.compute_capability))
        return cls()
