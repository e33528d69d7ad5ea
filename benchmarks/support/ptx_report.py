"""What XLA, Mosaic and ptxas tell of the kernels of a compiled GPU program, whose PTX lies in a folder."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any


def shared_memory(dump: Path) -> dict[str, int]:
    """Bytes by kernel, of the program compiled last."""
    launch = re.compile(r"kCustomKernel .*\] (\w+) grid: .*shared_memory: (\d+) bytes")
    (listing,) = dump.glob("*thunk_sequence.txt")
    found = (launch.search(line) for line in listing.read_text(encoding="utf-8").splitlines())
    return {match[1]: int(match[2]) for match in found if match}


def mosaic_shared_memory(ptx: Path) -> int:
    """Bytes of the kernel that Mosaic dumped there."""
    passes = ptx.with_name(f"{ptx.stem}.mlir-passes.log")
    with passes.open(encoding="utf-8") as lines:  # some 40 MB, but the launch is in its first pass
        for line in lines:
            if match := re.search(r"dynamic_shared_memory_size %c(\d+)_i32", line):
                return int(match[1])
    raise ValueError(f"{passes.name} has no launch")


def ptxas(path: Path) -> dict[str, dict[str, Any]]:
    """Registers and spills by kernel."""
    command = [_find_ptxas(), "-v", "-arch=sm_90a", str(path), "-o", os.devnull]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found: dict[str, dict[str, Any]] = {}
    for part in report.split("Compiling entry function ")[1:]:
        kernel = part.split("'")[1]
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        if spills is None or registers is None:
            raise ValueError(f"ptxas reports differently than expected: {part[:200]}")
        found[kernel] = {"registers": int(registers[1]), "spilled_bytes": int(spills[1]) + int(spills[2])}
    return found


def _find_ptxas() -> str:
    """nvidia-cuda-nvcc's, else the one on PATH.

    Raises:
        FileNotFoundError: there is none.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / "cu13/bin/ptxas").is_file():
            return str(path)
    if (found := shutil.which("ptxas")) is None:
        raise FileNotFoundError("ptxas is missing: pip install 'jax-cuda13-plugin[with-cuda]'")
    return found
