"""Settings of this process that may change while it serves."""

import gc

from palladio.runtime.telemetry.logs import set_log_level


def configure_process(log_level: int | None, *, freeze_gc: bool) -> None:
    """Changes settings of this process.

    Args:
        log_level: a number of Python's logging; None: it stays.
        freeze_gc: collect garbage, and leave all objects that exist then out of later collections.
    """
    if log_level is not None:
        set_log_level(log_level)
    if freeze_gc:
        gc.collect()
        gc.freeze()
