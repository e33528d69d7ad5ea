"""Where an engine looks for programs and measurements of earlier starts."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.compiled.program_store import ProgramStore
from palladio.runtime.execution.state.device_state import DeviceShape
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.scheduling.batch.buckets import Buckets

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class Stores:
    """Where an engine looks for what was found or made before.

    Attributes:
        exports: --compiled-dir; None: not given.
        notes: a folder in the persistent cache; None: there is no such cache.
    """

    exports: ProgramStore | None
    notes: ProgramStore | None

    @classmethod
    def of(cls, config: EngineConfig, model: str, shape: DeviceShape) -> Self:
        devices = list(shape.mesh.devices.flat)
        cache, exports = config.execution.cache_path(), config.execution.compiled_dir
        return cls(
            None if exports is None else ProgramStore(Path(exports).expanduser(), model, devices),
            None if cache is None else ProgramStore(cache / "plans", model, devices),
        )

    def workspace(self, buckets: Buckets, declare: Callable[[], StepPrograms]) -> int:
        """Bytes that the programs need, as noted, or measured with the programs of `declare`.

        Raises:
            ConfigError: one is too large for the device.
        """
        stores = [store for store in (self.exports, self.notes) if store is not None]
        noted = next((size for store in stores if (size := store.load_workspace(buckets)) is not None), None)
        if noted is not None:
            return noted
        programs = declare()
        logger.info("Compiling the largest programs to measure their workspace")
        programs.build(programs.largest_keys())
        if self.notes is not None:
            try:
                self.notes.save_workspace(buckets, programs.workspace)
            except OSError as error:
                logger.warning("Cannot save the measured workspace; the next start measures it again: %s", error)
        return programs.workspace
