"""Who asks: API keys, the callers that they stand for, and which requests of theirs run."""

import contextlib
import dataclasses
import hashlib
import hmac
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from palladio.http.security.watched_files import FileWatch
from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.errors import ErrorBody, Guard, route_path
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.request.generation_request import GenerationRequest

ADMIN = ":admin"  # the admin key's things are under it; no name of a key begins so
UNNAMED = "key:"  # what owners of keys without a name begin with; no name holds a colon

Sees = Literal["own", "shared", "all"]


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Attributes:
    owner: who owns what this caller makes; empty: no owner, as on servers without keys.
    sees: own: what this owner made; shared: also what was made without a key, or with keys that have no name;
        all: what anybody made.
    """

    owner: str = ""
    sees: Sees = "all"

    def may_see(self, owner: str) -> bool:
        """Whether the caller may see an object; other objects do not exist for the caller.

        Args:
            owner: the object's.
        """
        match self.sees:
            case "all":
                return True
            case "shared":
                return owner in (self.owner, "") or owner.startswith(UNNAMED)
            case "own":
                return owner == self.owner

    def condition(self, column: str = "owner") -> tuple[str, tuple[str, ...]]:
        """The same in SQL, for WHERE: a condition of the column that holds the owner, and its values."""
        match self.sees:
            case "all":
                return "TRUE", ()
            case "shared":
                begin = f"substr({column}, 1, {len(UNNAMED)})"
                return f"({column} IN (?, '') OR {begin} = '{UNNAMED}')", (self.owner,)
            case "own":
                return f"{column} = ?", (self.owner,)

    @property
    def keeper(self) -> "Caller":
        """Finds those things that count for the same limits. The admin key's things make no room among others'."""
        return dataclasses.replace(self, sees="own") if self.owner == ADMIN else self


SERVER = Caller()  # the server itself, for what it has to do with anybody's things


async def _of_request(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerOf = Annotated[Caller, Depends(_of_request)]  # a parameter of routes


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
        """Make the table of --admin-api-key. These keys have no names: all belong to the admin."""
        return cls({_hash(key.encode()): ADMIN for key in keys})

    def __bool__(self) -> bool:
        """Whether there are keys: without, requests need none."""
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
        """The owners of the keys in force."""
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
    """Read keys with or without names.

    Args:
        source: where the keys are from, for messages.

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
    """Read one key a line, without empty lines and comments (#)."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read --api-key-file {path}: {reason}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {path} is empty: write one key per line")
    return _parse(keys, "--api-key-file")


class Callers:
    """Who makes a request, and what it may see. With several owners of keys, each sees only its own objects; the admin
    key sees all. A single owner also sees objects from before keys had names; without keys, every request sees all.

    Args:
        keys: keys of all routes; none: only control routes need one.
        admin_keys: keys of the control routes, which then take no others; good for all routes. None: they are like
            others.
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


OPEN_PATHS = frozenset(  # probes carry no keys
    (
        *("/health", "/healthz", "/ping", "/livez", "/ready", "/readyz"),
        *("/health_generate", "/version", "/metrics"),
    )
)
CONTROL_PATHS = frozenset(
    (
        *("/flush_cache", "/abort_request", "/start_profile", "/stop_profile"),
        *("/pause_generation", "/continue_generation"),
        *("/release_memory_occupation", "/resume_memory_occupation"),
        *("/update_weights_from_disk", "/update_weights_from_tensor"),
        *("/pause", "/resume", "/sleep", "/wake_up", "/release_kv_cache_memory"),
        *("/reset_prefix_cache", "/abort_requests", "/configure_logging", "/freeze_gc"),
    )
)


class KeyAuth(Guard):
    """Answers 401 unless the request brings a key, as a bearer or as x-api-key. Probes and OPTIONS pass. Who asks
    becomes `request.state.caller`.

    Args:
        open_paths: routes that need no key.
    """

    def __init__(self, app: ASGIApp, callers: Callers, open_paths: Set[str] = OPEN_PATHS) -> None:
        super().__init__(app)
        self._callers = callers
        self._open_paths = open_paths

    def _refusal(self, scope: Scope) -> ErrorBody | None:
        path, callers = route_path(scope), self._callers
        caller = callers.find(_given_keys(Headers(scope=scope)))
        is_control = path in CONTROL_PATHS and callers.has_admin_keys
        needs_key = (callers.has_keys or is_control) and path not in self._open_paths and scope["method"] != "OPTIONS"
        is_enough = caller is not None and (not is_control or caller.owner == ADMIN)
        if not needs_key or is_enough:
            scope["state"]["caller"] = caller or callers.of_owner("")
            return None
        kind = "admin key (--admin-api-key)" if is_control else "API key"
        return ErrorBody(
            401,
            f"wrong or missing {kind}: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _given_keys(headers: Headers) -> list[bytes]:
    """As the headers' bytes came in, 0xA0 among them."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = [bearer] if scheme.lower() == "bearer" else []
    given += [headers["x-api-key"]] if "x-api-key" in headers else []
    return [key.strip(" \t").encode("latin-1") for key in given]


class RequestsById:
    """By owner and the id that the client gave or got."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], Sequence[GenerationRequest]] = {}

    @contextlib.contextmanager
    def track(self, name: str, requests: Sequence[GenerationRequest]) -> Iterator[None]:
        """While it is open, the request is found.

        Args:
            requests: one a prompt, all of one owner.

        Raises:
            InvalidRequestError: the owner has a request of this id.
        """
        key = requests[0].options.owner, name
        if key in self._requests:
            raise InvalidRequestError(f"a request with id {name!r} is already running", param="rid")
        self._requests[key] = requests
        try:
            yield
        finally:
            del self._requests[key]

    def engine_ids(self, caller: Caller, request_ids: Collection[str] | None) -> set[str]:
        """Return the engine's ids of the caller's requests.

        Args:
            request_ids: ids of requests, or of one of their prompts; None: all requests.
        """
        asked = None if request_ids is None else {*request_ids}
        return {
            request.scoped_id
            for (owner, name), requests in self._requests.items()
            if caller.may_see(owner)
            for request in requests
            if asked is None or name in asked or request.request_id in asked
        }
