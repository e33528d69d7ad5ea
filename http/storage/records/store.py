"""Store: what keeps tables in the database; its methods are transactions."""

import functools
import secrets
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from palladio.http.storage.records.database import Connection, Database, Row
from palladio.http.storage.records.disk_errors import code_of, is_of_disk
from palladio.http.wire.errors import HttpError

S = TypeVar("S", bound="Store")
P = ParamSpec("P")
T = TypeVar("T")

_ROWS = 500  # of one statement: SQLite takes 32,766 values

Condition = tuple[str, tuple[object, ...]]  # of WHERE, and its values


class Store:
    """Its methods raise what `Database.run` does, too."""

    def __init__(self, database: Database) -> None:
        self._database = database


def transaction(
    work: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method that is one transaction: its body runs in the database's thread, and callers await it. They leave the
    connection out."""

    @functools.wraps(work)
    async def run(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await store._database.run(lambda connection: work(store, connection, *args, **kwargs))
        except (HttpError, OSError, sqlite3.Error) as error:
            if is_of_disk(error):
                store._database.note_failure(code_of(error))
            raise

    return run


def identity_of(connection: Connection) -> str:
    """Return the identity of the database, which a copy of it keeps."""
    insert = "INSERT INTO settings VALUES ('identity', ?) ON CONFLICT DO NOTHING"
    connection.execute(insert, (secrets.token_hex(16),))
    return str(connection.execute("SELECT value FROM settings WHERE name = 'identity'").fetchone()["value"])


def insert_row(connection: Connection, table: str, values: Mapping[str, Any]) -> None:
    """Insert a row.

    Args:
        values: by column.
    """
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def insert_rows(
    connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], rest: str = ""
) -> list[Row]:
    """Insert many rows with few statements.

    Args:
        rest: the end of each statement; rows of its RETURNING are returned.
    """
    marks = f"({', '.join('?' * len(columns))})"
    found: list[Row] = []
    for begin in range(0, len(rows), _ROWS):
        some = rows[begin : begin + _ROWS]
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([marks] * len(some))} {rest}"
        made = connection.execute(statement, [value for row in some for value in row])
        found += made.fetchall() if "RETURNING" in rest else []
    return found


def left_by_others(connection: Connection, server: str) -> Condition:
    """Return the condition for rows that no server has claimed, or that a dead server other than `server` has claimed.

    A server is dead when its lease has ended. But after an outage of the database all leases have ended, though all
    servers live: a server that cannot renew its own lease, or could not until a moment ago, takes no other for dead. A
    database that is not shared lists no servers: all others are dead.
    """
    clock = connection.clock
    alive = (
        "SELECT other.id FROM servers AS other LEFT JOIN servers AS me ON me.id = ? "
        f"WHERE other.lease_until > {clock} OR me.id IS NULL OR NOT {clock} BETWEEN me.judges_from AND me.judges_until"
    )
    return f"(server IS NULL OR (server <> ? AND server NOT IN ({alive})))", (server, server)


def find_row(
    connection: Connection, table: str, object_id: str, condition: Condition, *, for_update: bool = False
) -> Row | None:
    """Return the row of this id, if the condition holds for it.

    Args:
        for_update: lock it: no other transaction changes it before this one ends.
    """
    where, values = condition
    query = f"SELECT * FROM {table} WHERE id = ? AND {where} {connection.for_update if for_update else ''}"
    row: Row | None = connection.execute(query, (object_id, *values)).fetchone()
    return row
