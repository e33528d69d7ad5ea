"""ResponseStore: the responses of /v1/responses that are kept, with the items that went in and came out."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from palladio.http.responses.response_items import Item, Response
from palladio.http.security.callers import Caller
from palladio.http.storage.records.database import Connection, Database, Row
from palladio.http.storage.records.store import Store, find_row, insert_row, left_by_others, transaction
from palladio.http.wire.errors import ErrorBody, HttpError

_CHAIN = """
WITH RECURSIVE chain (id, previous, status, depth) AS (
    SELECT newest.id, newest.previous, newest.status, 0 FROM responses AS newest WHERE newest.id = ? AND {of_newest}
    UNION ALL
    SELECT older.id, older.previous, older.status, depth + 1
    FROM responses AS older JOIN chain ON older.id = chain.previous WHERE {of_older}
)
SELECT id, previous, status FROM chain ORDER BY depth DESC
"""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredResponse:
    """
    Attributes:
        response: as it is answered.
        request: its body, as long as it is one in the background that has not ended; else None.
        events: of one in the background that has ended; else None.
        attempts: to make it again, of one in the background that has not ended; see `take_up`.
        owner: of the API key that it came with; empty: of none.
    """

    response: Response
    request: dict[str, Any] | None = None
    events: bytes | None = None
    attempts: int = 0
    owner: str = ""

    @property
    def id(self) -> str:
        return str(self.response["id"])


class ResponseStore(Store):
    """Responses and their items, in the database.

    Args:
        limit: how many responses of an owner are kept; the oldest are deleted first.
    """

    def __init__(self, database: Database, limit: int) -> None:
        super().__init__(database)
        self._limit = limit

    @transaction
    def add(self, connection: Connection, stored: StoredResponse, items: Sequence[Item], caller: Caller) -> None:
        """Add a response; delete the oldest over the limit.

        Args:
            items: its input.
            caller: whose responses count and may be deleted.
        """
        values = {
            "id": stored.id,
            "previous": stored.response["previous_response_id"],
            "status": stored.response["status"],
            "response": orjson.dumps(stored.response),
            "request": None if stored.request is None else orjson.dumps(stored.request),
            "events": stored.events,
            "owner": stored.owner,
            "server": None if stored.request is None else self._database.server,
        }
        insert_row(connection, "responses", values)
        _insert_items(connection, stored.id, items, is_output=False)
        _insert_items(connection, stored.id, stored.response["output"], is_output=True)
        condition, owners = caller.keeper.condition()
        oldest = f"SELECT number FROM responses WHERE {condition} ORDER BY number DESC LIMIT 1 OFFSET ?"
        statement = f"DELETE FROM responses WHERE {condition} AND number <= ({oldest})"
        connection.execute(statement, (*owners, *owners, self._limit))

    @transaction
    def finish(self, connection: Connection, stored: StoredResponse) -> bool:
        """What became of one that was added before it ended; False: it has been deleted or finished meanwhile."""
        found = connection.execute(
            """
            UPDATE responses SET status = ?, response = ?, request = NULL, server = NULL, events = ?
            WHERE id = ? AND request IS NOT NULL
            """,
            (stored.response["status"], orjson.dumps(stored.response), stored.events, stored.id),
        )
        if found.rowcount:
            connection.notify()  # it may run on another server, or somebody may wait for it there
            _insert_items(connection, stored.id, stored.response["output"], is_output=True)
        return found.rowcount > 0

    @transaction
    def get(self, connection: Connection, response_id: str, caller: Caller) -> StoredResponse:
        """
        Raises:
            HttpError: there is none that the caller may see, a 404.
        """
        return _stored(_row(connection, response_id, caller))

    @transaction
    def delete(self, connection: Connection, response_id: str, caller: Caller) -> bool:
        """Whether it was there, for this caller."""
        condition, owners = caller.condition()
        statement = f"DELETE FROM responses WHERE id = ? AND {condition}"
        connection.notify()
        return connection.execute(statement, (response_id, *owners)).rowcount > 0

    @transaction
    def input_items(self, connection: Connection, response_id: str, caller: Caller) -> list[Item]:
        """Return the input items of the response's own request.

        Raises:
            HttpError: there is no such response that the caller may see.
        """
        _row(connection, response_id, caller)
        return _items_of(connection, "response = ? AND is_output = 0 ORDER BY position", response_id)

    @transaction
    def conversation(self, connection: Connection, response_id: str, param: str, caller: Caller) -> list[Item]:
        """All items up to and including a response's output.

        Args:
            param: the field that names it.

        Raises:
            HttpError: it or one before it is not stored, or the caller may not see it, or it has not been answered.
        """
        of_newest, owners = caller.condition("newest.owner")
        of_older, _ = caller.condition("older.owner")
        statement = _CHAIN.format(of_newest=of_newest, of_older=of_older)
        chain = connection.execute(statement, (response_id, *owners, *owners)).fetchall()
        if not chain:
            raise not_found(response_id, param)
        if chain[0]["previous"] is not None:
            raise not_found(chain[0]["previous"], param)
        items: list[Item] = []
        for row in chain:
            if row["status"] not in ("completed", "incomplete"):
                message = f"{param}: {row['id']} has no answer to continue from; its status is {row['status']}"
                raise HttpError(ErrorBody(400, message, param))
            items += _items_of(connection, "response = ? ORDER BY is_output, position", row["id"])
        return items

    @transaction
    def items(self, connection: Connection, ids: Iterable[str], caller: Caller) -> dict[str, Item]:
        """Return stored items by id, without missing items and items of other owners."""
        condition, owners = caller.condition("responses.owner")
        ours = f"(SELECT 1 FROM responses WHERE responses.id = response_items.response AND {condition})"
        found = {name: _items_of(connection, f"id = ? AND EXISTS {ours} LIMIT 1", name, *owners) for name in ids}
        return {name: items[0] for name, items in found.items() if items}

    @transaction
    def unfinished(self, connection: Connection) -> list[str]:
        """Return the background responses that a server left before they ended, oldest first."""
        is_left, values = left_by_others(connection, self._database.server)
        statement = f"SELECT id FROM responses WHERE request IS NOT NULL AND {is_left} ORDER BY number"
        return [row["id"] for row in connection.execute(statement, values)]

    @transaction
    def ended(self, connection: Connection, ids: Sequence[str]) -> list[str]:
        """Return which of these background responses were deleted or have ended, on any server."""
        found = set[str]()
        for name in ids:
            query = "SELECT 1 FROM responses WHERE id = ? AND request IS NOT NULL"
            found |= {name} if connection.execute(query, (name,)).fetchone() is None else set()
        return sorted(found)

    @transaction
    def take_up(self, connection: Connection, response_id: str) -> StoredResponse | None:
        """One that is unfinished, to make it again, which is counted; None: it has been deleted or finished, or another
        server makes it."""
        is_left, values = left_by_others(connection, self._database.server)
        statement = (
            "UPDATE responses SET attempts = attempts + 1, server = ? "
            f"WHERE id = ? AND request IS NOT NULL AND (server = ? OR {is_left}) RETURNING *"
        )
        me = self._database.server
        rows = connection.execute(statement, (me, response_id, me, *values)).fetchall()
        return _stored(rows[0]) if rows else None


def not_found(response_id: str, param: str = "response_id") -> HttpError:
    message = f"no stored response {response_id[:256]!r}: not stored, deleted, or replaced by newer ones"
    return HttpError(ErrorBody(404, message, param, code="response_not_found"))


def _insert_items(connection: Connection, response_id: str, items: Sequence[Item], *, is_output: bool) -> None:
    connection.executemany(
        "INSERT INTO response_items (response, position, is_output, id, item) VALUES (?, ?, ?, ?, ?)",
        [(response_id, number, int(is_output), item["id"], orjson.dumps(item)) for number, item in enumerate(items)],
    )


def _items_of(connection: Connection, condition: str, *values: object) -> list[Item]:
    rows = connection.execute(f"SELECT item FROM response_items WHERE {condition}", values)
    return [orjson.loads(row["item"]) for row in rows]


def _row(connection: Connection, response_id: str, caller: Caller) -> Row:
    row = find_row(connection, "responses", response_id, caller.condition())
    if row is None:
        raise not_found(response_id)
    return row


def _stored(row: Row) -> StoredResponse:
    request = None if row["request"] is None else orjson.loads(row["request"])
    return StoredResponse(orjson.loads(row["response"]), request, row["events"], row["attempts"], row["owner"])
