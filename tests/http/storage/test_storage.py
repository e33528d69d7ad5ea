"""Storage: who may read what it keeps."""

import asyncio
import concurrent.futures
import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.http.files.file_store import INPUT_PREFIX
from palladio.http.storage.records.object_lists import new_id
from palladio.http.storage.storage import Storage
from palladio.runtime.interface.errors import ConfigError
from palladio.server.launch import _storage_path
from tests.http.storage.blobs.pieces import one_piece


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
    asyncio.run(storage.blobs.put(new_id(INPUT_PREFIX), one_piece(b"x")))
    found = {path.name: mode(path) for path in folder.glob("palladio.db*")}
    assert found == dict.fromkeys(("palladio.db", "palladio.db-wal", "palladio.db-shm"), 0o600)
    storage.close()


def test_an_odd_umask_leaves_the_owner_in(tmp_path: Path) -> None:
    os.umask(0o277)
    storage = Storage(tmp_path / "storage")
    assert mode(storage.folder) == mode(storage.files) == 0o700
    assert mode(storage.folder / "lock") == mode(storage.folder / "palladio.db") == 0o600
    storage.close()


def test_the_lock_is_its_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    folder.mkdir()
    (folder / "lock").touch(mode=0o644)  # as an earlier version made it: others could open it, and hold it
    with contextlib.closing(Storage(folder)):
        assert mode(folder / "lock") == 0o600
        with pytest.raises(ConfigError, match="is in use by another server"):
            Storage(folder)
    Storage(folder).close()


@pytest.mark.parametrize("is_dangling", [False, True])
@pytest.mark.parametrize(
    "name", ["lock", "palladio.db", "palladio.db-wal", "palladio.db-shm", "palladio.db-journal", "files"]
)
def test_links_within_the_folder_are_not_followed(tmp_path: Path, name: str, is_dangling: bool) -> None:
    folder, elsewhere = tmp_path / "storage", tmp_path / "elsewhere"
    folder.mkdir()
    if not is_dangling:
        elsewhere.mkdir(mode=0o755) if name == "files" else elsewhere.touch(mode=0o644)
    (folder / name).symlink_to(elsewhere)
    before = elsewhere.lstat() if elsewhere.exists() else None
    with pytest.raises(ConfigError, match=rf"{folder / name} is a symbolic link.*: remove it, or"):
        Storage(folder)
    assert elsewhere.exists() == (not is_dangling)
    if before is not None:
        assert (elsewhere.lstat().st_mode, elsewhere.lstat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    (folder / name).unlink()
    Storage(folder).close()  # nothing is held by the one that was refused


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "storage").symlink_to(tmp_path / "disk")
    Storage(tmp_path / "storage").close()
    assert (tmp_path / "disk" / "palladio.db").is_file()


@pytest.mark.parametrize("name", ["lock", "palladio.db", "files"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=rf"{name} is not a (file|folder): move it"):
        Storage(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["lock", "palladio.db"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).touch(mode=0o666)
    os.chown(tmp_path / name, 4321, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(ConfigError, match=rf"{name} belongs to another user \(uid 4321\)"):
        Storage(tmp_path)


@pytest.mark.parametrize(("given", "is_told"), [(0o700, False), (0o755, False), (0o775, True), (0o777, True)])
def test_a_folder_that_others_may_write_is_told(
    tmp_path: Path, given: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "storage"
    folder.mkdir()
    folder.chmod(given)
    Storage(folder).close()
    assert mode(folder) == given
    told = [message for message in caplog.messages if "other users can write to this folder" in message]
    assert [f"--file-storage-path {folder}" in message for message in told] == [True] * is_told


def test_the_launchers_own_folder_is_its_users_alone(tmp_path: Path) -> None:
    environment = {"PALLADIO_DATA_DIR": str(tmp_path / "data")}
    for number, before in ((1, None), (2, 0o755)):
        if before is not None:  # as an earlier version made it
            (tmp_path / "data" / "storage" / str(number)).mkdir(mode=before)
        folder = _storage_path(environment, number)
        assert folder is not None
        assert mode(Path(folder)) == 0o700


def test_contents_are_their_users_alone(tmp_path: Path) -> None:
    with contextlib.closing(Storage(tmp_path / "storage")) as storage:
        name = new_id(INPUT_PREFIX)
        assert asyncio.run(storage.blobs.put(name, one_piece(b"x"))) == 1
        assert mode(storage.files / name) == 0o600


def test_a_temporary_one_is_removed_when_its_database_has_ended() -> None:
    storage, begun = Storage.temporary(), threading.Event()

    def work(_: sqlite3.Connection) -> bool:
        begun.set()
        time.sleep(0.2)
        return storage.folder.exists()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        found = thread.submit(asyncio.run, storage.database.run(work))
        begun.wait()
        storage.close()
        assert found.result()
    assert not storage.folder.exists()
