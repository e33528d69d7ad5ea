"""ApiKeys: the keys that clients may bring, of the flags and of a file that is read again when it changes."""

import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from palladio.http.security.watched_files import FileWatch
from palladio.runtime.errors import ConfigError

logger = logging.getLogger(__name__)


class ApiKeys:
    """Only hashes are kept, so that neither a comparison's time nor a dump of this object tells anything of a key.

    Args:
        keys: of the flags.
        file: --api-key-file; None: there is none.

    Raises:
        ConfigError: the file cannot be read, or holds no key.
    """

    def __init__(self, keys: Iterable[str], file: str | None = None) -> None:
        self._fixed = [_hash(key.encode()) for key in keys]
        self._file = None if file is None else Path(file).expanduser()
        self._watch = FileWatch([] if self._file is None else [str(self._file)])  # before the file is read
        self._read = [] if self._file is None else _read_hashes(self._file)

    def __bool__(self) -> bool:
        """Whether there are any: without, nobody needs one."""
        return bool(self._fixed or self._read)

    def accept(self, given: bytes) -> bool:
        """Takes the same time for every key that is given."""
        self._refresh()
        found = _hash(given)
        matches = [hmac.compare_digest(found, known) for known in (*self._fixed, *self._read)]  # all of them
        return any(matches)

    def _refresh(self) -> None:
        if self._file is None or not self._watch.changed():
            return
        try:
            self._read = _read_hashes(self._file)
        except ConfigError as error:
            logger.warning("%s; the keys that it held before stay in force", error)
        else:
            logger.info("--api-key-file has changed: %d keys are in force", len(self._fixed) + len(self._read))


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _read_hashes(path: Path) -> list[bytes]:
    """One key a line; empty lines and those that begin with # hold none."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"--api-key-file {path} cannot be read: {reason}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {path} holds no key: write one on each line")
    return [_hash(key.encode()) for key in keys]
