"""Accelerators by their data sheets, and the slices that they come in: for plans, without any of them at hand."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Final, Literal

from palladio.runtime.interface.errors import ConfigError

_GIB = 2**30
_TERA = 10**12
_GIGA = 10**9


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """A kind of accelerator; all figures are of one device as jax counts them.

    Attributes:
        name: as in a slice's name, and of our tuned block sizes.
        platform: as jax names it.
        memory: bytes. bandwidth: bytes per second that it reads at most.
        flops: bfloat16 operations per second at most.
        link: bytes per second to its neighbours, all links together, one direction.
        label: for tables.
    """

    name: str
    platform: Literal["tpu", "gpu"]
    memory: int
    bandwidth: float
    flops: float
    link: float
    label: str


CHIPS: Final[Mapping[str, Chip]] = {
    chip.name: chip
    for chip in (
        Chip("v4", "tpu", 32 * _GIB, 1228 * _GIGA, 275 * _TERA, 150 * _GIGA, "TPU v4"),
        Chip("v5e", "tpu", 16 * _GIB, 819 * _GIGA, 197 * _TERA, 100 * _GIGA, "TPU v5e"),
        Chip("v5p", "tpu", 95 * _GIB, 2765 * _GIGA, 459 * _TERA, 300 * _GIGA, "TPU v5p"),
        Chip("v6e", "tpu", 32 * _GIB, 1640 * _GIGA, 918 * _TERA, 224 * _GIGA, "TPU v6e"),
        Chip("tpu7x", "tpu", 96 * _GIB, 3690 * _GIGA, 1153 * _TERA, 300 * _GIGA, "TPU 7x, half a chip"),
        Chip("h100", "gpu", 79 * _GIB, 3350 * _GIGA, 989 * _TERA, 450 * _GIGA, "NVIDIA H100, 80 GB"),
        Chip("h200", "gpu", 139 * _GIB, 4800 * _GIGA, 989 * _TERA, 450 * _GIGA, "NVIDIA H200"),
        Chip("gh200", "gpu", 94 * _GIB, 4000 * _GIGA, 989 * _TERA, 450 * _GIGA, "NVIDIA GH200, 96 GB"),
        Chip("b200", "gpu", 178 * _GIB, 8000 * _GIGA, 2250 * _TERA, 900 * _GIGA, "NVIDIA B200"),
        Chip("a100-40", "gpu", 39 * _GIB, 1555 * _GIGA, 312 * _TERA, 300 * _GIGA, "NVIDIA A100, 40 GB"),
        Chip("a100-80", "gpu", 79 * _GIB, 2039 * _GIGA, 312 * _TERA, 300 * _GIGA, "NVIDIA A100, 80 GB"),
        Chip("l4", "gpu", 22 * _GIB, 300 * _GIGA, 121 * _TERA, 32 * _GIGA, "NVIDIA L4"),
        Chip("l40s", "gpu", 44 * _GIB, 864 * _GIGA, 362 * _TERA, 32 * _GIGA, "NVIDIA L40S"),
    )
}


def chip_of(platform: str, kind: str, generation: str) -> Chip | None:
    """Return the data sheet of a device; None: there is none here.

    Args:
        platform, kind: as jax names them, such as gpu and NVIDIA H100 80GB HBM3.
        generation: of a TPU, as in Target.
    """
    if platform == "tpu":
        return CHIPS.get("tpu7x" if generation == "7x" else generation)
    words = re.split(r"[^a-z0-9]+", kind.lower())
    name = next((word for word in words if re.fullmatch(r"(?:gh|h|b|a|l)\d+s?", word)), "")
    if name == "a100":
        name = "a100-80" if any(word.startswith("80g") for word in words) else "a100-40"
    return CHIPS.get(name)


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Devices that are rented together.

    Attributes:
        name: as clouds name it, and --topology.
        chip: what it is made of.
        num_devices: as jax counts them.
        num_hosts: machines that they belong to.
        topology: the compiler's name of the smallest arrangement that has at least `num_devices`.
    """

    name: str
    chip: Chip
    num_devices: int
    num_hosts: int
    topology: str


_FLAT = {1: "2x2", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
_CHIPS_A_HOST = 4
_CHIPS_A_FLAT_HOST = 8  # a slice of eight v5e or v6e chips can be had on one host
_GPUS = (1, 2, 4, 8)
_ONE_MEMORY = re.compile(r"^(?:h100-80|h200-141|gh200-96|b200-1[89]\d|l4-24|l40s-48)(?=-|$)")
"""Names with the memory, of GPUs that are known with one size alone."""


def _slices() -> dict[str, Slice]:
    found = []
    for name in ("v5e", "v6e"):
        for chips, shape in _FLAT.items():
            hosts = 1 if chips <= _CHIPS_A_FLAT_HOST else chips // _CHIPS_A_HOST
            found.append(Slice(f"{name}-{chips}", CHIPS[name], chips, hosts, f"{name}:{shape}"))
    for name, devices_a_chip in (("v4", 1), ("v5p", 1), ("tpu7x", 2)):
        for chips, shape in _CUBES.items():  # their names count cores, of which a chip has two
            devices, hosts = chips * devices_a_chip, chips // _CHIPS_A_HOST
            found.append(Slice(f"{name}-{2 * chips}", CHIPS[name], devices, hosts, f"{name}:{shape}"))
    gpus = (chip for chip in CHIPS.values() if chip.platform == "gpu")
    found += [Slice(f"{chip.name}-{count}", chip, count, 1, f"1x1x{count}") for chip in gpus for count in _GPUS]
    return {one.name: one for one in found}


SLICES: Final[Mapping[str, Slice]] = _slices()


def find_slice(name: str) -> Slice:
    """The slice that --topology names: v5litepod-8 and 8xH200 mean v5e-8 and h200-8, H100 means h100-1, and
    A100-80GB a100-80-1.

    Raises:
        ConfigError: there is none of this name.
    """
    wanted = re.sub(r"[\s_]+", "-", name.strip().lower()).removeprefix("nvidia-").replace("v5litepod", "v5e")
    wanted = re.sub(r"^(\d+)-?x-?([a-z].*)$", r"\2-\1", wanted)
    wanted = re.sub(r"-(?:sxm\d?|pcie|nvl)(?=-|$)", "", re.sub(r"(?<=\d)gb(?=-|$)", "", wanted))
    wanted = _ONE_MEMORY.sub(lambda found: found[0].split("-")[0], wanted)
    if wanted in CHIPS:
        wanted = f"{wanted}-1"
    if wanted not in SLICES:
        prefix = wanted.split("-")[0]
        known = [one for one in SLICES if one.startswith(f"{prefix}-")] or [f"{chip}-…" for chip in CHIPS]
        raise ConfigError(f"unknown --topology {name}; known: {', '.join(known)}")
    return SLICES[wanted]
