"""How many KV pages fit: device bytes to pages."""

import dataclasses
import os

import jax

from palladio.runtime.errors import ConfigError

DEFAULT_FRACTION = {"cpu": 0.5}  # there the "device memory" is the host's, which others use too
DEFAULT_FRACTION_ACCELERATOR = 0.85


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Attributes:
    total: bytes of the device. available: bytes free now.
    """

    total: int
    available: int

    @classmethod
    def of(cls, device: jax.Device) -> "DeviceMemory":
        stats = device.memory_stats() if device.platform != "cpu" else None
        if stats is not None:
            return cls(stats["bytes_limit"], stats["bytes_limit"] - stats["bytes_in_use"])
        page = os.sysconf("SC_PAGE_SIZE")
        return cls(os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page)


def default_fraction(platform: str) -> float:
    return DEFAULT_FRACTION.get(platform, DEFAULT_FRACTION_ACCELERATOR)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolRequest:
    """What the KV pool should be.

    Attributes:
        bytes_per_page: of all layers together.
        page_size: tokens per page.
        wanted_tokens: --max-total-tokens; None: as many as fit.
        useful_tokens: more than this is never, or hardly ever, used at once.
        weight_bytes: already on the device.
        fraction: --mem-fraction-static.
    """

    bytes_per_page: int
    page_size: int
    wanted_tokens: int | None
    useful_tokens: int
    weight_bytes: int
    fraction: float


def plan_pages(memory: DeviceMemory, pool: PoolRequest) -> int:
    """Pages to allocate, the scratch page included.

    Raises:
        ConfigError: not even one page fits, or fewer than --max-total-tokens asks for; says what would fit.
    """
    budget = min(int(memory.total * pool.fraction) - pool.weight_bytes, memory.available)
    fitting = max(0, budget // pool.bytes_per_page - 1) * pool.page_size
    if pool.wanted_tokens is not None:
        wanted = -(-pool.wanted_tokens // pool.page_size)
        if wanted * pool.bytes_per_page > memory.available:
            raise ConfigError(
                f"--max-total-tokens {pool.wanted_tokens} needs {_gib(wanted * pool.bytes_per_page)} of KV cache, but "
                f"{_gib(memory.available)} are free; --max-total-tokens {max(fitting, 0)} would fit"
            )
        return wanted + 1
    if fitting == 0:
        raise ConfigError(
            f"no memory is left for the KV cache: the weights take {_gib(pool.weight_bytes)} of "
            f"{_gib(memory.total)} × --mem-fraction-static {pool.fraction:g}; raise --mem-fraction-static"
        )
    useful = -(-pool.useful_tokens // pool.page_size)
    return min(fitting // pool.page_size, useful) + 1


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
