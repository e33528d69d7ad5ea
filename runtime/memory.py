"""How many KV pages fit: device bytes to pages."""

import dataclasses
import os
from pathlib import Path

import jax

from palladio.runtime.errors import ConfigError

DEFAULT_FRACTION = {"cpu": 0.5}  # there the "device memory" is the host's, which others use too
DEFAULT_FRACTION_ACCELERATOR = 0.85
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


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
        return _host_memory()


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


def _host_memory() -> DeviceMemory:
    """Of this machine, or of the container that it runs in, whichever is smaller.

    Not SC_AVPHYS_PAGES: that leaves out the page cache, which a checkpoint just read from disk has filled.
    """
    info = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines())
    if "MemAvailable" not in info:  # not Linux
        page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
        return DeviceMemory(page * pages, page * pages // 2)
    total, available = (int(info[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    for limit_file, usage_file in _CGROUP_FILES:
        limit, usage = _read(limit_file).strip(), _read(usage_file).strip()
        if limit.isdigit() and usage.isdigit():  # v2 says "max" for no limit, v1 a number larger than any memory
            total = min(total, int(limit))
            available = min(available, max(int(limit) - int(usage), 0))
    return DeviceMemory(total, available)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
