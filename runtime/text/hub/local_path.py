"""Finds the directory or file that a flag names, before a download or a start, and similar names for errors."""

import contextlib
import difflib
from pathlib import Path

from palladio.model.gguf.gguf_file import is_gguf
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub.foreign_models import describe_address

_CLOSE = 0.6  # of names: "Qwen3-8B" and "Qwen/Qwen3-8B"
_MOST_NAMES = 3


def local_path(path: str, flag: str = "--model-path", holds: str = "config.json and *.safetensors") -> Path | None:
    """The directory or GGUF file that a flag names; None: it may be a name of the hub or of the catalogue.

    Args:
        holds: what the directory must hold, in words.

    Raises:
        ConfigError: it is a path, and nothing like this is there; or it is a URL.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if local.is_file():
        if is_gguf(local):
            return local
        raise ConfigError(f"{flag} {path} is a file; give the directory that holds {holds}, or a GGUF file")
    refusal = describe_address(path)
    if refusal is not None:
        raise ConfigError(f"{flag} {refusal}")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ConfigError(f"{flag} {path}: no such directory{meant(local.name, _neighbours(local))}")
    return None


def nearest(name: str, known: list[str]) -> list[str]:
    """Names of `known` that resemble `name`, the likeliest first."""
    by_lower = {one.lower(): one for one in reversed(known)}
    by_lower |= {one.rpartition("/")[2].lower(): one for one in reversed(known)}
    asked = name.lower()
    close = [*([asked] if asked in by_lower else ()), *difflib.get_close_matches(asked, by_lower, 9, _CLOSE)]
    close += difflib.get_close_matches(asked.rpartition("/")[2], by_lower, 9, _CLOSE)
    return list(dict.fromkeys(by_lower[one] for one in close if by_lower[one] != name))[:_MOST_NAMES]


def _neighbours(path: Path) -> list[str]:
    """Directories next to one that does not exist."""
    with contextlib.suppress(OSError):
        return sorted(folder.name for folder in path.parent.iterdir() if folder.is_dir())
    return []


def meant(name: str, known: list[str], where: str = "") -> str:
    """The end of an error message: known names that are like `name`.

    Args:
        where: in words, where these are.
    """
    close = nearest(name, known)
    return f"; did you mean {' or '.join(close)}{where}?" if close else ""
