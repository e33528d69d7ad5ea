"""Verdicts of trials, kept in a file beside the compilation cache."""

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

import jax

from palladio import pallas_kernels
from palladio.runtime.core.trials.case import Kernel
from palladio.version import __version__

Outcome = Literal["ok", "wrong", "failed", "died"]
"""What a trial found: right results; wrong ones; an error of compiler or device; a process that hung or was killed."""

_FILE: Final = "verdicts.json"
_FORMAT: Final = 1

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class Platform:
    """What a verdict holds for, beside the kernel and its shapes.

    Attributes:
        device: platform and kind, as jax names them.
        packages: versions of jax and jaxlib.
        compiler: version of the device's compiler or driver, as its client says it.
        kernels: version of Palladio, and a hash of the kernels' sources and tuned sizes.
    """

    device: str
    packages: str
    compiler: str
    kernels: str

    @classmethod
    def of(cls, device: jax.Device) -> Self:
        """Return what a device and its software are."""
        versions = f"jax {jax.__version__}, jaxlib {importlib.metadata.version('jaxlib')}"
        compiler = " ".join(str(device.client.platform_version).split())
        kind = f"{device.platform} {device.device_kind}"
        return cls(kind, versions, compiler, f"palladio {__version__}, kernels {_hash_of_kernels()}")


def _hash_of_kernels() -> str:
    """Hash the sources of kernels: one that was repaired is tried again."""
    found, folder = hashlib.sha256(), Path(pallas_kernels.__path__[0])
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".json", ".cc", ".h"):
            found.update(path.relative_to(folder).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a kernel's trial.

    Attributes:
        kernel: name, such as grouped_matmul/gpu_triton.
        outcome: see Outcome.
        case: the case that decided, and its inputs.
        shapes: its shapes, dtypes and options.
        text: what is wrong; empty: nothing is.
        error: largest relative error of a row; None: nothing was compared.
        bound: the largest that is right.
        seconds: that the trial took.
    """

    kernel: str
    outcome: Outcome
    case: str = ""
    shapes: str = ""
    text: str = ""
    error: float | None = None
    bound: float | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the kernel may be used."""
        return self.outcome == "ok"

    @property
    def reason(self) -> str:
        """What is wrong, and where."""
        return f"{self.text} ({self.case}; {self.shapes})" if self.case else self.text


def key_of(kernel: Kernel, platform: Platform) -> str:
    """Return the key of a trial: of everything that its verdict holds for."""
    tried = [case.signature() for case in kernel.cases if case.expected is not None]
    parts = [kernel.name, *dataclasses.astuple(platform), *tried]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


class VerdictFile:
    """Verdicts by key, in a folder that several processes may use at once.

    Args:
        folder: where the file is; None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def read(self) -> dict[str, Verdict]:
        """Return all verdicts; none if there is no file, or none that can be read."""
        if self.folder is None:
            return {}
        try:
            found = json.loads((self.folder / _FILE).read_text(encoding="utf-8"))
            if found["format"] != _FORMAT:
                return {}
            return {key: _verdict_of(entry) for key, entry in found["verdicts"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("Verdicts of kernel trials in %s are ignored: %s", self.folder / _FILE, error)
            return {}

    def keep(self, key: str, verdict: Verdict, platform: Platform) -> None:
        """Add a verdict, or replace an older one. Where nothing can be written, the next start tries again."""
        if self.folder is None:
            return
        try:
            with self._locked(self.folder):
                kept = self._entries(self.folder / _FILE)
                kept[key] = {**dataclasses.asdict(verdict), "platform": dataclasses.asdict(platform)}
                _write(self.folder / _FILE, {"format": _FORMAT, "verdicts": kept})
        except OSError as error:
            logger.warning("The verdict of a kernel trial cannot be kept, so the next start tries again: %s", error)

    @staticmethod
    def _entries(path: Path) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] == _FORMAT:
                return dict(found["verdicts"])
        return {}

    @staticmethod
    @contextlib.contextmanager
    def _locked(folder: Path) -> Iterator[None]:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _verdict_of(entry: Mapping[str, Any]) -> Verdict:
    fields = {field.name: entry[field.name] for field in dataclasses.fields(Verdict)}
    return Verdict(**fields)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
