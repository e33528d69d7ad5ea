"""Log lines as SGLang's users know them, the same from both processes of a server.

`[2026-01-31 12:00:00] message`, and the level's name before the message from WARNING on.
"""

import logging
import sys


class LineFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the name is logging's)
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"[{record.asctime}] {level}{record.message}"


def configure_logging(level: str | int) -> None:
    """Sends everything from `level` on (a number, or debug, info, …) to standard error, replacing earlier settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    if isinstance(level, str):
        level = logging.getLevelNamesMapping().get(level.upper(), logging.DEBUG)  # uvicorn's trace is below debug
    logging.basicConfig(level=level, handlers=[handler], force=True)
