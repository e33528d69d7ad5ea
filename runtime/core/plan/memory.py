"""Who gets the device's memory: weights, KV cache, the sampler's state, and the programs' workspace, in bytes."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import jax

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_stats import MemoryReport

# What a plan may give away, where --mem-fraction-static does not say. The rest of an accelerator is left to its
# runtime and to fragmentation: all that the programs need is in the plan.
AUTO_FRACTION = {"cpu": 0.5}  # there the "device memory" is the host's, which others use too
AUTO_FRACTION_ACCELERATOR = 0.92
UNKNOWN = 2**62  # bytes of a device that does not say
TIGHT = 0.7  # share of the usable memory from which on it matters how much the programs need
_FINE_BITS = 6  # of a pool's size; the others are 0
_WORKSPACE = "  of compiled programs: temporary buffers, results, code"
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


def bytes_in_use(device: jax.Device) -> int | None:
    """Bytes in use on an accelerator, as its runtime reports them.

    None: the runtime does not report them, or the device is a CPU, whose memory other programs use as well.
    """
    stats = device.memory_stats() if device.platform != "cpu" else None
    return None if stats is None else stats.get("bytes_in_use")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryNeeds:
    """What has to share a device.

    Attributes:
        platform: of the device, as jax names it.
        num_ranks: data-parallel ranks, each with a KV cache of its own (--dp-size).
        weights, state: bytes. layer_states: bytes of states that layers keep for each slot. snapshots: of
            `num_snapshots` copies of a slot's.
        bytes_per_page: of KV cache, of one page number; 0: of an encoder, which has none. page_size: tokens per page.
        num_tables: page numbers that these tokens take, if every block table keeps them.
        wanted_tokens: --max-total-tokens, of all ranks together; None: as many as fit.
        useful_tokens: more than this in a rank is never, or hardly ever, used at once.
        fraction: --mem-fraction-static, for weights and KV cache; None: not given.
    """

    platform: str
    weights: int
    state: int
    bytes_per_page: int
    page_size: int
    wanted_tokens: int | None
    useful_tokens: int
    fraction: float | None
    num_ranks: int = 1
    num_tables: int = 1
    layer_states: int = 0
    snapshots: int = 0
    num_snapshots: int = 0

    @property
    def least_cache(self) -> int:
        """Bytes of a pool in which something fits, its scratch page included."""
        return (1 + self.num_tables) * self.bytes_per_page

    def pages_of(self, num_tokens: int) -> int:
        """Page numbers for `num_tokens` tokens, if every block table keeps them."""
        return self.num_tables * -(-num_tokens // self.page_size)

    def fitting_pages(self, num_bytes: int) -> int:
        """Page numbers that fit into this memory, the scratch page left out. Pages of an encoder hold nothing."""
        if not self.bytes_per_page:
            return self.pages_of(self.useful_tokens) if num_bytes >= 0 else 0
        return max(0, num_bytes // self.bytes_per_page - 1)

    def tokens_of(self, num_pages: int) -> int:
        """Tokens that `num_pages` page numbers hold, if every block table keeps them."""
        return num_pages // self.num_tables * self.page_size


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Attributes:
    num_pages: of each rank's KV cache, the scratch page included.
    page_size: tokens per page.
    report: the table.
    num_ranks: data-parallel ranks.
    num_tables: pages that the same tokens take, if every block table keeps them.
    num_snapshots: of states, of each rank.
    """

    num_pages: int
    page_size: int
    report: MemoryReport
    num_ranks: int = 1
    num_tables: int = 1
    num_snapshots: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of each rank's cache, if every block table keeps them."""
        return (self.num_pages - 1) // self.num_tables * self.page_size

    def with_pages(self, num_pages: int) -> "MemoryPlan":
        """The same with fewer pages."""
        size = self.report.kv_cache // self.num_pages
        report = dataclasses.replace(self.report, kv_cache=num_pages * size)
        return dataclasses.replace(self, num_pages=num_pages, report=report)

    @property
    def total_tokens(self) -> int:
        """Tokens of all ranks' caches together."""
        return self.num_ranks * self.num_tokens

    @property
    def is_tight(self) -> bool:
        return self.report.planned > TIGHT * self.report.usable

    def table(self) -> list[str]:
        """Lines for the log."""
        report = self.report
        pool = f"  {self.num_tokens:,} tokens in pages of {self.page_size}"
        if self.num_tables > 1:
            pool += " (more of long requests: layers with a window keep the newest)"
        if self.num_ranks > 1:
            pool += f", for each of {self.num_ranks} data-parallel ranks"
        states = "  of layers that keep one for each request; fewer with --max-running-requests"
        copies = f"  {self.num_snapshots} of states, for the prefix cache; --state-snapshot-bytes"
        rows = (
            ("weights", report.weights, ""),
            *([("KV cache", report.kv_cache, pool)] if report.kv_cache else []),
            *([("states", report.layer_states, states)] if report.layer_states else []),
            *([("snapshots", report.snapshots, copies)] if report.snapshots else []),
            ("state", report.state, "  sampler state and block tables"),
            ("workspace", report.workspace, _WORKSPACE if report.workspace else "  not measured yet"),
            ("unused", max(0, report.usable - report.planned), ""),
            ("reserved", report.total - report.usable, "  for the runtime and other processes"),
        )
        is_known = report.total != UNKNOWN
        head = f"Memory plan: {_size(report.total) if is_known else 'unknown size'} per device"
        shown = rows if is_known else rows[:-2]
        return [head, *(f"  {name:<10}{_size(num_bytes):>12}{note}" for name, num_bytes, note in shown)]


def device_memory(devices: Sequence[jax.Device], needs: MemoryNeeds) -> DeviceMemory:
    """The memory of the fullest of the devices, before anything of the model is on them. CPU devices share the host's.

    Raises:
        ConfigError: the device does not report its memory, and the pool is to take all that is free.
    """
    device = devices[0]
    if device.platform == "cpu":
        host = DeviceMemory.of(device)
        return DeviceMemory(host.total // len(devices), host.available // len(devices))
    if device.memory_stats() is not None:
        found = [DeviceMemory.of(each) for each in devices]
        return DeviceMemory(min(one.total for one in found), min(one.available for one in found))
    if needs.wanted_tokens is None:
        raise ConfigError(
            f"{device.device_kind} does not report its memory size (XLA_PYTHON_CLIENT_ALLOCATOR=platform hides it); "
            "set --max-total-tokens"
        )
    return DeviceMemory(UNKNOWN, UNKNOWN)


def plan_memory(memory: DeviceMemory, needs: MemoryNeeds, workspace: int) -> MemoryPlan:
    """Divides a device's memory.

    Args:
        memory: before anything of the model is on the device.
        workspace: bytes that the programs need in addition to their arguments; 0: not known yet.

    Raises:
        ConfigError: it does not fit; the message says which flag, and the value that would fit.
    """
    fixed = needs.state + needs.layer_states + needs.snapshots + workspace
    usable = _usable(memory, needs)
    if needs.fraction is None and needs.wanted_tokens is None:
        budget = usable - fixed - needs.weights
    else:
        budget = min(int(memory.total * (needs.fraction or 1.0)), usable - fixed) - needs.weights
        _check_fraction(memory, needs, needs.fraction or 1.0, fixed)
    fitting = needs.fitting_pages(budget)
    useful = needs.pages_of(needs.useful_tokens)
    if needs.wanted_tokens is not None:
        pages = needs.pages_of(-(-needs.wanted_tokens // needs.num_ranks))
        room = memory.available - fixed - needs.weights
        if (pages + 1) * needs.bytes_per_page > room:
            fitting = needs.fitting_pages(min(room, budget))
            raise ConfigError(
                f"--max-total-tokens {needs.wanted_tokens} needs {_size(pages * needs.bytes_per_page)} of KV cache, "
                f"but {_size(max(0, room))} is left after {_size(needs.weights)} of weights and {_size(fixed)} for "
                f"the programs; --max-total-tokens {needs.tokens_of(fitting) * needs.num_ranks} would fit"
            )
    elif fitting < needs.num_tables:
        raise ConfigError(_no_room(memory, needs, fixed))
    else:
        pages = useful if useful <= fitting else round_down(fitting)
    report = MemoryReport(
        total=memory.total,
        usable=usable,
        weights=needs.weights,
        kv_cache=(pages + 1) * needs.bytes_per_page,
        state=needs.state,
        workspace=workspace,
        layer_states=needs.layer_states,
        snapshots=needs.snapshots,
    )
    num_pages, divided = pages + 1, (needs.num_ranks, needs.num_tables, needs.num_snapshots)
    return MemoryPlan(num_pages, needs.page_size, report, *divided)


def room_for_cache(memory: DeviceMemory, needs: MemoryNeeds) -> int:
    """Bytes that are left for pages, states and snapshots, before anything is known of the programs' workspace.

    Args:
        needs: what it says of these does not matter.
    """
    room = min(_usable(memory, needs), int(memory.total * (needs.fraction or 1.0)))
    return max(0, room - needs.weights - needs.state)


def _usable(memory: DeviceMemory, needs: MemoryNeeds) -> int:
    """Bytes that the plan may give away."""
    if needs.fraction is not None or needs.wanted_tokens is not None:
        return memory.available
    share = AUTO_FRACTION.get(needs.platform, AUTO_FRACTION_ACCELERATOR)
    return min(int(memory.total * share), memory.available)


def _check_fraction(memory: DeviceMemory, needs: MemoryNeeds, fraction: float, fixed: int) -> None:
    """An explicit fraction must leave the programs what they need, if the pool is to take all of it."""
    static = int(memory.total * fraction)
    useful = needs.weights + needs.num_tables * (needs.useful_tokens // needs.page_size) * needs.bytes_per_page
    fits = max(0, int(100 * (memory.available - fixed) / memory.total)) / 100
    if int(memory.total * fits) < needs.weights + needs.least_cache:
        return  # none does: the pool has no room, and that is what will be said
    if needs.wanted_tokens is None and min(static, useful) + fixed > memory.available:
        raise ConfigError(
            f"--mem-fraction-static {fraction:g} leaves too little for the programs, which need {_size(fixed)} of "
            f"the {_size(memory.available)} free; --mem-fraction-static {fits:g} would fit"
        )


def _no_room(memory: DeviceMemory, needs: MemoryNeeds, fixed: int) -> str:
    states = needs.layer_states + needs.snapshots
    taken = f"and the programs {_size(fixed)}"
    if states:
        less = "--max-running-requests" + (" and --state-snapshot-bytes" if needs.snapshots else "")
        taken = f"states of layers {_size(states)} (fewer with {less}) and the programs "
        taken += _size(fixed - states)
    purpose = "the KV cache" if needs.bytes_per_page else "a step"
    message = (
        f"no memory is left for {purpose}: the weights take {_size(needs.weights)}{',' if states else ''} {taken} "
        f"of {_size(memory.total)}"
    )
    needed = needs.weights + fixed + needs.least_cache
    if needed > memory.available:
        free = f"of which {_size(memory.available)} is free"
        return f"{message}, {free}; use a smaller model or --dtype, or a larger --tp-size"
    share = needs.weights + needs.least_cache  # of the flag, which leaves the programs out
    least = min(100, -(-100 * share // memory.total)) / 100
    given = "" if needs.fraction is None else f" {needs.fraction:g}"
    return f"{message} × --mem-fraction-static{given}; --mem-fraction-static {least:g} or more would fit"


def round_down(count: int, bits: int = _FINE_BITS) -> int:
    """Fewer significant bits, by default at most 3 % less: programs are compiled for a pool's size, and the memory that
    is free differs a little from start to start."""
    shift = max(0, count.bit_length() - bits)
    return count >> shift << shift


def _host_memory() -> DeviceMemory:
    """The memory of this machine, or of its container, whichever is smaller.

    Not SC_AVPHYS_PAGES, nor a container's bare usage: they count the page cache as used, which a checkpoint just read
    from disk has filled.
    """
    info = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines())
    if "MemAvailable" not in info:  # not Linux
        page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
        return DeviceMemory(page * pages, page * pages // 2)
    total, available = (int(info[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    for limit_file, usage_file in _CGROUP_FILES:
        limit, usage = _read(limit_file).strip(), _read(usage_file).strip()
        if limit.isdigit() and usage.isdigit():  # v2 says "max" for no limit, v1 a number larger than any memory
            used = int(usage) - _cached_bytes(Path(usage_file).with_name("memory.stat"))
            total = min(total, int(limit))
            available = min(available, max(int(limit) - used, 0))
    return DeviceMemory(total, available)


def _cached_bytes(stat_file: Path) -> int:
    """Bytes of a container's usage that are files in the page cache, which make way for other memory."""
    lines = (line.split() for line in _read(stat_file).splitlines())
    counts = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
