"""llama.cpp's server, built for this processor from the source package of llama-cpp-python, and checkpoints for it."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

VERSION: Final = "0.3.36"  # of llama-cpp-python, whose package holds llama.cpp's source
SETTINGS: Final = (
    *("CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF"),
    *("LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_TOOLS=ON", "LLAMA_BUILD_SERVER=ON"),
)
NATIVE: Final = ("GGML_NATIVE=ON",)
AVX2: Final = ("GGML_NATIVE=OFF", "GGML_AVX2=ON", "GGML_FMA=ON", "GGML_F16C=ON", "GGML_BMI2=ON")
# The script knows pre-tokenizers by a hash of what they make of a text; those of our checkpoints are Qwen 2's. It looks
# for a sentencepiece tokenizer first, and for the package that reads one; ours are byte pairs.
CONVERT: Final = """
import runpy, sys
source = sys.argv.pop(1)
sys.path[:0] = [source, source + "/gguf-py"]
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
base.TextModel._set_vocab_sentencepiece = lambda self: self._set_vocab_gpt2()
sys.argv[0] = source + "/convert_hf_to_gguf.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class BuildError(Exception):
    """A peer cannot be built or started here."""


@dataclasses.dataclass(frozen=True)
class LlamaBuild:
    """A build of llama.cpp.

    Attributes:
        source: llama.cpp's folder.
        server, quantize: its programs.
    """

    source: Path
    server: Path
    quantize: Path


def build_llama_server(cache: Path, *, jobs: int, for_avx2: bool = False) -> LlamaBuild:
    """llama.cpp's server; built at the first call, which takes minutes.

    Args:
        for_avx2: for a CPU with AVX2 and nothing newer, not for this one.

    Raises:
        BuildError: there is no compiler, no way to the package registry, or the build failed.
    """
    folder = cache / f"llama-cpp-python-{VERSION}"
    target = folder / ("build-avx2" if for_avx2 else "build")
    build = LlamaBuild(folder / "source", target / "bin" / "llama-server", target / "bin" / "llama-quantize")
    if build.server.is_file() and build.quantize.is_file():
        return build
    missing = [name for name in ("cmake", "c++") if shutil.which(name) is None]
    if missing:
        raise BuildError(f"building llama.cpp needs {' and '.join(missing)}")
    folder.mkdir(parents=True, exist_ok=True)
    if not build.source.is_dir():
        _fetch(build.source)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    flags = [f"-D{setting}" for setting in (*SETTINGS, *(AVX2 if for_avx2 else NATIVE))]
    _run(["cmake", "-S", str(build.source), "-B", str(target), *generator, *flags])
    _run(["nice", "cmake", "--build", str(target), "--target", "llama-server", "llama-quantize", "-j", str(jobs)])
    return build


def avx2_library(folder: Path) -> Path:
    """Return the library that, in LD_PRELOAD, shows programs a CPU with AVX2 and nothing newer (avx2_cpu.c); compiled
    into `folder`.

    Raises:
        BuildError: there is no compiler, or this CPU answers `cpuid` to every program.
    """
    flags = Path("/proc/cpuinfo")
    if not flags.is_file() or "cpuid_fault" not in flags.read_text().split():
        raise BuildError("hiding features of a CPU needs Linux and a CPU with cpuid_fault")
    library = folder / "avx2_cpu.so"
    _run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("avx2_cpu.c")), "-ldl"])
    return library


def to_gguf(build: LlamaBuild, checkpoint: Path, dtype: str, python: str) -> Path:
    """Return a checkpoint in llama.cpp's format, in the folder of the build; converted at the first call.

    Args:
        dtype: f32, bf16 or q8_0.
        python: a Python with torch and transformers, which convert.

    Raises:
        BuildError: the conversion failed.
    """
    out = build.server.parents[2] / f"{checkpoint.name}-{dtype}.gguf"
    if not out.is_file():
        draft = out.with_suffix(".part")
        words = [str(build.source), str(checkpoint), "--outfile", str(draft), "--outtype", dtype]
        _run([python, "-c", CONVERT, *words])
        draft.replace(out)
    return out


def with_dtype(build: LlamaBuild, file: Path, dtype: str) -> Path:
    """Return a published GGUF file with its weights in another type, in the folder of the build; converted at the first
    call.

    Args:
        dtype: f32, bf16 or q8_0.

    Raises:
        BuildError: the conversion failed.
    """
    out = build.server.parents[2] / f"{file.stem}-{dtype}.gguf"
    if not out.is_file():
        draft = out.with_suffix(".part")
        _run([str(build.quantize), "--allow-requantize", str(file), str(draft), dtype.upper()])
        draft.replace(out)
    return out


def _fetch(source: Path) -> None:
    """llama.cpp's part of the package, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        folder = Path(name)
        package = f"llama-cpp-python=={VERSION}"
        _run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--no-binary",
                "llama-cpp-python",
                "-d",
                name,
                package,
            ]
        )
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        (found,) = folder.glob("*/vendor/llama.cpp")
        found.replace(source)


def _run(command: Sequence[str]) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        try:
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, env=environment)
        except (OSError, subprocess.CalledProcessError) as error:
            log.seek(0)
            raise BuildError(f"{Path(command[0]).name} failed: {error}; {log.read()[-600:]}") from error
