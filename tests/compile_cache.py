"""One folder of compiled XLA programs for all workers of a run, the servers that they start, and later runs.

jax names each program by what is compiled, by its version and by XLA's flags: a program that changes is compiled anew.
Tests that count compilations use a folder of their own.
"""

import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

_MIN_COMPILE_SECONDS = "0.03"  # to read a program back takes a few milliseconds


def folder() -> Path:
    """PALLADIO_TESTS_CACHE, or one in XDG_CACHE_HOME or ~/.cache. One a version of jax and kind of processor."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(os.environ.get("PALLADIO_TESTS_CACHE") or home / "palladio-tests")
    return root / f"jax-{importlib.metadata.version('jax')}-{_processor()}"


def use() -> None:
    """This process, and those that it starts, keep there what they compile. Call it before jax is imported."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", _MIN_COMPILE_SECONDS)


def _processor() -> str:
    """Names what machine code may use: programs of another processor would end with an illegal instruction."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return hashlib.sha256(features.encode()).hexdigest()[:8]
