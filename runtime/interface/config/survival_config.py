"""The flags of failures and restarts."""

import dataclasses

from palladio.runtime.interface.config.field_checks import check_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurvivalConfig:
    """Failures and restarts.

    Attributes:
        max_engine_restarts: How often per hour the server restarts a failed engine. 0: never. Offline, and with several
            hosts, a failed engine is not restarted.
        watchdog_timeout: Seconds after which an unfinished step counts as hung; compiling and writing a profile do not
            count. The server then restarts its engine (with several hosts, it stops the engine); offline, it only
            prints the stacks. 0: no watchdog.
        soft_watchdog_timeout: Seconds after which an unfinished step is only reported: the log says so, and the stacks
            of all threads are printed once a step. Default: no report before --watchdog-timeout.
        health_timeout: Seconds without a sign of life from the engine, which answers between steps, after which /health
            returns 503; compiling does not count. 0: no check.
        crash_dump_folder: Directory where a failing engine saves the last requests, for `palladio replay`, and the
            stacks of a hung step. Default: no dumps. The files contain prompts and outputs in plain text.
    """

    max_engine_restarts: int = 3
    watchdog_timeout: float = 300.0
    soft_watchdog_timeout: float | None = None
    health_timeout: float = 30.0
    crash_dump_folder: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
