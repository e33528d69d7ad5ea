"""Contents that belong to no file, while a file may be on its way."""

import os
from pathlib import Path

from palladio.http.files.file_store import INPUT_PREFIX, FileStore
from palladio.http.storage.records.object_lists import new_id
from palladio.http.storage.storage import Storage


async def test_what_is_younger_than_the_server_may_be_an_upload_under_way(tmp_path: Path):
    storage = Storage(tmp_path)
    try:
        begun = (tmp_path / "lock").stat().st_mtime
        old, young = (storage.files / new_id(INPUT_PREFIX) for _ in range(2))
        for path, changed in ((old, begun - 10.0), (young, begun + 10.0)):
            path.touch()
            os.utime(path, (changed, changed))
        await FileStore(storage.database, storage.blobs).remove_leftovers()
        assert (old.exists(), young.exists()) == (False, True)
    finally:
        storage.close()
