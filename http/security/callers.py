"""Callers: which caller a request's keys make, and a stored owner."""

from collections.abc import Iterable

from palladio.http.security.api_keys import ApiKeys, KeyTable
from palladio.http.security.caller import ADMIN, UNNAMED, Caller
from palladio.http.settings.http_config import HttpConfig


class Callers:
    """While the keys have several owners, each sees its own things alone; the admin key sees all. One owner shares
    with nobody, and finds what there was before keys had names as well; without keys, all is everybody's.

    Args:
        keys: of all routes; none: only control routes need one.
        admin_keys: of the control routes, which then take no others; good for all routes. None: they are like others.
    """

    def __init__(self, keys: ApiKeys, admin_keys: KeyTable) -> None:
        self._keys = keys
        self._admin_keys = admin_keys

    @classmethod
    def of(cls, config: HttpConfig) -> "Callers":
        """
        Raises:
            ConfigError: the keys cannot be read, or one has two owners.
        """
        return cls(ApiKeys(config.api_keys, config.api_key_file), KeyTable.of_admin(config.admin_api_keys))

    @property
    def has_keys(self) -> bool:
        """Whether all routes but the open ones need a key."""
        return bool(self._keys)

    @property
    def has_admin_keys(self) -> bool:
        """Whether the control routes need an admin key."""
        return bool(self._admin_keys)

    def find(self, given: Iterable[bytes]) -> Caller | None:
        """None: there is no key among these. Of several, an admin key counts, else the first."""
        pairs = [(self._admin_keys.owner_of(key), self._keys.owner_of(key)) for key in given]  # all: constant time
        found = [owner for place in (0, 1) for owner in (pair[place] for pair in pairs) if owner is not None]
        return self.of_owner(found[0]) if found else None

    def of_owner(self, owner: str) -> Caller:
        """Who made something, if it asked now."""
        if owner == ADMIN or not (self._keys or self._admin_keys):
            return Caller(owner, "all")
        owners = self._keys.owners
        is_alone = len(owners) <= 1 and (owner in owners or owner == "" or owner.startswith(UNNAMED))
        return Caller(owner, "shared" if is_alone else "own")

    def describe(self) -> str:
        """A line for the log, without any key."""
        owners = sorted(self._keys.owners)
        if not owners:
            return "API keys: only the admin key, for the control routes"
        note = (
            "each owner sees only its own files and batches" if len(owners) > 1 else "all keys share files and batches"
        )
        admin = "; the admin key sees everything" if self._admin_keys else ""
        return f"API keys of {', '.join(owners)}: {note}{admin}"
