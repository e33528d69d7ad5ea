"""Files that belong to a model's folder: regular files inside it, or inside the hub cache that it is part of.

A folder may come from a stranger (git clone and tar keep links), and the server reads it with its own rights.
"""

import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from palladio.model.base.errors import CheckpointError

_REPOSITORY: Final = "models--"  # begins the name of a repository's folder in the hub cache
_BLOBS, _SNAPSHOTS = "blobs", "snapshots"


def find_file(folder: Path, name: str) -> Path | None:
    """Find a file of a folder by its name below it; None: there is none.

    Args:
        name: checked as well, since another file of the folder may give it.

    Raises:
        CheckpointError: the name leads out of the folder, or is no name; see `check_file`.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise CheckpointError(f"{folder} names a file {name[:200]!r}, which is no path below it")
    file = folder.joinpath(*parts)
    return file if check_file(folder, file) else None


def find_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match, sorted by name.

    Raises:
        CheckpointError: see `check_file`.
    """
    return [file for file in sorted(folder.glob(pattern)) if check_file(folder, file)]


def check_file(folder: Path, file: Path) -> bool:
    """Check that a file may be read; False: there is no such file, or it is a link that leads nowhere.

    Raises:
        CheckpointError: it is no regular file, which may have no end, or it lies elsewhere.
    """
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"cannot read {str(file)[:500]}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{file} is {_kind(mode)}, not a regular file: remove it, or download the model again")
    if not _belongs(folder, file) and not _is_blob(file.resolve()):
        raise CheckpointError(
            f"{file} is a link to {file.resolve()}, outside of {folder}: links may lead to files of the same folder, "
            "or into the hub cache. Copy the file, or make a hard link (ln without -s)"
        )
    return True


def check_is_whole(folder: Path, names: Iterable[str]) -> None:
    """Check a folder that a request names: no file outside it may be read.

    Args:
        names: names of files below it.

    Raises:
        CheckpointError: one is a link that leads out of the folder, and out of its repository in the hub cache.
    """
    for name in names:
        file = find_file(folder, name)
        if file is not None and not _belongs(folder, file):
            raise CheckpointError(f"{file} is a link to {file.resolve()}, outside of {folder}: copy the file")


def _belongs(folder: Path, file: Path) -> bool:
    """Return whether a file lies in the folder, or in the same repository of the hub cache: snapshots are links to
    ../../blobs."""
    home, place = folder.resolve(), file.resolve()
    repository = _repository(home)
    return place.is_relative_to(home) or (repository is not None and place.is_relative_to(repository))


def _is_blob(place: Path) -> bool:
    """Return whether a hub cache keeps this file: users make folders of links to blobs, and the hub's own tools have
    made them."""
    repository = _repository(place)
    return repository is not None and place.relative_to(repository).parts[0] == _BLOBS


def _repository(place: Path) -> Path | None:
    """Return the folder of the hub cache that has a repository's blobs and snapshots, for a path in either."""
    for inner, outer in zip((place, *place.parents), place.parents, strict=False):
        if inner.name in (_BLOBS, _SNAPSHOTS) and outer.name.startswith(_REPOSITORY):
            return outer
    return None


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe (FIFO)",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
