"""Exported programs: a directory of executables that a replica on the same kind of machine loads instead of compiling.

Each is a file that names the program and everything that it depends on, by a digest: what it was compiled for, its
arguments, the versions, our own source. A program that is not there, or that this machine refuses, is compiled.
"""

import hashlib
import importlib.resources
import logging
import os
import pickle
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.experimental import serialize_executable

from palladio.runtime.scheduling.batch.buckets import Buckets

logger = logging.getLogger(__name__)

# The source that decides what a program computes, by whole rooms: a list of files would forget the next one.
SOURCE_ROOMS = ("model", "pallas_kernels", "runtime/interface", "runtime/execution", "runtime/core")
_NUMERIC_OPTIONS = ("jax_default_matmul_precision", "jax_enable_x64", "jax_numpy_dtype_promotion")
# What a file that is damaged, or made for another machine, raises.
_REFUSALS = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError),
    jax.errors.JaxRuntimeError,
)


class ProgramStore:
    """Files are Python pickles, as jax makes them: load only from a directory that you trust as you trust your code.

    Args:
        directory: need not exist.
        model: a text that differs between models whose programs have the same arguments.
        devices: the devices that the programs run on.
    """

    def __init__(self, directory: Path, model: str, devices: Sequence[jax.Device]) -> None:
        self._directory = directory
        self._devices = devices
        versions = (jax.__version__, jaxlib.version.__version__)
        options = [f"{name} {jax.config.values[name]}" for name in _NUMERIC_OPTIONS]
        self._common = _digest(*versions, *options, _machine(devices[0]), model, source_digest())

    def load(self, name: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The program, ready to be called; None: it is not there, or not for this machine."""
        path = self._path(name, args)
        data = _read(path)
        if data is None:
            return None
        try:
            payload, in_tree, out_tree = pickle.loads(data)
            program: Callable[..., Any] = serialize_executable.deserialize_and_load(
                payload, in_tree, out_tree, execution_devices=self._devices
            )
        except _REFUSALS as error:
            logger.warning("Cannot use the exported program %s; compiling it instead: %s", path, error)
            return None
        return program

    def save(self, name: str, args: tuple[Any, ...], program: Any) -> int:
        """Writes a compiled program, whole or not at all; returns its size in bytes.

        Raises:
            OSError: it cannot be written.
        """
        data = pickle.dumps(serialize_executable.serialize(program))
        _write(self._path(name, args), data)
        return len(data)

    def load_workspace(self, buckets: Buckets) -> int | None:
        """What `save_workspace` wrote for the same model, machine, versions and buckets."""
        data = _read(self._workspace_path(buckets))
        return None if data is None or not data.isdigit() else int(data)

    def save_workspace(self, buckets: Buckets, num_bytes: int) -> None:
        """Keeps how much memory the programs need, which is costly to find.

        Raises:
            OSError: it cannot be written.
        """
        _write(self._workspace_path(buckets), str(num_bytes).encode())

    def _workspace_path(self, buckets: Buckets) -> Path:
        return self._directory / f"workspace-{_digest(self._common, str(buckets))}"

    def _path(self, name: str, args: tuple[Any, ...]) -> Path:
        leaves, tree = jax.tree.flatten(args)
        shapes = [f"{leaf.dtype}{leaf.shape}{_layout_of(leaf)}" for leaf in leaves]
        readable = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
        return self._directory / f"{readable}-{_digest(self._common, name, str(tree), *shapes)}"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("Cannot read %s; compiling its program instead: %s", path, error)
        return None


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; others may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _layout_of(leaf: Any) -> str:
    """How an argument is split; not over which devices, whose numbers differ from host to host."""
    sharding = leaf.sharding
    return f"{sharding.spec} {dict(sharding.mesh.shape)}" if isinstance(sharding, jax.sharding.NamedSharding) else ""


def _machine(device: jax.Device) -> str:
    kind = f"{device.platform} {device.device_kind} {platform.machine()}"
    if device.platform != "cpu":
        return f"{kind} {device.client.platform_version}"
    try:  # XLA:CPU generates code for the very processor
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return kind
    return f"{kind} {flags.group(1) if flags else ''}"


def source_digest(package: Path | None = None) -> str:
    """Hash all source that decides what a program computes.

    Args:
        package: the package's folder; None: that of the imported package.
    """
    package = package or Path(str(importlib.resources.files("palladio")))
    files = (
        path
        for room in SOURCE_ROOMS
        for path in sorted((package / room).rglob("*"))
        if path.suffix in (".py", ".json")  # tables of tuned sizes
    )
    return _digest(*(path.read_text(encoding="utf-8") for path in files))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]
