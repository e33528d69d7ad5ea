"""Memory of this process: what it holds, and what it has freed but not given back."""

import ctypes
import resource
import sys


def bytes_held() -> int:
    """What is resident of this process and not of a file: what a process has of libraries grows as it touches them."""
    _, resident, of_files = _pages()
    return (resident - of_files) * resource.getpagesize()


def bytes_reserved() -> int:
    """Of address space."""
    return _pages()[0] * resource.getpagesize()


def give_back() -> None:
    """Gives freed memory back to the system; where the C library cannot (it is not glibc), nothing happens."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:
            return


def _pages() -> tuple[int, int, int]:
    """Reserved ones, resident ones, and of these, those of files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        reserved, resident, of_files, *_ = file.read().split()
    return int(reserved), int(resident), int(of_files)
