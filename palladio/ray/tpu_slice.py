"""TpuSlice: the hosts and chips of a TPU slice as Ray counts them, and the bundles that reserve one."""

import dataclasses
import math
from typing import Final, Self

from palladio.runtime.interface.errors import ConfigError

CORES_PER_CHIP: Final = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1, "v7x": 2}  # as slices are named
_ALIASES: Final = {"v5e": "v5litepod", "tpu7x": "v7x", "v7": "v7x"}
_SMALL_HOSTS: Final = frozenset({"v5litepod", "v6e"})  # whose hosts may have 1, 4 or 8 chips
_ONE_HOST: Final = frozenset({"1x1", "2x2", "2x4"})  # their topologies that are one host
_CHIPS: Final = 4  # of any other host

Bundle = dict[str, float]


@dataclasses.dataclass(frozen=True)
class TpuSlice:
    """
    Attributes:
        generation: as Ray's nodes name it: v6e, v5litepod, v5p, v4, …
        topology: chips along each axis, such as 4x4 or 2x2x4.
    """

    generation: str
    topology: str

    @classmethod
    def of(cls, generation: str, topology: str) -> Self:
        """
        Raises:
            ConfigError: there is no such generation, or the topology cannot be read.
        """
        name = generation.strip().lower().removeprefix("tpu-")
        name = _ALIASES.get(name, name)
        if name not in CORES_PER_CHIP:
            raise ConfigError(f"tpu must be one of {', '.join((*CORES_PER_CHIP, *_ALIASES))}, got {generation!r}")
        sizes = topology.strip().lower().split("x")
        if not 2 <= len(sizes) <= 3 or not all(size.isascii() and size.isdecimal() and int(size) for size in sizes):
            raise ConfigError(f"tpu_topology must be chips along each axis, such as 4x4 or 2x2x4, got {topology!r}")
        found = cls(name, "x".join(sizes))
        if found.num_chips > found.chips_per_host and found.num_chips % found.chips_per_host:
            raise ConfigError(f"tpu_topology {topology!r} is no whole number of hosts of {found.chips_per_host} chips")
        return found

    @property
    def num_chips(self) -> int:
        return math.prod(int(size) for size in self.topology.split("x"))

    @property
    def chips_per_host(self) -> int:
        if self.generation in _SMALL_HOSTS and self.topology in _ONE_HOST:
            return self.num_chips
        return _CHIPS

    @property
    def num_hosts(self) -> int:
        return max(1, self.num_chips // self.chips_per_host)

    @property
    def pod_type(self) -> str:
        """As Ray names it: v4 and v5p count cores, v5litepod and v6e chips."""
        return f"{self.generation}-{self.num_chips * CORES_PER_CHIP[self.generation]}"

    @property
    def _chips(self) -> float:
        return float(min(self.num_chips, self.chips_per_host))

    def first_bundle(self, num_cpus: float) -> Bundle:
        """Return the bundle of the replica, on host 0. In a slice of several hosts it takes the only head, so no other
        replica gets the other hosts meanwhile."""
        head: Bundle = {f"TPU-{self.pod_type}-head": 1.0} if self.num_hosts > 1 else {}
        return {"CPU": num_cpus, "TPU": self._chips, **head}

    def other_bundles(self) -> list[Bundle]:
        """Return a bundle for each other host, to reserve once the slice of the first one is known."""
        return [{"CPU": 1.0, "TPU": self._chips} for _ in range(self.num_hosts - 1)]
