"""A device that another process has: how jax says so, and which process it is, where /proc shows it."""

import contextlib
import dataclasses
import errno
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from palladio.runtime.devices.accelerators import Machine

LOCK_FILE: Final = "/tmp/libtpu_lockfile"  # libtpu holds a lock on it for as long as its process lives

_PROC: Final = Path("/proc")
_OPENED = re.compile(r"open\((/[^)\s]+)\): Device or resource busy")
_TPU_IN_USE = re.compile(r"(?:TPU|libtpu\S*)(?: is)? already in use(?: by process with pid (\d+))?", re.I)
_LOCKED = re.compile(r"libtpu multi-process lockfile|rm /tmp/libtpu_lockfile", re.I)
_GPU_TAKEN = re.compile(
    r"CUDA_ERROR_OUT_OF_MEMORY|CUDA_ERROR_DEVICE_UNAVAILABLE|busy or unavailable|RESOURCE_EXHAUSTED", re.I
)
_NO_GPU = re.compile(r"no supported devices found for platform CUDA", re.I)  # also where one has no memory left
_MAX_SHOWN = 3  # processes


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Attributes:
    pid, command: of a process. file: of a device, which it has open.
    """

    pid: int
    command: str
    file: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) has {self.file} open"


@dataclasses.dataclass(frozen=True, slots=True)
class TakenDevice:
    """Attributes:
    label: what it is, for a sentence.
    files: of the device; who has it, has one of them open.
    says: jax's own words, in one line; "": jax was not asked.
    pid: of the process that jax names; None: it names none.
    """

    label: str
    files: tuple[str, ...]
    says: str = ""
    pid: int | None = None

    @classmethod
    def of(cls, says: str, machine: Machine) -> Self | None:
        """What jax's words about a backend that did not start mean; None: something else than a taken device.

        Args:
            says: in one line.
        """
        opened = _OPENED.search(says)
        if opened is not None:
            return cls("TPU", (opened[1],), says)
        in_use = _TPU_IN_USE.search(says)
        if in_use is not None or _LOCKED.search(says) is not None:
            pid = int(in_use[1]) if in_use is not None and in_use[1] else None
            return cls("TPU", (*machine.files.get("tpu", ()), LOCK_FILE), says, pid)
        if "cuda" not in says.lower() and "gpu" not in says.lower():
            return None
        gpu = cls("GPU", machine.files.get("cuda", ()), says)
        is_taken = _GPU_TAKEN.search(says) is not None or (_NO_GPU.search(says) is not None and gpu.holders())
        return gpu if is_taken else None

    @classmethod
    def seen(cls, machine: Machine) -> Self | None:
        """A TPU of which every chip is taken, found without jax: libtpu may not look again after it has failed."""
        files = tuple(file for file in machine.files.get("tpu", ()) if "/vfio/" in file)
        return cls("TPU", files) if files and all(map(_is_busy, files)) else None

    @classmethod
    def shared_gpu(cls, machine: Machine, numbers: Collection[int]) -> Self | None:
        """Return a GPU that another process has open as well, and so may hold memory of; None: /proc shows none.

        Args:
            numbers: of the GPUs that the engine uses, as in /dev/nvidia0.
        """
        names = {f"nvidia{number}" for number in numbers}
        gpu = cls("GPU", tuple(file for file in machine.files.get("cuda", ()) if Path(file).name in names))
        return gpu if gpu.holders() else None

    @property
    def is_busy(self) -> bool:
        """Whether the system says, without jax, that one of the files is still taken."""
        return any(map(_is_busy, self.files))

    def holders(self, proc: Path = _PROC) -> list[Holder]:
        """The processes that have the device, of those that this one may look into."""
        return find_holders(self.files, proc)

    def describe(self, proc: Path = _PROC) -> str:
        """Who has it, and how to find that out where nothing shows it; without a full stop."""
        holders = self.holders(proc)
        if holders:
            more = f" and {len(holders) - _MAX_SHOWN} more processes" if len(holders) > _MAX_SHOWN else ""
            return f"the {self.label} is taken: {'; '.join(map(str, holders[:_MAX_SHOWN]))}{more}"
        if self.pid is not None:
            return f"the {self.label} is taken: process {self.pid} ({_command(self.pid, proc)}) is using it"
        if self.label == "GPU":
            return (
                "the GPU or its memory is taken, and /proc shows no process that has it open (`nvidia-smi`, as root "
                "and outside of a container, lists them)"
            )
        if LOCK_FILE in self.files:
            return (
                f"the TPU is taken: {LOCK_FILE} is locked or belongs to another user, and /proc shows no process that "
                f"uses the TPU (if `sudo lsof -w {self.files[0]}` shows none either, delete {LOCK_FILE})"
            )
        return (
            f"the {self.label} is taken: {self.files[0]} is busy, and /proc shows no process that has it open (`sudo "
            f"lsof -w {self.files[0]}`, outside of a container, shows it)"
        )


def find_holders(files: Sequence[str], proc: Path = _PROC) -> list[Holder]:
    """The other processes that have one of these files open, by pid, with the first of the files that each has. Without
    those of other users, unless this process may look into all.

    Args:
        proc: where the system shows its processes.
    """
    holders = []
    wanted = frozenset(files)
    for folder in sorted(_numbered(proc), key=lambda folder: int(folder.name)) if wanted else ():
        pid = int(folder.name)
        found = wanted & _open_files(folder / "fd") if pid != os.getpid() else frozenset()
        if found:
            holders.append(Holder(pid, _command(pid, proc), min(found)))
    return holders


def _is_busy(file: str) -> bool:
    """Whether another process has a file that only one can open: a group of vfio. Files of other drivers, whose close
    may reset the chip, are left alone."""
    if "/vfio/" not in file or file in _open_files(_PROC / "self" / "fd"):
        return False
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _numbered(folder: Path) -> Iterable[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.name.isdigit()]
    except OSError:
        return []


def _open_files(folder: Path) -> frozenset[str]:
    """Paths behind the descriptors of a process."""
    paths = set()
    for link in _numbered(folder):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            paths.add(os.readlink(link))
    return frozenset(paths)


def _command(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip() or "?"
    except OSError:
        return "it shows no name"
