"""Faults of the contents of files, in a folder or in a bucket."""

from tests.faults.fault import Fault

_STORES, _BUCKET = ("tests/http/storage/blobs/test_blob_stores.py",), ("tests/http/storage/blobs/test_blob_bucket.py",)
_FILES = ("tests/http/files/test_bucket.py",)

BLOB_FAULTS = (
    Fault(
        "an upload that is cancelled at its end stays in the bucket",
        "http/storage/blobs/blob_bucket.py",
        "        if upload.exception() is None:",
        "        if upload.exception() is not None:",
        _BUCKET,
    ),
    Fault(
        "the last range of an object is not read",
        "http/storage/blobs/blob_bucket.py",
        "for begin in range(0, size, _RANGE):",
        "for begin in range(0, size - _RANGE, _RANGE):",
        _STORES,
    ),
    Fault(
        "a bucket that was deleted makes all files look deleted",
        "http/storage/blobs/blob_bucket.py",
        """        except FileNotFoundError:
            self._look_for_bucket()
            return None""",
        """        except FileNotFoundError:
            return None""",
        _BUCKET,
    ),
    Fault(
        "an endpoint's password is in the log",
        "http/storage/blobs/blob_bucket.py",
        'first.rpartition(" - ")[2]',
        "first",
        _BUCKET,
    ),
    Fault(
        "a bucket serves two databases, and each removes the other's files",
        "http/storage/blobs/blob_bucket.py",
        "        if found != identity:",
        "        if found is None:",
        _BUCKET,
    ),
    Fault(
        "a batch fails while its bucket is away",
        "http/storage/records/disk_errors.py",
        ', "blob_store_unavailable"',
        "",
        _BUCKET,
    ),
    Fault(
        "a sweep removes contents whose file is about to come",
        "http/files/file_store.py",
        "if blob.modified <= before:",
        "if blob.modified >= before:",
        _FILES,
    ),
    Fault(
        "a host whose clock is fast removes contents whose file is about to come",
        "http/storage/blobs/blob_bucket.py",
        'return float(found["last_modified"].timestamp())',
        "return datetime.datetime.now(datetime.UTC).timestamp()",
        _FILES,
    ),
    Fault(
        "a sweep removes the contents of files",
        "http/files/file_store.py",
        "if file_id not in known]",
        "if file_id in known]",
        _FILES,
    ),
    Fault(
        "a sweep begins before anybody has looked whose bucket it is",
        "http/files/file_store.py",
        "        if not self._is_checked:\n            await self.check()\n",
        "",
        _FILES,
    ),
    Fault(
        "a copy that broke off is taken for whole",
        "http/storage/blobs/blob_copy.py",
        "if there.get(blob.name) == blob.size:",
        "if blob.name in there:",
        _STORES,
    ),
    Fault(
        "contents are stored of a form that is wrong at its end",
        "http/files/upload.py",
        "    form.check()\n",
        "",
        ("tests/http/files/test_files.py",),
    ),
    Fault(
        "contents are copied to a bucket of another database",
        "palladio/commands/migrate_storage.py",
        "        await bucket.check(identity)\n",
        "",
        ("tests/palladio/commands/test_migrate_storage.py",),
    ),
    Fault(
        "a line that a piece ends in is two lines",
        "http/batches/batch_lines.py",
        "        self._grow(rest)",
        "        self._grow(rest)\n        if self._begun:\n            yield self._take()",
        ("tests/http/batches/test_line_pieces.py",),
    ),
    Fault(
        "an interrupted check leaves an object for ever",
        "http/storage/blobs/blob_bucket.py",
        'self._obstore.put(self._store, PROBE, b""',
        'self._obstore.put(self._store, f"{PROBE}-{datetime.datetime.now().timestamp()}", b""',
        _BUCKET,
    ),
)
