"""Errors of the disk: whether an error is one, and what is answered to the request that met it."""

import contextlib
import errno
import logging
import sqlite3
from collections.abc import Iterator

from palladio.http.wire.errors import ErrorBody, HttpError

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_UNWRITABLE = frozenset((errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR))
_DATABASE_UNWRITABLE = frozenset((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN))
_CODES = frozenset(
    ("storage_full", "storage_unavailable", "storage_gone", "blob_store_unavailable", "database_unavailable")
)

_STORAGE_FULL = ErrorBody(
    507,
    "the disk of --file-storage-path is full: free some space on it, then send the request again",
    code="storage_full",
)

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def disk_errors(*, missing: bool = True) -> Iterator[None]:
    """
    Args:
        missing: of a file or folder that is not there as well.

    Raises:
        HttpError: the disk is full, or cannot be written. Other errors are left as they are: a 500, and a traceback in
            the log.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise HttpError(_STORAGE_FULL) from error
        if error.errno in _UNWRITABLE or (missing and error.errno == errno.ENOENT):
            raise HttpError(_storage_unavailable(error)) from error
        raise
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise HttpError(_STORAGE_FULL) from error
        if error.sqlite_errorcode & 0xFF in _DATABASE_UNWRITABLE:  # the rest of the code says where
            raise HttpError(_storage_unavailable(error)) from error
        raise


def is_of_disk(error: BaseException) -> bool:
    """Whether this is the disk's fault, and may work later; of a group, whether all of it is."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_of_disk(one) for one in error.exceptions)
    if isinstance(error, HttpError):
        return error.body.code in _CODES
    # A defect shows as one of sqlite3's other errors; TimeoutError is an OSError by its class alone.
    return isinstance(error, OSError | sqlite3.OperationalError) and not isinstance(error, TimeoutError)


def code_of(error: BaseException) -> str:
    """Return the code that clients get of an error that `is_of_disk`; default: "storage_unavailable"."""
    return (isinstance(error, HttpError) and error.body.code) or "storage_unavailable"


def _storage_unavailable(error: Exception) -> ErrorBody:
    """What the request met; the log names the file, which is the operator's business."""
    logger.error("--file-storage-path cannot be used: %s", error)
    why = error.strerror if isinstance(error, OSError) and error.strerror else "an error of the database"
    message = f"--file-storage-path cannot be used at the moment ({why}): see the server's log"
    return ErrorBody(503, message, code="storage_unavailable")
