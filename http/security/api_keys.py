"""ApiKeys: the keys that clients may bring, of the flags and of a file that is read again when it changes."""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from palladio.http.security.caller import ADMIN, UNNAMED
from palladio.http.security.watched_files import FileWatch
from palladio.runtime.interface.errors import ConfigError

logger = logging.getLogger(__name__)

MIN_NAMED_KEY = 8  # characters of a key behind a name: less, and the colon is a part of the key

_NAMED = re.compile(rf"([A-Za-z0-9_.-]{{1,64}}):(.{{{MIN_NAMED_KEY},}})", re.DOTALL)
_LOOKS_NAMED = re.compile(r"[A-Za-z0-9_.-]{1,64}:.")

Owners = dict[bytes, str]  # the hash of what a client sends → the owner


class KeyTable:
    """Whose keys they are. Only hashes are kept, so that neither a comparison's time nor a dump of this object tells
    anything of a key."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    @classmethod
    def of_admin(cls, keys: Iterable[str]) -> "KeyTable":
        """The keys of --admin-api-key. They have no names: whoever has one is the admin."""
        return cls({_hash(key.encode()): ADMIN for key in keys})

    def __bool__(self) -> bool:
        """Whether there are any: without, nobody needs one."""
        return bool(self._owners)

    def owner_of(self, given: bytes) -> str | None:
        """Whose key it is; None: it is none. Takes the same time for every key that is given."""
        found = _hash(given)
        matches = [owner for known, owner in self._owners.items() if hmac.compare_digest(found, known)]  # all of them
        return matches[0] if matches else None


class ApiKeys(KeyTable):
    """A key belongs to an owner: NAME:KEY to NAME, and one without a name to a digest of itself. A client sends KEY; or
    all of NAME:KEY, so that keys which hold a colon, of servers that knew no names, stay as good as they were.

    Args:
        keys: of the flags.
        file: --api-key-file; None: there is none.

    Raises:
        ConfigError: the file cannot be read, or holds no key; or a key has two owners.
    """

    def __init__(self, keys: Iterable[str], file: str | None = None) -> None:
        self._fixed = _parse(keys, "--api-key")
        self._file = None if file is None else Path(file).expanduser()
        self._watch = FileWatch([] if self._file is None else [str(self._file)])  # before the file is read
        super().__init__(self._fixed if self._file is None else _join(self._fixed, _read_owners(self._file)))

    @property
    def owners(self) -> frozenset[str]:
        """Of the keys in force."""
        return frozenset(self._owners.values())

    def owner_of(self, given: bytes) -> str | None:
        self._refresh()
        return super().owner_of(given)

    def _refresh(self) -> None:
        if self._file is None or not self._watch.changed():
            return
        try:
            self._owners = _join(self._fixed, _read_owners(self._file))
        except ConfigError as error:
            logger.warning("%s; the previous keys stay active", error)
        else:
            logger.info("Reloaded --api-key-file: keys of %s are active", ", ".join(sorted(self.owners)))


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _parse(keys: Iterable[str], source: str) -> Owners:
    """Args: source: of the keys, in messages.

    Raises:
        ConfigError: a key has two owners.
    """
    owners: Owners = {}
    for written in keys:
        whole = _hash(written.encode())
        if named := _NAMED.fullmatch(written):
            name, key = named.groups()
            owners = _join(owners, {_hash(key.encode()): name, whole: name})
            continue
        if _LOOKS_NAMED.match(written):
            logger.warning(
                "%s: a key has fewer than %d characters after its colon, so it is used whole, without a name",
                *(source, MIN_NAMED_KEY),
            )
        owners = _join(owners, {whole: f"{UNNAMED}{whole.hex()[:16]}"})
    return owners


def _join(some: Owners, more: Owners) -> Owners:
    """
    Raises:
        ConfigError: a key has two owners.
    """
    for key in some.keys() & more.keys():
        if some[key] != more[key]:
            names = " and ".join(sorted((some[key], more[key])))
            raise ConfigError(
                f"--api-key, --api-key-file: the same key has two owners, {names}; use a different key for each"
            )
    return some | more


def _read_owners(path: Path) -> Owners:
    """One key a line; empty lines and those that begin with # hold none."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read --api-key-file {path}: {reason}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {path} is empty: write one key per line")
    return _parse(keys, "--api-key-file")
