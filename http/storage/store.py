"""Store: what keeps tables in the database; its methods are transactions."""

import functools
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from palladio.http.storage.database import Database

S = TypeVar("S", bound="Store")
P = ParamSpec("P")
T = TypeVar("T")

Condition = tuple[str, tuple[object, ...]]  # of WHERE, and its values


class Store:
    """Its methods raise what `Database.run` does, too."""

    def __init__(self, database: Database) -> None:
        self._database = database


def transaction(
    work: Callable[Concatenate[S, sqlite3.Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method that is one transaction: its body runs in the database's thread, and callers await it. They leave the
    connection out."""

    @functools.wraps(work)
    async def run(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._database.run(lambda connection: work(store, connection, *args, **kwargs))

    return run


def insert_row(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> None:
    """Args: values: by column."""
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def find_row(connection: sqlite3.Connection, table: str, object_id: str, condition: Condition) -> sqlite3.Row | None:
    """The row of this id, if the condition holds for it."""
    where, values = condition
    query = f"SELECT * FROM {table} WHERE id = ? AND {where}"
    row: sqlite3.Row | None = connection.execute(query, (object_id, *values)).fetchone()
    return row
