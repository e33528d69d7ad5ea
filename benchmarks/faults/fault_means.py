"""How faults.py does harm: a disk that fills at once, and a thread that goes no further."""

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

DISK_BYTES = 4 * 2**20


class NotHereError(Exception):
    """This machine does not allow the fault."""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of DISK_BYTES.

    Raises:
        NotHereError: this user may not mount one.
    """
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "palladio-faults", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotHereError(f"no small disk can be mounted: {error}") from error
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=20)


def halt_thread(pid: int) -> None:
    """Halts the main thread of a process, and no other one, until the process ends.

    Raises:
        NotHereError: this user may not trace it.
    """
    begun = threading.Event()
    errors: list[int] = []

    def hold() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        libc.ptrace.restype = ctypes.c_long
        seize, interrupt, wait_all = 0x4206, 0x4207, 0x40000000
        if libc.ptrace(seize, pid, None, None) or libc.ptrace(interrupt, pid, None, None):
            errors.append(ctypes.get_errno())
        begun.set()
        with contextlib.suppress(ChildProcessError):  # it must be waited for, or its parent never sees its end
            while not errors and os.WIFSTOPPED(os.waitpid(pid, wait_all)[1]):
                pass

    threading.Thread(target=hold, daemon=True).start()
    begun.wait()
    if errors:
        raise NotHereError(f"the engine cannot be traced: {os.strerror(errors[0])}")
