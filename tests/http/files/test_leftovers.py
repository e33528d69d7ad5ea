"""Contents that belong to no file, where another process of the same server may be writing some."""

import os

from palladio.http.files.file_store import INPUT_PREFIX, FileStore
from palladio.http.storage.object_lists import new_id
from palladio.http.storage.storage import Storage


async def test_what_is_younger_than_the_server_may_be_another_fronts_upload():
    storage = Storage.temporary()
    try:
        old, young = (storage.files / f"{new_id(INPUT_PREFIX)}.part" for _ in range(2))
        for path, changed in ((old, 1000.0), (young, 2000.0)):
            path.touch()
            os.utime(path, (changed, changed))
        await FileStore(storage.database, storage.files, before=1500.0).remove_leftovers()
        assert (old.exists(), young.exists()) == (False, True)
        await FileStore(storage.database, storage.files).remove_leftovers()
        assert not young.exists()
    finally:
        storage.close()
