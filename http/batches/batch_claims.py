"""BatchClaims: which server answers which lines of a batch. Ranges of lines are claimed one by one, until none is left.

A claim lasts as long as its server renews its lease. A server that takes over a claimed range runs only the lines
without results; if the first server is alive after all, the first result of a line stays.
"""

import dataclasses
from collections.abc import Set

from palladio.http.storage.records.database import Connection
from palladio.http.storage.records.store import Store, insert_rows, left_by_others, transaction

RANGE = 64  # lines


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """Attributes:
    first, last: numbers of lines.
    done: lines that have results.
    """

    first: int
    last: int
    done: Set[int]

    def wants(self, line: int) -> bool:
        return self.first <= line <= self.last and line not in self.done


class BatchClaims(Store):
    @transaction
    def next(self, connection: Connection, batch_id: str, after: int) -> Claim | None:
        """Claims the first range behind line `after` that is free; None: there is none."""
        me = self._database.server
        is_free, values = left_by_others(connection, me)
        query = (
            f"SELECT first_line FROM batch_ranges WHERE batch_id = ? AND first_line > ? AND {is_free} "
            f"ORDER BY first_line LIMIT 1 {connection.skip_locked}"
        )
        rows = connection.execute(query, (batch_id, after, *values)).fetchall()
        if not rows:
            return None
        update = "UPDATE batch_ranges SET server = ? WHERE batch_id = ? AND first_line = ? RETURNING last_line"
        first = rows[0]["first_line"]
        (row,) = connection.execute(update, (me, batch_id, first)).fetchall()
        query = "SELECT line FROM batch_results WHERE batch_id = ? AND line BETWEEN ? AND ?"
        done = connection.execute(query, (batch_id, first, row["last_line"]))
        return Claim(first, row["last_line"], {found["line"] for found in done})

    @transaction
    def release(self, connection: Connection, batch_id: str | None = None) -> None:
        """Free the ranges that this server has claimed.

        Args:
            batch_id: default: all batches.
        """
        statement = "UPDATE batch_ranges SET server = NULL WHERE server = ? AND batch_id = coalesce(?, batch_id)"
        if connection.execute(statement, (self._database.server, batch_id)).rowcount:
            connection.notify()

    @transaction
    def num_left(self, connection: Connection, batch_id: str) -> int:
        """Ranges whose lines do not all have results yet."""
        query = "SELECT count(*) AS number FROM batch_ranges WHERE batch_id = ?"
        return int(connection.execute(query, (batch_id,)).fetchone()["number"])

    @transaction
    def give_up(self, connection: Connection, batch_id: str) -> None:
        """Drop the ranges: no server can answer the lines that are left."""
        drop_ranges(connection, batch_id)


def make_ranges(connection: Connection, batch_id: str, last_line: int) -> None:
    drop_ranges(connection, batch_id)
    firsts = range(1, last_line + 1, RANGE)
    rows = [(batch_id, first, min(first + RANGE - 1, last_line)) for first in firsts]
    insert_rows(connection, "batch_ranges", ("batch_id", "first_line", "last_line"), rows)


def drop_ranges(connection: Connection, batch_id: str) -> None:
    connection.execute("DELETE FROM batch_ranges WHERE batch_id = ?", (batch_id,))


def finish_ranges(connection: Connection, batch_id: str, firsts: Set[int]) -> None:
    """All of their lines have results."""
    connection.executemany(
        "DELETE FROM batch_ranges WHERE batch_id = ? AND first_line = ?", [(batch_id, first) for first in firsts]
    )
    query = "SELECT 1 FROM batch_ranges WHERE batch_id = ? LIMIT 1"
    if firsts and connection.execute(query, (batch_id,)).fetchone() is None:
        connection.notify()  # servers that have none of the last ranges wait for them
