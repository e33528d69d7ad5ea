"""The library of our own C++: how it is compiled and kept, for which CPUs, and when XLA's operations serve instead."""

import dataclasses
import errno
import fcntl
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest

from palladio.pallas_kernels.cpu_native import library
from palladio.pallas_kernels.cpu_native.forms import FLAGS, Form, forms_of
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.kernel_choice import with_native_kernels
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.errors import ConfigError
from tests import compile_cache
from tests.native_forms import load_every_form, needs_compiler


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder."""
    load_every_form()
    return compile_cache.native_folder()


@needs_compiler
def test_a_compiled_library_is_kept(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.stat() for path in built.iterdir()}
    libraries = [found for name, found in before.items() if name.endswith(".so")]
    assert libraries
    assert all(found.st_mode & 0o077 == 0 for found in libraries)
    monkeypatch.setattr(subprocess, "run", None)  # nothing is compiled
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, handler, platform: None)
    library.load(built)
    assert {path.name: path.stat() for path in built.iterdir()} == before


def fake_compiler(path: Path) -> str:
    path.write_text('#!/bin/sh\nfor last; do :; done\necho made > "$last"\n')
    path.chmod(0o700)
    return str(path)


def compiled(compiler: str, folder: Path) -> Path:
    return library._compiled(compiler, folder, "avx2", ["cpu_native"])["cpu_native"]


def test_no_lock_is_taken_for_a_library_that_is_there(tmp_path: Path) -> None:
    """Its folder may be root's, or in a layer of an image: no file can be made there."""
    compiler, folder = fake_compiler(tmp_path / "c++"), library._private(tmp_path / "native")
    made = compiled(compiler, folder)
    (folder / "cpu_native.lock").unlink()
    assert compiled(compiler, folder) == made
    assert list(folder.iterdir()) == [made]


def test_where_files_cannot_be_locked_the_library_is_compiled_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    made = compiled(fake_compiler(tmp_path / "c++"), library._private(tmp_path / "native"))
    assert made.read_text() == "made\n"


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    log, compiler, folder = tmp_path / "log", tmp_path / "c++", library._private(tmp_path / "native")
    compiler.write_text(f'#!/bin/sh\necho compiled >> {log}\nsleep 0.2\nfor last; do :; done\necho made > "$last"\n')
    compiler.chmod(0o700)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: library._compiled(str(compiler), folder, "avx2", library._UNITS), range(4)))
    steps = sum(len(units) + 1 for units in library._UNITS.values())  # units are compiled, and then linked
    assert log.read_text() == "compiled\n" * steps
    assert all(each == made[0] for each in made)
    assert [path.read_text() for path in made[0].values()] == ["made\n"] * len(library._UNITS)
    assert {path.suffix for path in folder.iterdir()} == {".so", ".lock"}


def test_without_a_compiler_xlas_products_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    target, folder = Target("cpu", "avx2"), str(tmp_path)

    def chosen(cpu_kernels: str) -> Target:
        config = ExecutionConfig(cpu_kernels=cpu_kernels, compilation_cache_dir=folder)  # type: ignore[arg-type]
        return with_native_kernels(config, target)

    assert chosen("auto") == chosen("xla") == target
    message = r"--cpu-kernels native: no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\) is on PATH; use --cpu-kernels auto"
    with pytest.raises(ConfigError, match=message):
        chosen("native")
    for kind in ("avx2", "avx512", "avx512_bf16", "amx_bf16"):
        assert NarrowProducts.of(Target("cpu", kind)).native_rows == 0
        assert NarrowProducts.of(Target("cpu", kind)).native_int8_rows == 0
        assert NarrowProducts.of(Target("cpu", kind, is_native=True)).native_rows >= 1
        assert NarrowProducts.of(Target("cpu", kind, is_native=True)).native_int8_rows == 0
        assert NarrowProducts.of(Target("cpu", kind, is_native=True, has_native_int8=True)).native_int8_rows >= 1


def test_on_an_older_cpu_xlas_products_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call would end the process there."""
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(library, "forms_of", lambda info: ())
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/c++")
    config, target = ExecutionConfig(cpu_kernels="auto", compilation_cache_dir=str(tmp_path)), Target("cpu", "avx2")
    assert with_native_kernels(config, target) == target
    with pytest.raises(ConfigError, match=r"--cpu-kernels native: this CPU is below x86-64-v3 .* --cpu-kernels auto"):
        with_native_kernels(dataclasses.replace(config, cpu_kernels="native"), target)


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/c++")
    tmp_path.chmod(0o777)
    with pytest.raises(library.NativeError, match=f"other users can write to {tmp_path}; run `chmod go-w"):
        library.load(tmp_path)


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", {})
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'In file included from x' >&2\necho 'error: no such header' >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setattr(shutil, "which", lambda name: str(compiler))
    with pytest.raises(library.NativeError, match=r"c\+\+ failed: error: no such header"):
        library.load(tmp_path / "native")
    assert [path.suffix for path in (tmp_path / "native").iterdir()] == [".lock"]


@needs_compiler
@pytest.mark.parametrize(
    "unit",
    [
        unit if unit in ("multiply_int8.cc", "row_argmax.cc") else pytest.param(unit, marks=pytest.mark.slow)
        for unit in sorted({unit for units in library._UNITS.values() for unit in units})
    ],
)
def test_the_form_that_no_other_test_loads_compiles(unit: str) -> None:
    """AVX-512 without VNNI: its kernels are those of other forms."""
    compiler = next(filter(None, map(shutil.which, library.COMPILERS)))
    source = str(library._HERE / unit)
    flags = [*library._FLAGS, *FLAGS["avx512"], f"-I{jax.ffi.include_dir()}", "-fsyntax-only"]
    done = subprocess.run([compiler, *flags, source], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


V3 = "fma avx2 bmi1 bmi2 f16c movbe abm"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "vendor", "forms"),
    [
        ("sse2 avx avx2", "GenuineIntel", ()),
        (V3, "AuthenticAMD", ("avx2",)),
        (V4, "GenuineIntel", ("avx512", "avx2")),
        (f"{V4} avx512_vnni", "GenuineIntel", ("avx512_vnni", "avx512", "avx2")),
        (f"{V4} avx512_vnni avx512_bf16", "AuthenticAMD", ("avx512_bf16", "avx512_vnni", "avx512", "avx2")),
        (f"{V4} avx512_vnni avx512_bf16", "GenuineIntel", ("avx512_vnni", "avx512_bf16", "avx512", "avx2")),
    ],
)
def test_the_form_follows_from_the_cpu(flags: str, vendor: str, forms: tuple[Form, ...]) -> None:
    """What it does not have would end the process."""
    assert forms_of(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n") == forms
    assert forms_of("") == ()
    assert set(FLAGS) == {"avx2", "avx512", "avx512_vnni", "avx512_bf16"}


ALONE = """
import sys
from pathlib import Path
import jax.numpy as jnp
from palladio.pallas_kernels.cpu_native import calls, library
folder = Path(sys.argv[1])
library.load(folder, int8=False)
rows = jnp.ones((1, 64), jnp.float32)
print(float(calls.rows_times_bfloat16(rows, jnp.ones((2, 64), jnp.bfloat16))[0, 0]))
matrix = jnp.ones((2, 64), jnp.int8), jnp.ones(2, jnp.float32)
try:
    calls.rows_times_int8(rows, *matrix).block_until_ready()
except Exception as error:
    print("products of int8 are not loaded" in str(error))
library.load(folder)
print(float(calls.rows_times_int8(rows, *matrix)[0, 0]))
"""


@needs_compiler
def test_products_of_int8_are_loaded_when_they_are_asked_for(built: Path) -> None:
    """A model without int8 weights need not wait for their compiler."""
    command = [sys.executable, "-c", ALONE, str(built)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["64.0", "True", "64.0"]
