"""Where a user's files are kept, when no flag says it."""

from collections.abc import Mapping
from pathlib import Path

from palladio.runtime.interface.errors import ConfigError


def user_cache_dir(environment: Mapping[str, str]) -> Path:
    """Where Palladio keeps what it can make again.

    Args:
        environment: PALLADIO_CACHE_DIR is the directory; XDG_CACHE_HOME holds it, instead of ~/.cache.

    Raises:
        ConfigError: neither is set, and this user has no home directory.
    """
    if own := environment.get("PALLADIO_CACHE_DIR"):
        return Path(own).expanduser()
    try:
        return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "palladio"
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home directory to keep compiled programs in; set PALLADIO_CACHE_DIR, or give "
            "--compilation-cache-dir"
        ) from error


def user_data_dir(environment: Mapping[str, str]) -> Path | None:
    """Where Palladio keeps what users have entrusted to it; None: this user has no home directory.

    Args:
        environment: PALLADIO_DATA_DIR is the directory; XDG_DATA_HOME holds it, instead of ~/.local/share.
    """
    if own := environment.get("PALLADIO_DATA_DIR"):
        return Path(own).expanduser()
    try:
        return Path(environment.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "palladio"
    except RuntimeError:
        return None
