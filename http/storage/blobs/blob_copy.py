"""copy_blobs: all contents of one BlobStore into another, such as of a folder into a bucket."""

import contextlib
import dataclasses

from palladio.http.storage.blobs.blob_store import BlobStore


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """Attributes:
    num_copied, num_bytes: of this call. num_there: contents that the target had already.
    """

    num_copied: int
    num_bytes: int
    num_there: int


async def copy_blobs(source: BlobStore, target: BlobStore) -> Copied:
    """Copies what the target does not have yet, so a call that broke off is gone on with by another. No server uses
    either meanwhile. The source stays as it is.

    Raises:
        OSError, HttpError: one of them cannot be used.
    """
    there, unfinished = dict[str, int](), list[str]()
    async with contextlib.aclosing(target.scan()) as blobs:
        async for blob in blobs:
            if blob.is_whole:
                there[blob.name] = blob.size
            else:
                unfinished.append(blob.name)
    await target.delete(unfinished)
    num_copied = num_bytes = num_there = 0
    async with contextlib.aclosing(source.scan()) as blobs:
        async for blob in blobs:
            if not blob.is_whole:
                continue
            if there.get(blob.name) == blob.size:
                num_there += 1
                continue
            async with contextlib.aclosing(source.read(blob.name)) as pieces:
                num_bytes += await target.put(blob.name, pieces)
            num_copied += 1
    return Copied(num_copied, num_bytes, num_there)
