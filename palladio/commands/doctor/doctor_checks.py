"""What `palladio doctor` looks at. Each check is a function that returns findings, and changes nothing."""

import contextlib
import dataclasses
import errno
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from palladio.cli.parsing import size
from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.interface.config.user_dirs import user_cache_dir, user_data_dir
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub.hub_download import hub_cache
from palladio.version import __version__

Verdict = Literal["ok", "warn", "broken"]

_NEEDED: Final = ("jax", "jaxlib", "flax", "numpy", "transformers", "tokenizers", "huggingface_hub", "safetensors")
_SHOWN_VARIABLES: Final = (
    *("PALLADIO_CACHE_DIR", "PALLADIO_DATA_DIR", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
    *("JAX_PLATFORMS", "XLA_FLAGS", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "LD_LIBRARY_PATH"),
    *("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", "JAX_COMPILATION_CACHE_DIR"),
)
_SECRET_VARIABLES: Final = ("HF_TOKEN", "OPENAI_API_KEY")  # only whether they are set is shown
_SECRET: Final = re.compile(r"hf_\w{8,}|sk-[\w-]{8,}|(?<=://)[^/@\s]+@")
_LEAST_FILES, _LEAST_SHM, _LEAST_MEMORY, _LEAST_DISK = 4096, 256 << 20, 4 << 30, 10 << 30
_COMMAND_SECONDS, _KILL_SECONDS = 10.0, 2.0


_NO_ANSWER = "no answer within"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        fix: what to type or change; empty: nothing.
    """

    verdict: Verdict
    about: str
    text: str
    fix: str = ""


def redact(text: str, environment: Mapping[str, str]) -> str:
    """Without tokens, passwords in URLs, values of secret variables, and the home folder's name."""
    for name in _SECRET_VARIABLES:
        if len(environment.get(name, "")) > 3:
            text = text.replace(environment[name], "***")
    home = environment.get("HOME", "")
    return _SECRET.sub("***", text.replace(home, "~") if len(home) > 1 else text)


def check_versions() -> Iterator[Finding]:
    yield Finding("ok", "system", f"Palladio {__version__}, Python {platform.python_version()}, {platform.platform()}")
    versions = {name: _version(name) for name in _NEEDED}
    missing = [name for name, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    if missing:
        fix = "run `pip install '.[cpu]'` (or cuda13, tpu) in Palladio's repository"
        yield Finding("broken", "packages", f"{', '.join(missing)} missing; found: {found}", fix)
    else:
        yield Finding("ok", "packages", found)
    jax, jaxlib = versions["jax"], versions["jaxlib"]
    if jax is not None and jaxlib is not None and jax.split(".")[:2] != jaxlib.split(".")[:2]:
        yield Finding("broken", "jax", f"jax {jax} and jaxlib {jaxlib} differ", f"pip install jax=={jax} jaxlib=={jax}")


def check_devices(probe: Mapping[str, Any], machine: Machine, environment: Mapping[str, str]) -> Iterator[Finding]:
    """
    Args:
        probe: what `palladio.commands.doctor.doctor_worker` printed, or {"error": …}.
    """
    wanted = environment.get("JAX_PLATFORMS", "")
    plugins = [f"{name} {machine.packages[name]}" for name in machine.packages if name not in ("jax", "jaxlib")]
    seen = ", ".join(machine.shown(name) for name in machine.signs) or "no accelerator"
    yield Finding("ok", "machine", f"{seen}; jax's plugins: {', '.join(plugins) or 'none, so CPU only'}")
    if "error" in probe:
        says = str(probe["error"]) or f"nothing that JAX_PLATFORMS={wanted} names"
        fix = next((machine.why_unused(name, says) for name in machine.signs), "")
        is_late = says.startswith(_NO_ANSWER)
        other = "look for the process that holds the device, or try again when the machine is less busy"
        fix = fix or (other if is_late else "unset JAX_PLATFORMS" if wanted else "see what it says")
        yield Finding("broken", "jax", f"finds no device that computes: {says}", fix)
        return
    devices = probe["devices"]
    first = devices[0]
    memory = "" if first["bytes"] is None else f", {size(first['bytes'])} each"
    what = f"{len(devices)} x {first['kind']} ({first['platform']}{memory}), ready in {probe['seconds']:.1f} s"
    if not probe["computes"]:
        yield Finding("broken", "jax", f"{what}, and it computes wrong sums", "another driver or jax version")
        return
    unused = machine.unused() if first["platform"] == "cpu" else None
    if unused is not None and wanted.startswith("cpu"):
        yield Finding("warn", "jax", f"{what}, although there is {machine.shown(unused)}", "unset JAX_PLATFORMS")
    elif unused is not None and unused in machine.signs:
        yield Finding("broken", "jax", f"{what}, although there is {machine.shown(unused)}", machine.why_unused(unused))
    else:
        yield Finding("ok", "jax", what)


def check_gpu_driver() -> Iterator[Finding]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return
    query = [command, "--query-gpu=index,name,driver_version,memory.used,memory.total", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("broken", "driver", f"nvidia-smi does not answer: {error}", "load or reinstall the NVIDIA driver")
        return
    if result.returncode:
        said = " ".join((result.stdout + result.stderr).split())
        yield Finding("broken", "driver", f"nvidia-smi: {said}", "load or reinstall the NVIDIA driver")
        return
    for line in result.stdout.strip().splitlines():
        index, name, driver, used, total = [part.strip() for part in line.split(",")]
        held = int(used.split()[0]) * 10 > int(total.split()[0])
        text = f"GPU {index}: {name}, driver {driver}, {used} of {total} used"
        fix = "`nvidia-smi` names the processes that hold it" if held else ""
        yield Finding("warn" if held else "ok", "driver", text, fix)


def check_holders(
    devices: Sequence[str] = ("/dev/accel*", "/dev/vfio/[0-9]*"), proc: Path = Path("/proc")
) -> Iterator[Finding]:
    """Find processes that hold the TPU, which serves one at a time.

    Args:
        devices: patterns of device files.
        proc: the folder that lists processes.
    """
    chips = {str(path) for pattern in devices for path in Path("/").glob(pattern.lstrip("/"))}
    if not chips:
        return
    holders = {}
    for process in proc.glob("[0-9]*"):
        try:
            opened = {os.readlink(link) for link in (process / "fd").iterdir()}
        except OSError:  # it has ended, or is another user's
            continue
        if opened & chips:
            holders[process.name] = (process / "comm").read_text(encoding="utf-8").strip()
    for pid, name in sorted(holders.items()):
        yield Finding("warn", "TPU", f"process {pid} ({name}) holds it", f"stop it first: kill {pid}")
    if not holders:
        yield Finding("ok", "TPU", f"{len(chips)} devices, held by no process that this user may see")


def check_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Iterator[Finding]:
    try:
        lines = (proc / "meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    fields = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.split()[1:]}
    available, text = fields["MemAvailable"], f"{size(fields['MemTotal'])}, {size(fields['MemAvailable'])} available"
    limit = _read_number(cgroup / "memory.max")
    if limit is not None and limit < fields["MemTotal"]:
        used = _read_number(cgroup / "memory.current") or 0
        available, text = min(available, limit - used), f"{text}; this container may have {size(limit)}"
    cores = len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count()
    text = f"{text}; {cores} CPU cores"
    if available < _LEAST_MEMORY:
        yield Finding(
            "warn", "memory", text, "stop other programs, or serve a smaller model (`palladio plan` tells sizes)"
        )
    else:
        yield Finding("ok", "memory", text)


def check_folders(environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        cache: Path | None = user_cache_dir(environment)
    except ConfigError as error:
        cache = None
        yield Finding("broken", "folders", str(error), "export PALLADIO_CACHE_DIR=/some/folder")
    for about, folder, variable in (
        ("compiled programs", cache, "PALLADIO_CACHE_DIR"),
        ("files and batches", user_data_dir(environment), "PALLADIO_DATA_DIR"),
        ("models (hub cache)", hub_cache(), "HF_HOME"),
    ):
        if folder is not None:
            yield _check_folder(about, folder, variable)


def _check_folder(about: str, folder: Path, variable: str) -> Finding:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        if there.is_dir():
            with tempfile.TemporaryFile(dir=there):
                pass
        else:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    except OSError as error:
        return Finding(
            "broken", about, f"{folder} cannot be written: {error.strerror}", f"export {variable}=/some/folder"
        )
    free = shutil.disk_usage(there).free
    text = f"{folder}, {size(free)} free" + ("" if folder.exists() else " (not made yet)")
    if free < _LEAST_DISK:
        return Finding("warn", about, text, f"free some, or export {variable}=/larger/folder")
    return Finding("ok", about, text)


def check_limits(shm: Path = Path("/dev/shm")) -> Iterator[Finding]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{files} open files (ulimit -n)"
    if 0 <= files < _LEAST_FILES:
        fix = f"ulimit -n {most}" if most >= _LEAST_FILES else "raise nofile in /etc/security/limits.conf"
        yield Finding("warn", "limits", f"{text}: each connection needs one", fix)
    else:
        yield Finding("ok", "limits", text)
    if shm.is_dir():
        room = shutil.disk_usage(shm).total
        few = room < _LEAST_SHM
        fix = "docker run --shm-size=1g" if few else ""
        yield Finding("warn" if few else "ok", "shared memory", f"{size(room)} in {shm}", fix)


def check_port(port: int) -> Iterator[Finding]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            fix = f"palladio serve --port {port + 1}, or stop what listens there (`ss -ltnp 'sport = :{port}'`)"
            yield Finding("warn", "port", f"127.0.0.1:{port} is taken: {error.strerror}", fix)
            return
    yield Finding("ok", "port", f"127.0.0.1:{port} is free")


def check_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    shown = [f"{name}={environment[name]}" for name in _SHOWN_VARIABLES if name in environment]
    shown += [f"{name} is set" for name in _SECRET_VARIABLES if environment.get(name)]
    yield Finding("ok", "environment", ", ".join(shown) or "nothing that matters is set")
    if "cuda" in environment.get("LD_LIBRARY_PATH", "").lower():
        text = "LD_LIBRARY_PATH leads to a CUDA toolkit, which jax would load instead of its own libraries"
        yield Finding("warn", "environment", text, "unset LD_LIBRARY_PATH")


def probe_devices(command: Sequence[str], environment: Mapping[str, str], limit: float) -> dict[str, Any]:
    """What a process says of its devices; one that takes longer than `limit` seconds is killed.

    Returns:
        Its JSON, or {"error": …}.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            return {"error": f"{_NO_ANSWER} {limit:g} s: another process may hold the device"}
        finally:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it from ending
                child.wait(_KILL_SECONDS)
        out.seek(0)
        errors.seek(0)
        said, wrong = out.read().decode(errors="replace"), errors.read().decode(errors="replace")
    try:
        found = json.loads((said.strip().splitlines() or [""])[-1])
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    last = (wrong.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    return {"error": f"the process that looks for devices ended: {last}"}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
