"""Contents that belong to no file, where another front process of the same server may be writing some."""

import os
from pathlib import Path

from palladio.http.files.file_store import INPUT_PREFIX, FileStore
from palladio.http.storage.object_lists import new_id
from palladio.http.storage.storage import Storage


async def test_what_is_younger_than_the_server_may_be_another_fronts_upload(tmp_path: Path):
    parent = Storage(tmp_path)
    front = Storage(tmp_path, is_held=True)
    try:
        begun = (tmp_path / "lock").stat().st_mtime
        old, young = (parent.files / new_id(INPUT_PREFIX) for _ in range(2))
        for path, changed in ((old, begun - 10.0), (young, begun + 10.0)):
            path.touch()
            os.utime(path, (changed, changed))
        await FileStore(front.database, front.blobs).remove_leftovers()
        assert (old.exists(), young.exists()) == (False, True)
    finally:
        front.close()
        parent.close()
