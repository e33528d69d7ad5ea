"""The wait for a device that another process has."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from palladio.runtime.devices.taken_device import TakenDevice
from palladio.runtime.interface.errors import DeviceTakenError
from palladio.runtime.interface.messages.engine_state import LoadProgress

POLL_SECONDS = 1.0

Device = TypeVar("Device")

logger = logging.getLogger("palladio.engine")


def _ignore(_: object) -> None:
    """Do nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceWait:
    """Attributes:
    seconds: to wait at most.
    on_progress: hears every second how long the wait is.
    tell: hears who has the device, whenever that changes; "": it is free.
    """

    seconds: float = 0.0
    on_progress: Callable[[LoadProgress], None] = _ignore
    tell: Callable[[str], None] = _ignore
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until_free(self, attempt: Callable[[], Device | TakenDevice]) -> Device:
        """Try until the device is there.

        Args:
            attempt: gives the device, or who has it. Not called while the system itself says that it is taken.

        Raises:
            DeviceTakenError: another process still has it; the message says which, and what to do.
        """
        begun, shown = self.clock(), ""
        found = attempt()
        while isinstance(found, TakenDevice):
            waited, why = self.clock() - begun, found.describe()
            if waited >= self.seconds:
                raise DeviceTakenError(_advice(why, self.seconds, found.says))
            if why != shown:
                logger.warning("Waiting up to %g s for the device (--device-wait): %s", self.seconds, why)
                self.tell(why)
                shown = why
            self.on_progress(LoadProgress("device", int(waited), math.ceil(self.seconds)))
            self.sleep(min(POLL_SECONDS, self.seconds - waited))
            if not found.is_busy or self.clock() - begun >= self.seconds:
                found = attempt()
        if shown:
            logger.info("The device is free after %.1f s", self.clock() - begun)
            self.tell("")
        return found


def _advice(why: str, seconds: float, says: str) -> str:
    after = f"after {seconds:g} s (--device-wait)" if seconds else "with --device-wait 0"
    words = f". jax error: {says}" if says else ""
    return f"{why}, {after}: stop that process, wait longer, or replace this machine{words}"
