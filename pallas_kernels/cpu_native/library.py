"""The library: our own C++ for CPUs, compiled on the machine that uses it, and loaded.

Its functions are custom calls of XLA (see calls.py), and so a part of the step's program. It is never needed: without a
C++ compiler XLA's own operations serve, slower (`benchmarks/results/NOTES.md`).
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import jax

from palladio.pallas_kernels.cpu_native.calls import SYMBOLS

_HERE: Final = Path(__file__).parent
SOURCES: Final = tuple(sorted(path for kind in ("cc", "h", "inc") for path in _HERE.glob(f"*.{kind}")))
COMPILERS: Final = ("c++", "g++", "clang++")
_FLAGS: Final = ("-std=c++17", "-fPIC", "-pthread", "-w")
# Units are compiled side by side, those that take longest first. library.cc asks what the CPU has, so it is compiled
# for any x86-64; its calls are no faster when they are optimized further.
_UNITS: Final = {
    "multiply.cc": ("-O3",),
    "attention.cc": ("-O3", "-march=x86-64-v3"),
    "library.cc": ("-O1",),
    "layer_blocks.cc": ("-O3", "-march=x86-64-v3"),
}
_SECONDS: Final = 240  # for the compiler, which takes ten
_loaded: list[ctypes.CDLL] = []  # XLA takes a call's name once a process


class NativeError(Exception):
    """Why the library cannot be used; the message says it in a few words."""


def load(folder: Path | None) -> None:
    """Makes the calls usable: compiles the library, unless the folder has it, and registers its calls. The first
    time in a process does it.

    Args:
        folder: where compiled libraries are kept; None: this one is not kept.

    Raises:
        NativeError: no compiler, or none that can compile it; the folder is open to other users; or the CPU is too old.
    """
    if _loaded:
        return
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise NativeError(f"it is for x86-64, this is {platform.machine()}")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeError(f"no C++ compiler ({', '.join(COMPILERS)}) is on PATH")
    try:
        if folder is None:
            with tempfile.TemporaryDirectory() as temporary:
                _register(_compiled(compiler, Path(temporary)))
        else:
            _register(_compiled(compiler, _private(folder)))
    except OSError as error:
        raise NativeError(str(error)) from error


def _private(folder: Path) -> Path:
    """Makes the folder. What others may put there would be run as our own code."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_mode & 0o022 or found.st_uid not in (os.geteuid(), 0):
        raise NativeError(f"other users can write to {folder}; run `chmod go-w {folder}`")
    return folder


def _compiled(compiler: str, folder: Path) -> Path:
    """The library in the folder, which may be one that only others can write to. Of processes that start together one
    compiles it, and the others wait."""
    parts = (*(path.read_bytes() for path in SOURCES), jax.__version__, compiler, *_FLAGS, _UNITS)
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    library = folder / f"cpu_native-{digest}.so"
    if library.is_file():
        return library
    with (folder / "cpu_native.lock").open("w") as lock:  # the system gives it back, even for a process that is killed
        with contextlib.suppress(OSError):  # a file system without locks: each process compiles one, and renames it
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            _compile(compiler, library)
    return library


def _compile(compiler: str, library: Path) -> None:
    common = [compiler, *_FLAGS]
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "library.so"
        objects = {unit: str(Path(folder) / f"{unit}.o") for unit in _UNITS}
        include = f"-I{jax.ffi.include_dir()}"
        commands = [
            [*common, *own, include, "-c", str(_HERE / unit), "-o", objects[unit]] for unit, own in _UNITS.items()
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(_run, commands))
        _run([*common, "-shared", *objects.values(), "-o", str(made)])
        made.chmod(0o700)
        made.replace(library)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NativeError(f"{command[0]} took longer than {_SECONDS} s") from None
    if done.returncode != 0:
        raise NativeError(f"{command[0]} failed: {_first_error(done.stderr)}")


def _first_error(text: str) -> str:
    """Of what a compiler printed: lines before it say only which file includes which."""
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[0])


def _register(library: Path) -> None:
    loaded = ctypes.CDLL(str(library))
    if not loaded.PalladioIsSupported():
        raise NativeError("this CPU is below x86-64-v3 (AVX2, FMA and BMI2)")
    for call, symbol in SYMBOLS.items():
        jax.ffi.register_ffi_target(call, jax.ffi.pycapsule(loaded[symbol]), platform="cpu")
    _loaded.append(loaded)
