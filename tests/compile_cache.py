"""One folder of compiled XLA programs for the engines of all workers, the servers that they start, and later runs.

jax names each program by what is compiled, by its version and by XLA's flags: a program that changes is compiled anew.
Tests that count compilations use a folder of their own. Only engines keep programs there, not whatever else tests
compile: on a CPU, XLA cannot export a program that it has read from a cache, so tests of exported programs would fail.
"""

import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path


def folder() -> Path:
    """PALLADIO_TESTS_CACHE, or one in XDG_CACHE_HOME or ~/.cache. One a version of jax and kind of processor."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(os.environ.get("PALLADIO_TESTS_CACHE") or home / "palladio-tests")
    return root / f"jax-{importlib.metadata.version('jax')}-{_processor()}"


def _processor() -> str:
    """Names what machine code may use: programs of another processor would end with an illegal instruction."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return hashlib.sha256(features.encode()).hexdigest()[:8]
