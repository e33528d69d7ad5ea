"""Folders to which something is added at every failure, and which are not to grow for ever."""

import contextlib
import logging
from pathlib import Path
from typing import Final

NUM_KEPT: Final = 20  # files of a kind

logger = logging.getLogger(__name__)


def keep_newest(folder: Path, pattern: str, count: int = NUM_KEPT) -> None:
    """Removes all files of this pattern but the newest. Their names tell their time, so that they sort by it."""
    for path in sorted(folder.glob(pattern))[:-count]:
        with contextlib.suppress(OSError):
            path.unlink()
            logger.info("Removed %s: only the newest %d files of this kind are kept", path, count)
