"""The target of a kernel: the caller names it; tracing never asks the local device."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
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

_WHOLE_NUMBERS = ("v5e", "v5p", "v6e")  # TPUs that multiply int8 at twice the rate of bfloat16; 7x has float8 instead
_TENSOR_CORES = {"int8": (7, 5), "float8_e4m3fn": (8, 9)}  # by the compute capability that they began with
# What a CPU multiplies bfloat16 with, best first; as Linux names it. avx512: widened to float32.
_CPU_KINDS = ("amx_bf16", "avx512_bf16", "avx512", "avx2")
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A kind of device.

    Attributes:
        platform: jax's name of it.
        kind: generation of a TPU (v4, v5e, v5p, v6e, 7x), compute capability of a GPU (9.0), best feature of a CPU for
            products of bfloat16 (amx_bf16, avx512_bf16, avx512, avx2); "" if unknown.
        interpret: compute Pallas kernels on this host instead of compiling them. plain: as ordinary XLA operations,
            fast; on_wait and eager: a simulated TPU, which runs a copy when it is waited for, or at once and looks for
            races.
        is_native: for a CPU: our C++ library is loaded, see cpu_native.
        has_native_int8: its products of int8 are loaded, too.
        skipped: kernels that do not work here, each as `kernel_name` names it: no op uses them.
    """

    platform: Literal["cpu", "tpu", "gpu"] = "cpu"
    kind: str = ""
    interpret: Interpret | None = None
    is_native: bool = False
    has_native_int8: bool = False
    skipped: tuple[str, ...] = ()

    @classmethod
    def of(cls, device: jax.Device) -> Self:
        """Return the kind of a device, which may be one that only compiles."""
        if device.platform == "tpu":
            return cls("tpu", _TPU_KINDS.get(device.device_kind, ""))
        if device.platform in ("gpu", "cuda"):
            return cls("gpu", str(device.compute_capability))
        return cls("cpu", _cpu_kind())

    def without(self, kernels: Iterable[str]) -> Self:
        """Return the target with more kernels that are skipped.

        Args:
            kernels: names, see `kernel_name`.
        """
        return dataclasses.replace(self, skipped=tuple(sorted({*self.skipped, *kernels})))

    def skips(self, op: str, backend: str) -> bool:
        """Return whether an op must not use one of its backends."""
        return kernel_name(op, backend) in self.skipped

    def kept(self, op: str, order: Iterable[str]) -> tuple[str, ...]:
        """Return those of an op's backends that it may use, in the same order."""
        return tuple(backend for backend in order if not self.skips(op, backend))

    def multiplies(self, storage: str) -> bool:
        """Return whether the device has a unit for products of int8, or of float8_e4m3fn, on both sides. Other devices
        would widen both: no faster than with 16 bits on one side, and less exact. CPUs do what the caller asks for."""
        if self.platform == "tpu":
            return self.kind in (_WHOLE_NUMBERS if storage == "int8" else ("7x",))
        if self.platform == "gpu":
            return tuple(int(part) for part in self.kind.split(".") if part) >= _TENSOR_CORES[storage]
        return True


def kernel_name(op: str, backend: str) -> str:
    """Return the name of an op's backend among those of all ops, such as grouped_matmul/gpu_triton."""
    return f"{op}/{backend}"


def _cpu_kind() -> str:
    try:
        return cpu_kind(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:  # no Linux
        return ""


def cpu_kind(info: str) -> str:
    """Return the best of _CPU_KINDS for a CPU, by its description in Linux. On Intel's cores the instruction for 32
    products of bfloat16 (AVX-512 BF16) is slower than two for 16 of float32; `forms_of` in cpu_native agrees."""
    found = re.search(r"^flags\s*:(.*)$", info, re.MULTILINE)
    flags = set(found[1].split()) if found else set[str]()
    if re.search(r"^vendor_id\s*:\s*GenuineIntel$", info, re.MULTILINE):
        flags.discard("avx512_bf16")
    if flags >= _AVX512:
        flags.add("avx512")
    return next((kind for kind in _CPU_KINDS if kind in flags), "")
