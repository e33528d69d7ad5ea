"""Which device an engine runs on, and what is said when that is not the one that was meant."""

import contextlib
import functools
import logging
import re
from collections.abc import Iterator

import jax
from jax.extend.backend import clear_backends

from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.devices.device_wait import DeviceWait
from palladio.runtime.devices.taken_device import TakenDevice
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError

_PLATFORMS, _GPUS, _FLAG = "jax_platforms", "jax_cuda_visible_devices", "--base-gpu-id"
_BACKEND = re.compile(r"backend '(\w+)'", re.I)
_UNUSABLE = re.compile(r"Unable to initialize backend '(\w+)'(?::\s*(.*))?", re.S)

logger = logging.getLogger("palladio.engine")


def chosen_gpus(parallel: ParallelConfig) -> range | None:
    """The numbers of the GPUs that this host uses, if it has any; None: the first ones that jax finds."""
    first, count = parallel.base_gpu_id, max(1, parallel.num_devices // parallel.num_hosts)
    return range(first, first + count) if first else None


def choose_device(
    name: str, gpu_ids: range | None = None, machine: Machine | None = None, wait: DeviceWait | None = None
) -> jax.Device:
    """The first device of the platform that --device asks for; auto: of the one that jax finds first.

    Args:
        gpu_ids: see chosen_gpus.
        machine: None: this one.
        wait: for a device that another process has; None: do not wait.

    Raises:
        DeviceTakenError: another process still has it.
        ConfigError: there is none, or jax already uses another one in this process; the message says why, and what to
            install or change.
    """
    machine = Machine.look() if machine is None else machine
    before: str | None = jax.config.values[_PLATFORMS]
    gpus_before: str = jax.config.values[_GPUS]
    wanted = {"auto": before or "", "gpu": "cuda"}.get(name, name)
    jax.config.update(_PLATFORMS, wanted or before)  # heard only before jax first looks for devices
    if gpu_ids is not None:
        jax.config.update(_GPUS, ",".join(map(str, gpu_ids)))
    try:
        device = (wait or DeviceWait()).until_free(functools.partial(_attempt, name, wanted, machine))
        if gpu_ids is not None:
            _check_gpu(device, gpu_ids)
        elif device.platform == "gpu" and gpus_before == "all":  # else its user has chosen them, by jax's own option
            _check_gpu(device, range(1))
    except ConfigError as error:
        if gpu_ids is not None and _FLAG not in str(error):
            raise ConfigError(f"{_FLAG} {gpu_ids.start}: {error}") from error
        raise
    finally:  # jax has looked: the next engine of this process must not take this one's choice for its user's
        jax.config.update(_PLATFORMS, before)
        jax.config.update(_GPUS, gpus_before)
    return device


def _attempt(name: str, wanted: str, machine: Machine) -> jax.Device | TakenDevice:
    """The first device, or who has it; after that, jax can look again.

    Raises:
        ConfigError: see choose_device.
    """
    if (not wanted or "tpu" in wanted.split(",")) and machine.package("tpu") is not None:
        taken = TakenDevice.seen(machine)
        if taken is not None:
            return taken
    try:
        with _listening(machine) as failures:
            device = jax.local_devices()[0]
    except (RuntimeError, AssertionError) as error:  # the latter where it has not even looked for a GPU
        says = " ".join(str(error).split())
        taken = TakenDevice.of(says, machine)
        if taken is None:
            raise ConfigError(_explain(name, wanted, says, machine)) from error
        clear_backends()
        return taken
    if device.platform == "cpu" and wanted == "":  # jax took it, and only logged why it did not take a better one
        found = (TakenDevice.of(f"{platform}: {says}", machine) for platform, says in failures.items())
        taken = next((one for one in found if one is not None), None)
        if taken is not None:
            clear_backends()
            return taken
    if name != "auto" and device.platform != ("gpu" if wanted == "cuda" else wanted):
        raise ConfigError(f"--device {name} has no effect: jax already runs on {device.platform} in this process")
    return device


@contextlib.contextmanager
def _listening(machine: Machine) -> Iterator[dict[str, str]]:
    """Hear what jax says of platforms that do not start. Keeps it from saying that it cannot use a kind of accelerator
    which this machine has not and jax has no package for. Yields platform → jax's words, in one line."""
    log = logging.getLogger("jax._src.xla_bridge")
    level, shown = log.level, log.getEffectiveLevel()
    failures: dict[str, str] = {}

    def is_worth_saying(record: logging.LogRecord) -> bool:
        named = _UNUSABLE.search(record.getMessage())
        if named is not None:
            failures[named[1]] = " ".join((named[2] or "").split())
        is_known = named is None or named[1] in machine.signs or machine.package(named[1]) is not None
        return is_known and record.levelno >= shown

    log.addFilter(is_worth_saying)
    log.setLevel(min(shown, logging.INFO))  # where jax says of a TPU that it does not start
    try:
        yield failures
    finally:
        log.setLevel(level)
        log.removeFilter(is_worth_saying)


def _check_gpu(device: jax.Device, gpu_ids: range) -> None:
    if device.platform != "gpu":
        reason = "other devices are not chosen by number" if device.platform != "cpu" else "there is no GPU to choose"
        raise ConfigError(f"{_FLAG} {gpu_ids.start} is for GPUs, and this engine runs on {device.platform}: {reason}")
    if device.local_hardware_id != gpu_ids.start:
        used = f"jax already uses GPU {device.local_hardware_id} in this process"
        raise ConfigError(f"{_FLAG} {gpu_ids.start} has no effect: {used}")


def tell_fallback(device: jax.Device, name: str, machine: Machine | None = None) -> None:
    """Log a warning if the engine runs on the CPU though no setting asks for it: jax says little or nothing.

    Args:
        name, machine: see choose_device.
    """
    wanted: str = jax.config.values[_PLATFORMS] or ""
    if device.platform == "cpu" and name != "cpu" and not wanted.startswith("cpu"):
        _warn_about_fallback(wanted, Machine.look() if machine is None else machine)


def _explain(name: str, wanted: str, says: str, machine: Machine) -> str:
    named = _BACKEND.search(says)
    platforms = [one for one in wanted.split(",") if one and one != "cpu"]
    platform = named[1] if named else next(iter(platforms), "cpu")
    asked = f"--device {name}" if name != "auto" else f"JAX_PLATFORMS={wanted}" if wanted else "--device auto"
    why = machine.why_unused("cuda" if platform == "gpu" else platform, says)
    return f"{asked}: {why}; or use --device cpu{f'. jax error: {says}' if says else ''}"


def _warn_about_fallback(wanted: str, machine: Machine) -> None:
    platform = next((one for one in wanted.split(",") if one), None) or machine.unused()
    if platform is None:
        return
    platform = "cuda" if platform == "gpu" else platform
    asked = f" although JAX_PLATFORMS={wanted} is set" if wanted else ""
    logger.warning(
        "Running on CPU%s, which is slow: %s; pass --device cpu to silence this warning",
        asked,
        machine.why_unused(platform),
    )
