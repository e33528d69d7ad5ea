"""BucketBlobs: contents as objects of a bucket (--blob-store), which servers on several hosts share."""

import asyncio
import contextlib
import datetime
import itertools
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable
from typing import Any

from palladio.http.storage.blob_store import NAME, Blob
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import ConfigError

OWNER = "palladio-database"  # the object that names the database which the other objects belong to
SETTLING = 24 * 3600.0  # seconds from the beginning of an upload within which its file is in the database

_RANGE = 2 << 20  # bytes that are read at a time
_PART = 5 << 20  # bytes of a part of an upload: the least that stores take; they take 10,000 parts at most
_MAX_PARTS = 10_000
_IN_FLIGHT = 2  # parts of an upload that are sent at the same time
_LISTED = 1000  # objects of one request
_CONNECT_TIMEOUT, _TIMEOUT = 5.0, 60.0  # seconds, of one request
_RETRIES, _RETRY_TIMEOUT = 3, 20.0  # of a request; a batch waits and tries again by itself
_SWEEP_INTERVAL = 3600.0  # seconds
_REASON = re.compile(r"<Code>(?P<code>[^<]{1,100})</Code>\s*(?:<Message>(?P<message>[^<]{1,300})</Message>)?")

UNAVAILABLE = ErrorBody(
    503,
    "--blob-store cannot be used at the moment: see the server's log, and send the request again later",
    code="blob_store_unavailable",
)

logger = logging.getLogger(__name__)


class BucketBlobs:
    """A BlobStore. An object is there when all of it is: a small one is sent at once, a larger one in parts, which
    become an object at the end.

    Contents are read in ranges, one request each: a batch reads its input for hours, and a client its file as slowly
    as it likes, which no store would keep a connection open for; and no host needs a disk for copies.

    Args:
        store: of obstore; names are relative to the prefix that it was made with.
        url: as it is shown to operators.
        max_bytes: of contents that are uploaded, for the size of their parts.
    """

    sweep_interval = _SWEEP_INTERVAL

    def __init__(self, store: Any, obstore: Any, url: str, max_bytes: int) -> None:
        self._store = store
        self._obstore = obstore
        self._url = url
        self._part = max(_PART, -(-max_bytes // (_MAX_PARTS // 2)))

    @property
    def settled_before(self) -> float:
        return time.time() - SETTLING

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> int:
        parts = _in_parts(pieces, self._part)
        async with contextlib.aclosing(parts):
            first = await anext(parts, b"")
            if len(first) < self._part:
                with self._errors(missing=True):
                    await self._whole(self._obstore.put_async(self._store, name, first, use_multipart=False), name)
                return len(first)
            return await self._put_parts(name, first, parts)

    async def _put_parts(self, name: str, part: bytes, parts: AsyncGenerator[bytes, None]) -> int:
        """The parts are asked for here, not by the upload, and the upload ends by itself: nobody may cancel it, or
        its parts would stay in the bucket."""
        size, feed = 0, _Feed()
        sent = self._obstore.put_async(
            self._store, name, feed, use_multipart=True, chunk_size=self._part, max_concurrency=_IN_FLIGHT
        )
        upload = asyncio.ensure_future(sent)
        try:
            while part:
                size += len(part)
                await feed.give(part, upload)
                part = b"" if upload.done() else await anext(parts, b"")
            feed.end()
            with self._errors(missing=True):
                await asyncio.shield(upload)
        except BaseException:
            feed.break_off()
            await asyncio.shield(self._abandon(upload, name))
            raise
        return size

    async def _whole(self, sent: Any, name: str) -> None:
        """Waits until an object is stored; if the caller is cancelled meanwhile, the object is deleted."""
        upload = asyncio.ensure_future(sent)
        try:
            await asyncio.shield(upload)
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(upload, name))
            raise

    async def _abandon(self, upload: asyncio.Future[Any], name: str) -> None:
        """Waits until an upload has ended, and deletes its object, if it has become one after all."""
        await asyncio.wait([upload])
        if upload.exception() is None:
            await self.delete([name])

    async def read(self, name: str) -> AsyncGenerator[bytes, None]:
        size = await self.size(name)
        if size is None:
            raise FileNotFoundError(f"{self._url}: no object {name}")
        for begin in range(0, size, _RANGE):
            length = min(_RANGE, size - begin)
            try:
                with self._errors():
                    piece = await self._obstore.get_range_async(self._store, name, start=begin, length=length)
            except FileNotFoundError:
                await self._check_bucket()
                raise
            yield bytes(piece)

    async def delete(self, names: Iterable[str]) -> None:
        """What cannot be deleted now is left to the sweep."""
        for some in _pages(names):
            try:
                with self._errors():
                    await self._obstore.delete_async(self._store, some)
            except FileNotFoundError:
                pass
            except HttpError:
                logger.warning("%d objects in %s are deleted later", len(some), self._url)

    async def size(self, name: str) -> int | None:
        try:
            with self._errors():
                return int((await self._obstore.head_async(self._store, name))["size"])
        except FileNotFoundError:
            await self._check_bucket()
            return None

    async def scan(self) -> AsyncGenerator[Blob, None]:
        with self._errors(missing=True):
            async for some in self._obstore.list(self._store, chunk_size=_LISTED):
                for one in some:
                    name = one["path"]
                    if NAME.fullmatch(name):
                        yield Blob(name, one["size"], one["last_modified"].timestamp())

    async def _check_bucket(self) -> None:
        """A bucket that is gone answers as one that lacks the object."""
        with self._errors(missing=True):
            async for _ in self._obstore.list(self._store, chunk_size=1):
                return

    @contextlib.contextmanager
    def _errors(self, *, missing: bool = False) -> Generator[None, None, None]:
        """Raises HttpError for what the store raises. Args: missing: for FileNotFoundError as well, that is raised for
        an object and for the whole bucket."""
        try:
            yield
        except (self._obstore.exceptions.BaseError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and not missing:
                raise
            logger.error("--blob-store %s cannot be used: %s", self._url, describe(error))
            raise HttpError(UNAVAILABLE) from None

    async def check(self, identity: str) -> None:
        """Looks whether objects can be read, written, listed and deleted, and whose they are."""
        probe = f"palladio-check-{secrets.token_hex(8)}"
        step = "be read"
        try:
            found = await self._owner()
            step = "be written"
            if found is None:
                await self._obstore.put_async(self._store, OWNER, identity.encode(), use_multipart=False)
                found = await self._owner()
            await self._obstore.put_async(self._store, probe, b"", use_multipart=False)
            step = "have objects deleted"
            await self._obstore.delete_async(self._store, probe)
            step = "be listed"
            async for _ in self._obstore.list(self._store, chunk_size=1):
                break
        except (self._obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise ConfigError(f"--blob-store {self._url} cannot {step}: {describe(error)}; {_hint(error)}") from None
        if found != identity:
            raise ConfigError(
                f"--blob-store {self._url} holds the files of another database: give each database a prefix of its "
                f"own, or delete the object {OWNER} there if that database is gone for good"
            )

    async def _owner(self) -> str | None:
        try:
            found = await self._obstore.get_async(self._store, OWNER)
            return bytes(await found.bytes_async()).decode("utf-8", "replace")
        except FileNotFoundError:
            return None


class _BrokenOffError(Exception):
    """What an upload that is not to end gets in the place of a part: it deletes those that it has sent."""


class _Feed:
    """Hands parts to an upload, one at a time."""

    def __init__(self) -> None:
        self._part = b""
        self._is_ended = self._is_broken = False
        self._given, self._taken = asyncio.Event(), asyncio.Event()

    async def give(self, part: bytes, upload: asyncio.Future[Any]) -> None:
        """Waits until the upload takes the part, or has failed."""
        self._part = part
        self._taken.clear()
        self._given.set()
        taken = asyncio.ensure_future(self._taken.wait())
        try:
            await asyncio.wait([taken, upload], return_when=asyncio.FIRST_COMPLETED)
        finally:
            taken.cancel()

    def end(self) -> None:
        """All parts have been given."""
        self._is_ended = True
        self._given.set()

    def break_off(self) -> None:
        self._is_broken = True
        self._given.set()

    def __aiter__(self) -> "_Feed":
        return self

    async def __anext__(self) -> bytes:
        await self._given.wait()
        if self._is_broken:
            raise _BrokenOffError
        if self._is_ended:
            raise StopAsyncIteration
        part, self._part = self._part, b""
        self._given.clear()
        self._taken.set()
        return part


def open_bucket(url: str, max_bytes: int) -> BucketBlobs:
    """Asks the store nothing yet. Where it is and with which credentials, the library reads from the environment, so
    that no secret is ever in the server's configuration.

    Args:
        url: of --blob-store. max_bytes: as BucketBlobs has it.

    Raises:
        ConfigError: the library is not installed, or what it finds is none of a store's; the message names the fix.
    """
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise ConfigError(
            f"--blob-store needs obstore ({error}): pip install 'palladio-serve[object-store]'"
        ) from error
    try:
        store = obstore.store.from_url(
            url,
            client_options={
                "allow_http": True,  # where the endpoint says so
                "connect_timeout": datetime.timedelta(seconds=_CONNECT_TIMEOUT),
                "timeout": datetime.timedelta(seconds=_TIMEOUT),
            },
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": datetime.timedelta(seconds=_RETRY_TIMEOUT),
                "backoff": {"max_backoff": datetime.timedelta(seconds=2)},
            },
        )
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"--blob-store {url}: {describe(error)}; {_hint(error)}") from None
    return BucketBlobs(store, obstore, url, max_bytes)


def describe(error: Exception) -> str:
    """What a store says in its answer, or what happened to the request, in one line without its address."""
    text = str(error)
    found = _REASON.search(text)
    if found is not None:
        return ": ".join(filter(None, (found["code"], found["message"])))
    return re.sub(r"\s+", " ", text.partition("\n")[0])[:300].rstrip(": ") or type(error).__name__


def _hint(error: Exception) -> str:
    text = str(error)
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
        return "make the bucket, or correct its name"
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or "AccessDenied" in text:
        return "check the credentials in the environment (such as AWS_ACCESS_KEY_ID) and what they may do there"
    return "check where it is (such as AWS_ENDPOINT_URL and AWS_REGION in the environment) and that it answers"


async def _in_parts(pieces: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """The same bytes in parts of this size; only the last one may be shorter."""
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)


def _pages(names: Iterable[str]) -> Generator[list[str], None, None]:
    rest = iter(names)
    while some := list(itertools.islice(rest, _LISTED)):
        yield some
