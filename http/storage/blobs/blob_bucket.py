"""BucketBlobs: contents as objects of a bucket (--blob-store), which servers on several hosts share."""

import asyncio
import concurrent.futures
import contextlib
import datetime
import itertools
import logging
import math
import queue
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from palladio.http.storage.blobs.blob_store import NAME, Blob
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import ConfigError

T = TypeVar("T")

OWNER = "palladio-database"  # the object that names the database which the other objects belong to
# Each start and each sweep writes and deletes it: what a kill between the two leaves, the next one deletes.
PROBE = "palladio-check"
SETTLING = 24 * 3600.0  # seconds from the beginning of an upload within which its file is in the database

_RANGE = 2 << 20  # bytes that are read at a time
_PART = 5 << 20  # bytes of a part of an upload: the least that stores take; they take 10,000 parts at most
_MAX_PARTS = 10_000
_IN_FLIGHT = 2  # parts of an upload that are sent at the same time
_MAX_THREADS = 256  # there are as many as requests have been under way at a time
_LISTED = 1000  # objects of one request
_CONNECT_TIMEOUT, _TIMEOUT = 5.0, 60.0  # seconds, of one request
_READ_TIMEOUT = 20.0  # seconds that a store may be silent
_RETRIES, _RETRY_TIMEOUT = 3, 20.0  # of a request; a batch waits and tries again by itself
_SWEEP_INTERVAL = 3600.0  # seconds
_REASON = re.compile(r"<Code>(?P<code>[^<]{1,100})</Code>\s*(?:<Message>(?P<message>[^<]{1,300})</Message>)?")
_CAUSE = re.compile(r'message: "([^"]{1,200})"')
# Where the environment has no credentials, the host that a cloud gives its machines theirs from is asked.
_ASKED_WHO = re.compile(r"AccessDenied|AccessKey|[Cc]redential|169\.254\.169\.254")
_VARIABLES = {  # of the environment: who asks, and where
    "s3": ("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL and AWS_REGION"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_NAME"),
}

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

    Every request has a thread, in which the library waits. Its own threads, of its asynchronous calls, end the process
    with SIGABRT if Python ends while they hand over a result.

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
        self._threads = concurrent.futures.ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="blob-store")

    async def settled_before(self) -> float:
        return await self._begin(self._now) - SETTLING

    def _now(self) -> float:
        """By an object that is written now: a host whose clock is fast would take uploads of others for old ones."""
        with self._errors(missing=True):
            self._put_probe()
        try:
            with self._errors():
                found = self._obstore.head(self._store, PROBE)
        except FileNotFoundError:  # another server does the same at this moment: it sweeps
            return -math.inf
        self._delete([PROBE])
        return float(found["last_modified"].timestamp())

    def _put_probe(self) -> None:
        self._obstore.put(self._store, PROBE, b"", use_multipart=False)

    async def check(self, identity: str) -> None:
        await self._begin(self._check, identity)

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> int:
        parts = _in_parts(pieces, self._part)
        async with contextlib.aclosing(parts):
            first = await anext(parts, b"")
            if len(first) < self._part:
                await self._send(self._begin(self._put, name, first), name)
                return len(first)
            return await self._put_parts(name, first, parts)

    async def _put_parts(self, name: str, part: bytes, parts: AsyncGenerator[bytes, None]) -> int:
        """Upload in parts. A cancelled caller still ends the upload, whose parts would stay in the bucket otherwise."""
        size, feed = 0, _Feed(asyncio.get_running_loop())
        upload = self._begin(self._put, name, feed)
        try:
            while part:
                size += len(part)
                await feed.give(part, upload)
                part = b"" if upload.done() else await anext(parts, b"")
        except BaseException:
            feed.break_off()
            await asyncio.shield(self._abandon(upload, name))
            raise
        feed.end()
        await self._send(upload, name)
        return size

    def _put(self, name: str, contents: "bytes | _Feed") -> None:
        is_whole = isinstance(contents, bytes)
        options = {} if is_whole else {"chunk_size": self._part, "max_concurrency": _IN_FLIGHT}
        with self._errors(missing=True):
            self._obstore.put(self._store, name, contents, use_multipart=not is_whole, **options)

    async def _send(self, upload: asyncio.Future[None], name: str) -> None:
        """Waits until an object is stored; if the caller is cancelled meanwhile, the object is deleted."""
        try:
            await asyncio.shield(upload)
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(upload, name))
            raise

    async def _abandon(self, upload: asyncio.Future[None], name: str) -> None:
        """Waits until an upload has ended, and deletes its object, if it has become one after all."""
        await asyncio.wait([upload])
        if upload.exception() is None:
            await self.delete([name])

    async def read(self, name: str) -> AsyncGenerator[bytes, None]:
        size = await self._begin(self._size, name)
        if size is None:
            raise FileNotFoundError(f"{self._url}: no object {name}")
        for begin in range(0, size, _RANGE):
            yield await self._begin(self._range, name, begin, min(_RANGE, size - begin))

    def _range(self, name: str, begin: int, length: int) -> bytes:
        try:
            with self._errors():
                return bytes(self._obstore.get_range(self._store, name, start=begin, length=length))
        except FileNotFoundError:
            self._look_for_bucket()
            raise

    async def delete(self, names: Iterable[str]) -> None:
        """What cannot be deleted now is left to the sweep."""
        for some in _pages(names):
            try:
                await self._begin(self._delete, some)
            except HttpError:
                logger.warning("%d objects in %s are deleted later", len(some), self._url)

    def _delete(self, names: list[str]) -> None:
        with contextlib.suppress(FileNotFoundError), self._errors():
            self._obstore.delete(self._store, names)

    def _size(self, name: str) -> int | None:
        try:
            with self._errors():
                return int(self._obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            self._look_for_bucket()
            return None

    async def scan(self) -> AsyncGenerator[Blob, None]:
        pages = iter(self._obstore.list(self._store, chunk_size=_LISTED))
        while some := await self._begin(self._next_page, pages):
            for one in some:
                if NAME.fullmatch(one["path"]):
                    yield Blob(one["path"], one["size"], one["last_modified"].timestamp())

    def _next_page(self, pages: Iterator[Any]) -> Sequence[Any]:
        with self._errors(missing=True):
            return next(pages, ())

    def _look_for_bucket(self) -> None:
        """One that is gone answers as one that lacks the object."""
        self._next_page(iter(self._obstore.list(self._store, chunk_size=1)))

    def _begin(self, work: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        """In a thread, which goes on if the caller is cancelled."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    @contextlib.contextmanager
    def _errors(self, *, missing: bool = False) -> Generator[None, None, None]:
        """Raise HttpError for errors of the store.

        Args:
            missing: for FileNotFoundError as well, which a missing object and a missing bucket raise.
        """
        try:
            yield
        except (self._obstore.exceptions.BaseError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and not missing:
                raise
            logger.error("--blob-store %s cannot be used: %s", self._url, describe(error))
            raise HttpError(UNAVAILABLE) from None

    def _check(self, identity: str) -> None:
        """Looks whether objects can be read, written, listed and deleted, and whose they are."""
        step = "be read"
        try:
            found = self._owner()
            step = "be written"
            if found is None:
                self._obstore.put(self._store, OWNER, identity.encode(), use_multipart=False)
                found = self._owner()
            self._put_probe()
            step = "have objects deleted"
            with contextlib.suppress(FileNotFoundError):  # by another server that starts
                self._obstore.delete(self._store, PROBE)
            step = "be listed"
            next(iter(self._obstore.list(self._store, chunk_size=1)), None)
        except (self._obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise ConfigError(
                f"--blob-store {self._url} cannot {step}: {describe(error)}; {_hint(self._url, error)}"
            ) from None
        if found != identity:
            raise ConfigError(
                f"--blob-store {self._url} holds the files of another database: give each database a prefix of its "
                f"own, or delete the object {OWNER} there if that database is gone for good"
            )

    def _owner(self) -> str | None:
        try:
            return bytes(self._obstore.get(self._store, OWNER).bytes()).decode("utf-8", "replace")
        except FileNotFoundError:
            return None


class _BrokenOffError(Exception):
    """Given to an aborted upload in place of a part: the upload deletes the parts that it has sent."""


class _Feed:
    """Hands parts to an upload in another thread, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parts = queue.SimpleQueue[bytes | None]()
        self._taken = asyncio.Event()

    async def give(self, part: bytes, upload: asyncio.Future[None]) -> None:
        """Waits until the upload takes the part, or has failed."""
        self._taken.clear()
        self._parts.put(part)
        taken = asyncio.ensure_future(self._taken.wait())
        try:
            both: tuple[asyncio.Future[Any], ...] = (taken, upload)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            taken.cancel()

    def end(self) -> None:
        """All parts have been given."""
        self._parts.put(b"")

    def break_off(self) -> None:
        self._parts.put(None)

    def __iter__(self) -> "_Feed":
        return self

    def __next__(self) -> bytes:
        """In the upload's thread."""
        part = self._parts.get()
        if part is None:
            raise _BrokenOffError
        if not part:
            raise StopIteration
        self._loop.call_soon_threadsafe(self._taken.set)
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
            f"--blob-store needs obstore: run `pip install '.[object-store]'` in Palladio's repository ({error})"
        ) from error
    try:
        store = obstore.store.from_url(
            url,
            client_options={
                "allow_http": True,  # where the endpoint says so
                "connect_timeout": datetime.timedelta(seconds=_CONNECT_TIMEOUT),
                "timeout": datetime.timedelta(seconds=_TIMEOUT),
                "read_timeout": datetime.timedelta(seconds=_READ_TIMEOUT),
            },
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": datetime.timedelta(seconds=_RETRY_TIMEOUT),
                "backoff": {"max_backoff": datetime.timedelta(seconds=2)},
            },
        )
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"--blob-store {url}: {describe(error)}; {_hint(url, error)}") from None
    return BucketBlobs(store, obstore, url, max_bytes)


def describe(error: Exception) -> str:
    """What a store says in its answer, or what happened to the request, in one line without its address, which may
    have a password in it."""
    text = str(error)
    found = _REASON.search(text)
    if found is not None:
        return ": ".join(filter(None, (found["code"], found["message"])))
    first, _, details = text.partition("\n")
    reason = re.sub(r"\s+", " ", first.rpartition(" - ")[2]).strip().rstrip(":") or type(error).__name__
    causes = _CAUSE.findall(details)
    return f"{reason} ({causes[-1]})" if causes else reason[:300]


def _hint(url: str, error: Exception) -> str:
    text, (who, where) = str(error), _VARIABLES[url.partition(":")[0]]
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
        return "make the bucket, or correct its name"
    if "TimeTooSkewed" in text:
        return "set this host's clock"
    is_denied = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
    if is_denied or _ASKED_WHO.search(text):
        return f"check the credentials in the environment ({who}) and what they may do there"
    return f"check {where} in the environment, and that it answers"


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
