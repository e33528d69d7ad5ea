"""Size and CRC-32 of a file, to check that it is what was written."""

import zlib
from pathlib import Path

from palladio.model.base.errors import CheckpointError
from palladio.model.files.folder_files import find_file

_READ_BYTES = 2**20


def check_sum(path: Path, name: str, size: int, crc: int) -> None:
    """Check the size and the CRC-32 of a file.

    Args:
        name: name of the file below the directory `path`.

    Raises:
        CheckpointError: it is missing, was cut short, or has changed.
    """
    file = path / name
    try:
        found = None if find_file(path, name) is None else size_and_crc(file)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error
    if found is None:
        raise CheckpointError(f"cannot read {file}: there is no such file")
    if found[0] != size:
        raise CheckpointError(
            f"{file} is truncated or was replaced: it has {found[0]:,} bytes, but was written with {size:,}"
        )
    if found[1] != crc:
        raise CheckpointError(f"{file} is corrupt: its checksum differs from that with which it was written")


def size_and_crc(file: Path) -> tuple[int, int]:
    size = crc = 0
    with file.open("rb") as stream:
        while part := stream.read(_READ_BYTES):
            size += len(part)
            crc = zlib.crc32(part, crc)
    return size, crc
