"""Contents in pieces, and what a BlobStore has."""

from collections.abc import AsyncGenerator, Iterable

from palladio.http.storage.blobs.blob_store import Blob, BlobStore


async def one_piece(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content


async def in_pieces(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


async def read_all(blobs: BlobStore, name: str) -> bytes:
    return b"".join([piece async for piece in blobs.read(name)])


async def scan(blobs: BlobStore) -> dict[str, Blob]:
    return {blob.name: blob async for blob in blobs.scan()}
