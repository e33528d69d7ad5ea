"""Errors of the disk: whether an error is one, and a full disk as the answer to the request that found it full."""

import contextlib
import errno
import sqlite3
from collections.abc import Iterator

from palladio.http.errors import ErrorBody, HttpError

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_STATUS_FULL = 507


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """
    Raises:
        HttpError: the disk is full. Other errors of the disk are left as they are: a 500, and a traceback in the log.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise HttpError(_storage_full()) from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise
        raise HttpError(_storage_full()) from error


def is_of_disk(error: BaseException) -> bool:
    """Whether this is the disk's fault, and may work later; of a group, whether all of it is."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_of_disk(one) for one in error.exceptions)
    if isinstance(error, HttpError):
        return error.body.status == _STATUS_FULL
    # A defect shows as one of sqlite3's other errors; TimeoutError is an OSError by its class alone.
    return isinstance(error, OSError | sqlite3.OperationalError) and not isinstance(error, TimeoutError)


def _storage_full() -> ErrorBody:
    message = "the disk of --file-storage-path is full: make room on it, and send the request again"
    return ErrorBody(_STATUS_FULL, message, code="storage_full")
