"""Log lines as SGLang's users know them: `[2026-01-31 12:00:00] message`, and the level's name from WARNING on."""

import logging
import sys


class LineFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the name is logging's)
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"[{record.asctime}] {level}{record.message}"


def configure_logging(level: str) -> None:
    """Sends everything from `level` on (debug, info, …) to standard error, replacing earlier settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    known = logging.getLevelNamesMapping()
    logging.basicConfig(level=known.get(level.upper(), logging.DEBUG), handlers=[handler], force=True)
