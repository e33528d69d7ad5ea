"""A full disk, as the answer to the request that found it full."""

import contextlib
import errno
import sqlite3
from collections.abc import Iterator

from palladio.http.errors import ErrorBody, HttpError

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


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


def _storage_full() -> ErrorBody:
    message = "the disk of --file-storage-path is full: make room on it, and send the request again"
    return ErrorBody(507, message, code="storage_full")
