"""What is kept for one user alone: a folder and the files in it, made so, and never reached through a link;
and folders to which every failure adds something, which are not to grow for ever."""

import contextlib
import logging
import os
import stat
from pathlib import Path
from typing import Final

from palladio.runtime.interface.errors import ConfigError

FOLDER_MODE, FILE_MODE = 0o700, 0o600

logger = logging.getLogger(__name__)
NUM_KEPT: Final = 20  # files of a kind


def make_folder(path: Path) -> None:
    """Make a folder and its parents if it does not exist. Follow links, since a user may name one.

    Raises:
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(FOLDER_MODE)  # whatever the umask took away


def make_folder_within(path: Path) -> None:
    """Makes a folder in one of ours, or takes a wider mode from the one that is there.

    Raises:
        ConfigError: it is a link, or no folder.
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=FOLDER_MODE)
    _check_kind(path, is_folder=True)
    _keep_private(path, FOLDER_MODE)


def open_file_within(path: Path, flags: int) -> int:
    """A descriptor of a file in one of our folders, made if it is not there, or closed to others if it was wider.

    Args:
        flags: more flags of os.open; those for a private file are always set.

    Raises:
        ConfigError: it is a link, or no file.
        OSError: it cannot be opened.
    """
    check_file_within(path)
    # O_NONBLOCK: a pipe that was put there since then would hold the start up.
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
    _keep_private(path, FILE_MODE)
    return descriptor


def check_file_within(path: Path) -> None:
    """
    Raises:
        ConfigError: there is such a name, and it is a link, or no file, or another user's.
    """
    _check_kind(path, is_folder=False)


def warn_of_others(path: Path, flag: str) -> None:
    """One line in the log if other users may write in a folder: they could put anything in the place of its files.

    Args:
        flag: that names the folder.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        logger.warning(
            "%s %s: other users can write to this folder (mode %04o) and replace its files; run `chmod go-w %s` to "
            "prevent that",
            flag,
            path,
            mode,
            path,
        )


def _check_kind(path: Path, *, is_folder: bool) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(
            f"{path} is a symbolic link, which this server does not follow: remove it, or set --file-storage-path "
            "to the folder it points to"
        )
    if stat.S_ISDIR(found.st_mode) != is_folder or not (is_folder or stat.S_ISREG(found.st_mode)):
        raise ConfigError(f"{path} is not a {'folder' if is_folder else 'file'}: move it, or use another folder")
    user = os.geteuid()
    if found.st_uid not in (user, 0) and user != 0:
        raise ConfigError(
            f"{path} belongs to another user (uid {found.st_uid}), who could read its contents: move it, or use "
            "another folder"
        )


def _keep_private(path: Path, mode: int) -> None:
    """What an earlier version made with a wider mode; what is somebody else's is left alone."""
    if stat.S_IMODE(path.lstat().st_mode) != mode:
        with contextlib.suppress(PermissionError):
            path.chmod(mode)


def sync_folder(folder: Path) -> None:
    """What was made or renamed in it outlives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_newest(folder: Path, pattern: str, count: int = NUM_KEPT) -> None:
    """Remove all files that match the pattern except the newest. Names begin with the time, so they sort by it."""
    for path in sorted(folder.glob(pattern))[:-count]:
        with contextlib.suppress(OSError):
            path.unlink()
            logger.info("Removed %s: only the newest %d files of this kind are kept", path, count)
