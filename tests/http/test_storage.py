"""Storage: who may read what it keeps."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.http.files.file_store import INPUT_PREFIX, FileStore
from palladio.http.storage import Storage


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The usual one, whatever whoever runs this has."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_that_is_made_here_is_its_users_alone(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "new" / "storage")
    assert mode(storage.folder) == mode(storage.files) == 0o700
    storage.close()


def test_a_folder_that_was_there_keeps_its_mode_and_hides_what_is_kept_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    folder.mkdir(mode=0o755)
    for name in ("palladio.db", "palladio.db-wal", "palladio.db-shm"):  # as an earlier version left them
        (folder / name).touch(mode=0o644)
    (folder / "files").mkdir(mode=0o755)
    storage = Storage(folder)
    assert (mode(folder), mode(storage.files)) == (0o755, 0o700)
    new = FileStore(storage.database, storage.files).new(INPUT_PREFIX)
    new.seal()
    found = {path.name: mode(path) for path in folder.glob("palladio.db*")}
    assert found == dict.fromkeys(("palladio.db", "palladio.db-wal", "palladio.db-shm"), 0o600)
    storage.close()
