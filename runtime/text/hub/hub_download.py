"""Downloads from the hub: how much there is, how far it has come, and what is said where nothing may be downloaded."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import DryRunError, HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # public, but not in an __all__

from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.text.hub.hub_worker import Silent

OTHER_FORMS = ("original/*", "metal/*")  # of the same weights: patterns match in folders too
_WORKER = "palladio.runtime.text.hub.hub_worker"
_LOCK_SECONDS = 0.05  # to wait for another process that downloads the same file
_IDLE_SECONDS = 60.0  # without a byte, after which another process is not taken to write a file
_INTERVAL = 0.3  # seconds between two looks at what has arrived

OnProgress = Callable[[LoadProgress], None]


def _ignore(said: object) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Repository:
    """A repository on the hub, and the files of it that are wanted.

    Attributes:
        name: owner/name.
        revision: branch, tag or commit; None: the main one.
        cache_dir: None: the hub cache.
        files: patterns.
    """

    name: str
    revision: str | None
    cache_dir: str | None
    files: tuple[str, ...]

    @property
    def cache(self) -> Path:
        return hub_cache(self.cache_dir)

    @property
    def folder(self) -> Path:
        """Where its files are kept."""
        return self.cache / f"models--{self.name.replace('/', '--')}"


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        size: bytes.
        is_here: whether it is in the cache already.
    """

    name: str
    size: int
    is_here: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """What the hub has of a repository."""

    files: tuple[RemoteFile, ...]

    @property
    def total(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return any(file.name == name for file in self.files)

    @property
    def missing(self) -> int:
        """Bytes that are to be downloaded."""
        return sum(file.size for file in self.files if not file.is_here)


@dataclasses.dataclass(frozen=True, slots=True)
class DownloadListener:
    """What a download reports to, and what stops it.

    Attributes:
        on_progress: gets the bytes that have arrived.
        on_listing: gets, once, what the hub has.
        stop: is set, from another thread, when the files are not needed any more.
    """

    on_progress: OnProgress = _ignore
    on_listing: Callable[[Listing], None] = _ignore
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids downloads."""
    return bool(constants.HF_HUB_OFFLINE)


def hub_endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or Hugging Face's."""
    return str(constants.ENDPOINT)


def hub_cache(cache_dir: str | None = None) -> Path:
    """Where repositories are kept: HF_HUB_CACHE, or in HF_HOME.

    Args:
        cache_dir: --download-dir, if it is given.
    """
    return Path(cache_dir or constants.HF_HUB_CACHE).expanduser()


def find_snapshot(repository: Repository) -> Path:
    """The folder of its files that is in the cache.

    Raises:
        LocalEntryNotFoundError, OSError, ValueError: there is none.
    """
    return Path(snapshot_download(**_arguments(repository), local_files_only=True))


def list_files(repository: Repository) -> Listing:
    """Asks the hub.

    Raises:
        HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError: it has no such repository, or does not answer.
    """
    try:
        found = snapshot_download(**_arguments(repository), dry_run=True, tqdm_class=Silent)
    except DryRunError as error:
        cause = error.__cause__ or error
        if isinstance(cause, HfHubHTTPError):
            raise cause from None
        raise LocalEntryNotFoundError(f"{constants.ENDPOINT} cannot be reached: {cause}") from error
    return Listing(tuple(RemoteFile(file.filename, file.file_size or 0, file.is_cached) for file in found))


def download(repository: Repository, listener: DownloadListener) -> Path:
    """Download the files that are not in the cache, and return the folder of all.

    Files that were complete when an earlier download was cut short are not downloaded again. A connection that breaks
    is continued where it stopped.

    Raises:
        see list_files.
    """
    listing = list_files(repository)
    listener.on_listing(listing)
    if not listing.missing:
        return Path(snapshot_download(**_arguments(repository), tqdm_class=Silent))
    return fetch(repository, listing, listener.on_progress, listener.stop)


def fetch(repository: Repository, listing: Listing, on_progress: OnProgress, stop: threading.Event) -> Path:
    """Download in a process of its own, and report the bytes on the disk: the hub's own bars differ from version
    to version, and by protocol.

    Raises:
        OSError: it failed, or `stop` was set.
    """
    blobs, total, here = repository.folder / "blobs", listing.total, listing.total - listing.missing
    _remove_unfinished(repository)  # of processes that were killed: the new files need the room
    others = frozenset(_unfinished(repository))
    before = _size(blobs)
    on_progress(LoadProgress("download", here, total))
    code = f"import sys; sys.path[:] = {sys.path!r}; from {_WORKER} import main; main()"
    where = {"endpoint": hub_endpoint(), "cache_dir": str(repository.cache)}
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,  # not arguments, which `ps` shows: an address may hold a password
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to this process alone, which then ends the other
    )
    assert child.stdin is not None
    assert child.stdout is not None
    is_cut = True
    try:
        with contextlib.suppress(BrokenPipeError):  # it ended at once: what it says is read below
            child.stdin.write(json.dumps(_arguments(repository) | where).encode() + b"\n")
            child.stdin.flush()
        while child.poll() is None:
            if stop.wait(_INTERVAL):
                raise OSError("the download was stopped")
            on_progress(LoadProgress("download", min(here + max(0, _size(blobs) - before), total - 1), total))
        said = child.stdout.read()
        is_cut = False
    finally:
        child.terminate()  # unless it has ended
        child.wait()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        if is_cut:
            _remove_unfinished(repository, frozenset(_unfinished(repository)) - others)
    try:
        found = json.loads(said)
    except ValueError:
        raise OSError(f"the process that downloads ended with {child.returncode}") from None
    if "error" in found:
        raise OSError(found["error"])
    on_progress(LoadProgress("download", total, total))
    return Path(found["folder"])


def fetch_one(repository: Repository, name: str) -> Path:
    """Download one small file in this process, without progress reports.

    Raises:
        see list_files.
    """
    return Path(hf_hub_download(repository.name, name, revision=repository.revision, cache_dir=repository.cache_dir))


def cached_names(cache_dir: str | None = None) -> list[str]:
    """Repositories of which the cache has something."""
    with contextlib.suppress(OSError):
        folders = sorted(folder.name for folder in hub_cache(cache_dir).glob("models--*") if folder.is_dir())
        return [name.removeprefix("models--").replace("--", "/") for name in folders]
    return []


def _arguments(repository: Repository) -> dict[str, Any]:
    return {
        "repo_id": repository.name,
        "revision": repository.revision,
        "cache_dir": repository.cache_dir,
        "allow_patterns": list(repository.files),
        "ignore_patterns": list(OTHER_FORMS),
    }


def _unfinished(repository: Repository) -> Iterator[Path]:
    """Half-written files that the hub's client never continues: it continues those of its earlier versions alone, which
    are called HASH.incomplete."""
    return (repository.folder / "blobs").glob("*.*.incomplete")


def _remove_unfinished(repository: Repository, own: Collection[Path] = ()) -> None:
    """Removes half-written files that no process writes any more.

    Others than `own` must have been idle for a minute: on some shared file systems, locks have no effect.

    Args:
        own: came while a download of this process ran, which has ended.
    """
    locks = repository.cache / ".locks" / repository.folder.name  # as the hub's client names them
    for file in _unfinished(repository):
        lock = locks / f"{file.name.partition('.')[0]}.lock"
        with contextlib.suppress(OSError), WeakFileLock(lock, timeout=_LOCK_SECONDS):
            if file in own or time.time() - file.stat().st_mtime >= _IDLE_SECONDS:
                file.unlink()


def _size(folder: Path) -> int:
    size = 0
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            with contextlib.suppress(OSError):  # it has just got its name
                size += file.stat().st_size
    return size
