"""Memory of this process: what it holds, and what it has freed but not given back."""

import ctypes
import mmap
import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def resident_bytes() -> int:
    """Bytes of this process in memory now; without /proc, the peak."""
    try:
        return _pages()[1] * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def private_bytes() -> int:
    """Resident bytes that are not of a file: what a process has of libraries grows as it touches them.

    Raises:
        OSError: there is no /proc.
    """
    _, resident, of_files = _pages()
    return (resident - of_files) * resource.getpagesize()


def reserved_bytes() -> int:
    """Bytes of address space.

    Raises:
        OSError: there is no /proc.
    """
    return _pages()[0] * resource.getpagesize()


def give_back() -> None:
    """Gives freed memory back to the system; where the C library cannot (it is not glibc), nothing happens."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:
            return


def leave_zeros(address: int, num_bytes: int) -> None:
    """Makes memory that holds zeros cost nothing until something is written there: the system takes the pages, and
    gives others, of zeros, when they are touched. Where it cannot (no Linux, locked memory), nothing happens.

    Args:
        address: of private memory of this process, not of a file.
    """
    if sys.platform != "linux":
        return
    page = resource.getpagesize()
    begin = -(-address // page) * page
    whole = (address + num_bytes) // page * page - begin
    if whole > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(whole), mmap.MADV_DONTNEED)


def _pages() -> tuple[int, int, int]:
    """Reserved ones, resident ones, and of these, those of files."""
    reserved, resident, of_files, *_ = _STATM.read_bytes().split()
    return int(reserved), int(resident), int(of_files)
