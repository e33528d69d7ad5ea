"""Which accelerators this machine shows, what jax has been given for them, and why it cannot use one all the same."""

import dataclasses
import importlib.metadata
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

_PACKAGES: Final = {  # platform → packages of which jax needs one
    "cuda": ("jax-cuda13-plugin", "jax-cuda12-plugin"),
    "tpu": ("libtpu",),
}
_LABELS: Final = {"cuda": "NVIDIA GPU", "tpu": "TPU"}
_SIGNS: Final = {"cuda": ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*"), "tpu": ("/dev/accel[0-9]*",)}
_TPU_VENDOR: Final = "0x1ae0"  # Google's, which network cards of its clouds have too; so the devices, as jax knows them
_TPU_DEVICES: Final = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})
_INSTALL: Final = {
    "cuda": "run `pip install '.[cuda13]'` in Palladio's repository (drivers older than 580: '.[cuda12]')",
    "tpu": "run `pip install '.[tpu]'` in Palladio's repository",
}
_OLD_DRIVER = re.compile(r"driver version is insufficient|InsufficientDriver|UNSUPPORTED_PTX|driver.{0,40} old", re.I)
_IN_USE = re.compile(r"already in use(?: by process with pid (\d+))?", re.I)
_NONE_VISIBLE = re.compile(r"no visible|NO_DEVICE|no supported devices|no CUDA-capable|provides no devices", re.I)
_BAD_LIBRARIES = re.compile(r"Unable to use CUDA|Unable to load|Outdated|PJRT API version", re.I)
_ANY_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Attributes:
    signs: platform as jax names it (cuda, tpu) → the file or command that shows that there is such an accelerator.
    packages: name → version of those installed that matter to jax.
    python: version.
    files: platform → the device files of the accelerators, which their processes have open.
    """

    signs: Mapping[str, str]
    packages: Mapping[str, str]
    python: str = platform.python_version()
    files: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def look(cls, root: Path = Path("/")) -> Self:
        """Look for the accelerators of this machine.

        Args:
            root: the root of the file system.
        """
        found, files = {}, {}
        for name, patterns in _SIGNS.items():
            signs = [path for pattern in patterns for path in sorted(root.glob(pattern.lstrip("/")))]
            if signs:
                found[name] = f"/{signs[0].relative_to(root)}"
            files[name] = tuple(str(path) for path in signs if path.is_relative_to(root / "dev"))
        vfio = sorted(root.glob("dev/vfio/[0-9]*"))
        if "tpu" not in found and vfio and _has_tpu_on_pci(root):
            found["tpu"], files["tpu"] = f"/{vfio[0].relative_to(root)}", tuple(map(str, vfio))
        if "cuda" not in found and (command := shutil.which("nvidia-smi")) is not None:
            found["cuda"] = command
        names = ("jax", "jaxlib", *(name for group in _PACKAGES.values() for name in group))
        packages = {name: version for name in names if (version := _version(name)) is not None}
        return cls(found, packages, files=files)

    def package(self, name: str) -> str | None:
        """What jax uses a platform through, if it is installed."""
        return next((package for package in _PACKAGES.get(name, ()) if package in self.packages), None)

    def why_unused(self, name: str, says: str = "") -> str:
        """Why jax cannot use a platform here, and what to do about it, without a full stop.

        Args:
            name: as jax names it.
            says: jax's own words, "" if it said nothing.
        """
        if name not in _PACKAGES:
            return f"platform {name!r} is not supported; supported: cuda, tpu and cpu"
        label, package = _LABELS[name], self.package(name)
        others = [other for other in self.signs if other != name]
        if name not in self.signs and others:
            return f"this machine has no {label}, but it has {self.shown(others[0])}: use --device {others[0]}"
        in_use = _IN_USE.search(says)
        if in_use is not None:
            holder = f"process {in_use[1]}" if in_use[1] else "another process"
            return f"{holder} is using the {label}, and only one process can: stop that process first"
        if package is None:
            wanted = " or ".join(_PACKAGES[name])
            missing = f"{wanted} is not installed (jax {self.packages.get('jax', '?')}, Python {self.python})"
            return f"{missing}: {_INSTALL[name]}"
        if name == "cuda" and _numbers(self.packages[package]) != _numbers(self.packages.get("jaxlib", "")):
            versions = f"{package} {self.packages[package]} does not match jaxlib {self.packages.get('jaxlib', '?')}"
            return f"{versions}; both must have the same version: {_INSTALL[name]}"
        if _OLD_DRIVER.search(says):
            return f"the driver is too old for {package}: update it, or {_INSTALL[name]}"
        if name not in self.signs:
            hint = "a container needs `--gpus all`" if name == "cuda" else "a container needs `--privileged`"
            return f"{package} is installed, but no {label} was found on this machine; {hint}"
        if _NONE_VISIBLE.search(says):
            variable = "CUDA_VISIBLE_DEVICES" if name == "cuda" else "TPU_VISIBLE_CHIPS"
            return f"no {label} is visible to this process: check the environment variable {variable}"
        if _BAD_LIBRARIES.search(says):
            return (
                f"libraries required by {package} are missing or too old: unset LD_LIBRARY_PATH, and {_INSTALL[name]}"
            )
        return f"{package} {self.packages[package]} did not start on {self.shown(name)}"

    def shown(self, name: str) -> str:
        """An accelerator, with what shows it."""
        return f"{'an' if name == 'cuda' else 'a'} {_LABELS[name]} ({self.signs[name]})"

    def unused(self) -> str | None:
        """The accelerator that an engine on the CPU leaves alone: one that is here, or that jax was equipped for."""
        return next(iter((*self.signs, *(name for name in _PACKAGES if self.package(name) is not None))), None)


def _has_tpu_on_pci(root: Path) -> bool:
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        try:
            device = (vendor.parent / "device").read_text().strip()
            if vendor.read_text().strip() == _TPU_VENDOR and device in _TPU_DEVICES:
                return True
        except OSError:
            continue
    return False


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> str:
    """What jax compares of a version: the numbers at its beginning."""
    match = _ANY_VERSION.match(version)
    return match.group() if match else ""
