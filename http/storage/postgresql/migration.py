"""Migration: what a server has kept in its own SQLite database, into a shared one."""

from collections.abc import Callable
from typing import Any

from palladio.http.storage.records.database import Connection, Database
from palladio.http.storage.records.store import identity_of, insert_rows

TABLES = {  # in an order in which no row comes before rows that it refers to, and by what its rows are sorted
    "files": ("id",),
    "file_holds": ("file_id", "holder"),
    "batches": ("id",),
    "batch_results": ("batch_id", "line"),
    "batch_crashes": ("batch_id", "line"),
    "batch_ranges": ("batch_id", "first_line"),
    "responses": ("number",),
    "response_items": ("response", "is_output", "position"),
}
_COUNTED = "number"  # of responses, in the order of their making: the target counts anew
_ROWS = 100  # that are copied at a time

Report = Callable[[str, int, int], None]


async def copy_records(source: Database, target: Database, report: Report) -> str:
    """Copies the rows that the target does not have, so a call that broke off is gone on with by another. No server
    uses the source meanwhile, which stays as it is. Returns the target's identity: a new one takes the source's, which
    the store of contents knows.

    Args:
        report: called after each table, with its name, how many rows it had, and how many of them were new.
    """
    identity = await source.run(identity_of)
    identity = await target.run(lambda connection: _identify(connection, identity))
    for table, order in TABLES.items():
        num_rows = num_new = 0
        last: tuple[Any, ...] | None = None
        while rows := await source.run(_reader(table, order, last)):
            num_new += await target.run(_writer(table, rows))
            num_rows += len(rows)
            last = tuple(rows[-1][name] for name in order)
        report(table, num_rows, num_new)
    return identity


def _reader(
    table: str, order: tuple[str, ...], last: tuple[Any, ...] | None
) -> Callable[[Connection], list[dict[str, Any]]]:
    columns, marks = ", ".join(order), ", ".join("?" * len(order))
    where = "" if last is None else f"WHERE ({columns}) > ({marks})"
    query = f"SELECT * FROM {table} {where} ORDER BY {columns} LIMIT {_ROWS}"
    return lambda connection: [dict(row) for row in connection.execute(query, last or ())]


def _writer(table: str, rows: list[dict[str, Any]]) -> Callable[[Connection], int]:
    columns = [name for name in rows[0] if (table, name) != ("responses", _COUNTED)]
    values = [[row[name] for name in columns] for row in rows]
    rest = f"ON CONFLICT DO NOTHING RETURNING {columns[0]}"
    return lambda connection: len(insert_rows(connection, table, columns, values, rest))


def _identify(connection: Connection, identity: str) -> str:
    """Give a new target the source's identity; return the target's.

    Args:
        identity: the source's.
    """
    query = "SELECT (SELECT count(*) FROM files) + (SELECT count(*) FROM responses) AS number"
    if connection.execute(query).fetchone()["number"] == 0:
        connection.execute("UPDATE settings SET value = ? WHERE name = 'identity'", (identity,))
    return identity_of(connection)
