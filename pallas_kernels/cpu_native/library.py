"""The library: our own C++ for CPUs, compiled and loaded on the machine that uses it.

Its functions are custom calls of XLA (see calls.py), and so a part of the step's program. It is never needed: without a
C++ compiler XLA's own operations serve, slower (`benchmarks/results/notes/2026-11-23.md`).
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
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import jax

from palladio.pallas_kernels.cpu_native.calls import SYMBOLS, name_of
from palladio.pallas_kernels.cpu_native.forms import FLAGS, Form, forms_of

_HERE: Final = Path(__file__).parent
SOURCES: Final = tuple(sorted(path for kind in ("cc", "h") for path in _HERE.glob(f"*.{kind}")))
COMPILERS: Final = ("c++", "g++", "clang++")
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-pthread", "-w")
# Units that each library is linked of: they are compiled in parallel, the slowest first. Products of
# int8 are one of their own: few models take them, and they take longer than all other products.
_UNITS: Final = {
    "cpu_native": ("multiply.cc", "layer_blocks.cc", "attention.cc", "library.cc"),
    "cpu_native_int8": ("multiply_int8.cc",),
}
_SECONDS: Final = 240  # for the compiler, which takes five
# By name and form; None: the one for this CPU. XLA takes a call's name once a process.
_loaded: dict[tuple[str, Form | None], ctypes.CDLL] = {}


class NativeError(Exception):
    """The library cannot be used; the message says why in a few words."""


def load(folder: Path | None, *, int8: bool = True, form: Form | None = None) -> None:
    """Compile the library, unless the folder has it, and register its calls. Only the first call in a process does the
    work.

    Args:
        folder: folder for compiled libraries; None: this one is not kept.
        int8: with calls for int8 matrices; a later call may add them.
        form: a form that the CPU can run, whose calls have its name; None: the best form, whose calls have the usual
            names.

    Raises:
        NativeError: no compiler, or none that can compile it; the folder is open to other users; or the CPU is too old.
    """
    wanted = _UNITS if int8 else ("cpu_native",)
    names = [name for name in wanted if (name, form) not in _loaded]
    if not names:
        return
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise NativeError(f"it is for x86-64, this is {platform.machine()}")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeError(f"no C++ compiler ({', '.join(COMPILERS)}) is on PATH")
    try:
        able = forms_of(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if not able:
            raise NativeError("this CPU is below x86-64-v3 (AVX2, FMA and BMI2)")
        if folder is None:
            with tempfile.TemporaryDirectory() as temporary:
                _register(_compiled(compiler, Path(temporary), form or able[0], names), form)
        else:
            _register(_compiled(compiler, _private(folder), form or able[0], names), form)
    except OSError as error:
        raise NativeError(str(error)) from error


def _private(folder: Path) -> Path:
    """Make the folder, and refuse one that other users can write to: their code would run as our own."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_mode & 0o022 or found.st_uid not in (os.geteuid(), 0):
        raise NativeError(f"other users can write to {folder}; run `chmod go-w {folder}`")
    return folder


def _compiled(compiler: str, folder: Path, form: Form, names: Iterable[str]) -> dict[str, Path]:
    """Return the libraries in the folder, compiled if missing. A folder that has them may be read-only. If several
    processes start together, one compiles and the others wait."""
    parts = (*(path.read_bytes() for path in SOURCES), jax.__version__, compiler, *_FLAGS, *FLAGS[form], _UNITS)
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    libraries = {name: folder / f"{name}-{form}-{digest}.so" for name in names}
    if all(path.is_file() for path in libraries.values()):
        return libraries
    with (folder / "cpu_native.lock").open("w") as lock:  # the system gives it back, even for a process that is killed
        with contextlib.suppress(OSError):  # a file system without locks: each process compiles one, and renames it
            fcntl.flock(lock, fcntl.LOCK_EX)
        missing = {name: path for name, path in libraries.items() if not path.is_file()}
        if missing:
            _compile([compiler, *_FLAGS, *FLAGS[form]], missing)
    return libraries


def _compile(common: list[str], libraries: Mapping[str, Path]) -> None:
    include = f"-I{jax.ffi.include_dir()}"
    with tempfile.TemporaryDirectory(dir=next(iter(libraries.values())).parent) as folder:
        made = Path(folder) / "library.so"
        objects = {unit: str(Path(folder) / f"{unit}.o") for name in libraries for unit in _UNITS[name]}
        commands = [[*common, include, "-c", str(_HERE / unit), "-o", to] for unit, to in objects.items()]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(_run, commands))
        for name, path in libraries.items():
            _run([*common, "-shared", *(objects[unit] for unit in _UNITS[name]), "-o", str(made)])
            made.chmod(0o700)
            made.replace(path)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NativeError(f"{command[0]} took longer than {_SECONDS} s") from None
    if done.returncode != 0:
        raise NativeError(f"{command[0]} failed: {_first_error(done.stderr)}")


def _first_error(text: str) -> str:
    """Return the first error in a compiler's output: lines before it only say which file includes which."""
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[0])


def _register(libraries: Mapping[str, Path], form: Form | None) -> None:
    for name, path in libraries.items():
        loaded = ctypes.CDLL(str(path))
        if name == "cpu_native":
            for call, symbol in SYMBOLS.items():
                jax.ffi.register_ffi_target(name_of(call, form), jax.ffi.pycapsule(loaded[symbol]), platform="cpu")
        else:
            _loaded["cpu_native", form].PalladioTakeInt8(loaded.PalladioMultiplyInt8)
        _loaded[name, form] = loaded
