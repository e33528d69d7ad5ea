"""One folder of compiled XLA programs for the engines of all workers, the servers that they start, and later runs.

jax names each program by what is compiled, by its version and by XLA's flags: a program that changes is compiled anew.
Tests that count compilations use a folder of their own. Only engines keep programs there, not whatever else tests
compile: on a CPU, XLA cannot export a program that it has read from a cache, so tests of exported programs would fail.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

_OPTIONS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


def folder() -> Path:
    """PALLADIO_TESTS_CACHE, or one in XDG_CACHE_HOME or ~/.cache. One a version of jax and kind of processor."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(os.environ.get("PALLADIO_TESTS_CACHE") or home / "palladio-tests")
    return root / f"jax-{importlib.metadata.version('jax')}-{_processor()}"


def native_folder() -> Path:
    """Return the folder of engines' own C++, which takes 10 s of CPU time to compile."""
    return folder() / "xla" / "native"


@contextlib.contextmanager
def options_kept() -> Iterator[None]:
    """Meanwhile jax's persistent cache may be set up in any way."""
    before = {name: jax.config.values[name] for name in _OPTIONS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def _processor() -> str:
    """Names what machine code may use: programs of another processor would end with an illegal instruction."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return hashlib.sha256(features.encode()).hexdigest()[:8]
