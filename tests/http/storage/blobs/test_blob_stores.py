"""What every BlobStore promises, tried on a folder and on a bucket in memory; and copies between the two."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import obstore
import pytest

from palladio.http.storage.blobs import blob_bucket
from palladio.http.storage.blobs.blob_copy import Copied, copy_blobs
from palladio.http.storage.blobs.blob_folder import FolderBlobs
from palladio.http.storage.blobs.blob_store import UNFINISHED, BlobStore
from palladio.http.storage.records.object_lists import new_id
from tests.http.storage.blobs.memory_bucket import MemoryBucket
from tests.http.storage.blobs.pieces import in_pieces, one_piece, read_all, scan

PREFIX = "backend_input_file-"
SIZES = ((), (0,), (1,), (999, 1), (1000,), (1001,), (10, 4000, 0, 77), (300,) * 20)


@pytest.fixture(params=["folder", "bucket"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    monkeypatch.setattr(blob_bucket, "_RANGE", 700)
    return FolderBlobs(tmp_path, time.time() - 60) if request.param == "folder" else MemoryBucket()


@pytest.mark.parametrize("sizes", SIZES)
async def test_every_byte_comes_back(blobs: BlobStore, sizes: tuple[int, ...]) -> None:
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    name = new_id(PREFIX)
    assert await blobs.put(name, in_pieces(pieces)) == sum(sizes)
    assert await read_all(blobs, name) == b"".join(pieces)
    (found,) = (await scan(blobs)).values()
    assert (found.name, found.size, found.is_whole) == (name, sum(sizes), True)
    assert found.modified > await blobs.settled_before()


@pytest.mark.parametrize("before", [0, 500, 5000])
async def test_contents_that_break_off_leave_nothing(blobs: BlobStore, before: int) -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        for _ in range(before // 100):
            yield b"x" * 100
        raise ValueError("the client went away")

    with pytest.raises(ValueError, match="went away"):
        await blobs.put(new_id(PREFIX), failing())
    assert await scan(blobs) == {}


@pytest.mark.parametrize("before", [0, 500, 5000])
async def test_contents_whose_upload_is_cancelled_leave_nothing(blobs: BlobStore, before: int) -> None:
    reached = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        for _ in range(before // 100):
            yield b"x" * 100
        reached.set()
        await asyncio.sleep(60)
        yield b"x"

    upload = asyncio.create_task(blobs.put(new_id(PREFIX), endless()))
    await reached.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await scan(blobs) == {}


async def test_deleted_contents_are_gone_and_others_stay(blobs: BlobStore) -> None:
    names = [new_id(PREFIX) for _ in range(3)]
    for name in names:
        await blobs.put(name, one_piece(b"x"))
    await blobs.delete([*names[:2], new_id(PREFIX)])
    assert set(await scan(blobs)) == {names[2]}
    with pytest.raises(FileNotFoundError):
        await anext(blobs.read(names[0]))
    assert await read_all(blobs, names[2]) == b"x"


async def test_what_is_not_ours_is_not_seen(blobs: BlobStore, tmp_path: Path) -> None:
    name = new_id(PREFIX)
    for other in ("notes.txt", f"{name}.bak", f"x/{name}", "palladio-database"):
        if isinstance(blobs, MemoryBucket):
            obstore.put(blobs.memory, other, b"x")
        else:
            (tmp_path / other).parent.mkdir(exist_ok=True)
            (tmp_path / other).write_bytes(b"x")
    assert await scan(blobs) == {}


async def test_a_copy_that_broke_off_is_gone_on_with(blobs: BlobStore, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = MemoryBucket() if isinstance(blobs, FolderBlobs) else FolderBlobs(folder, time.time())
    names = [new_id(PREFIX) for _ in range(5)]
    for number, name in enumerate(names):
        await blobs.put(name, one_piece(b"x" * 1500 * number))
    if isinstance(blobs, FolderBlobs):
        (tmp_path / f"{new_id(PREFIX)}{UNFINISHED}").write_bytes(b"of a crash")
    else:
        (folder / f"{names[3]}{UNFINISHED}").write_bytes(b"of the copy that broke off")
    await other.put(names[1], blobs.read(names[1]))
    await other.put(names[2], one_piece(b"too short"))
    assert await copy_blobs(blobs, other) == Copied(num_copied=4, num_bytes=1500 * 9, num_there=1)
    assert await copy_blobs(blobs, other) == Copied(num_copied=0, num_bytes=0, num_there=5)
    assert {name: await read_all(other, name) for name in await scan(other)} == {
        name: b"x" * 1500 * number for number, name in enumerate(names)
    }
