"""JSON and text of a model's folder, of bounded size and depth: Python's parser has no limits but its own stack's."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from palladio.model.base.errors import CheckpointError
from palladio.model.files.folder_files import find_file

MAX_SETTINGS_BYTES: Final = 8 << 20
"""Limit of a settings file such as config.json. The largest published ones have a tenth of it."""
MAX_TABLE_BYTES: Final = 64 << 20
"""Limit of a file with an entry for each tensor or token: indexes, vocabularies. The largest published ones have
half."""
MAX_DEPTH: Final = 64  # of lists and objects; published files have up to 12

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(folder: Path, name: str, most: int = MAX_SETTINGS_BYTES) -> Any:
    """Read a JSON file of a folder; None: there is no such file, or it says null.

    Raises:
        CheckpointError: it cannot be read, has more than `most` bytes, or is not JSON; or see `find_file`.
    """
    data = read_bytes(folder, name, most)
    return None if data is None else parse_json(data, folder / name)


def read_object(folder: Path, name: str, most: int = MAX_SETTINGS_BYTES) -> dict[str, Any] | None:
    """Read a JSON file that must hold an object; None: there is no such file.

    Raises:
        CheckpointError: as `read_json`; or it holds something else.
    """
    data = read_bytes(folder, name, most)
    if data is None:
        return None
    found = parse_json(data, folder / name)
    if not isinstance(found, dict):
        raise CheckpointError(f"{folder / name} must contain a JSON object, found {type(found).__name__}")
    return found


def read_text(folder: Path, name: str, most: int) -> str | None:
    """Read a text file of a folder; None: there is no such file.

    Raises:
        CheckpointError: it cannot be read, has more than `most` bytes, or is not UTF-8; or see `find_file`.
    """
    data = read_bytes(folder, name, most)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"cannot read {folder / name}: {error}") from error


def read_bytes(folder: Path, name: str, most: int) -> bytes | None:
    """Read a file of a folder; None: there is no such file.

    Raises:
        CheckpointError: it cannot be read, or has more than `most` bytes; or see `find_file`.
    """
    file = find_file(folder, name)
    if file is None:
        return None
    try:
        with file.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error
    if len(data) > most:
        raise CheckpointError(f"{file} has more than {most:,} bytes, the most that such a file may have")
    return data


def parse_json(data: bytes, what: object, *, repeats: bool = True) -> Any:
    """Parse JSON, with limits.

    Args:
        what: name of the data, for messages.
        repeats: a key may occur twice, and the last one counts, as everywhere.

    Raises:
        CheckpointError: it is not JSON, nested deeper than MAX_DEPTH, or has text that is not Unicode.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=None if repeats else _unrepeated)
        if _SURROGATE.search(data):  # half a pair, which cannot be printed or sent
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:
        raise CheckpointError(f"cannot read {what} as JSON: {error}") from error
    level = _containers([value])
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _containers(each.values() if isinstance(each, dict) else each)]
        if not level:
            return value
    raise _too_deep(what)


def _containers(values: Iterable[Any]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, (dict, list))]


def _too_deep(what: object) -> CheckpointError:
    return CheckpointError(f"cannot read {what} as JSON: it nests lists and objects more than {MAX_DEPTH} deep")


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of pairs with unique keys.

    Raises:
        ValueError: a key occurs twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"it has the key {twice[:200]!r} twice")
    return found
