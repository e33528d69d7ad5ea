"""ResponseStore: the responses of /v1/responses that are kept, with the items that went in and came out."""

import dataclasses
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from palladio.http.responses.response_items import Item, Response
from palladio.http.security.caller import Caller
from palladio.http.storage.database import Database
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
        name: str = self.response["id"]
        return name


class ResponseStore:
    """Args: limit: responses that are kept, of each owner; the oldest make room for new ones."""

    def __init__(self, database: Database, limit: int) -> None:
        self._database = database
        self._limit = limit

    async def add(self, stored: StoredResponse, items: Sequence[Item], caller: Caller) -> None:
        """Args: items: of its input; caller: what it finds makes room."""

        def work(connection: sqlite3.Connection) -> None:
            _insert(connection, stored, items)
            _make_room(connection, caller.keeper, self._limit)

        await self._database.run(work)

    async def finish(self, stored: StoredResponse) -> bool:
        """What became of one that was added before it ended; False: it has been deleted or finished meanwhile."""
        return await self._database.run(lambda connection: _finish(connection, stored))

    async def get(self, response_id: str, caller: Caller) -> StoredResponse:
        """
        Raises:
            HttpError: there is none that the caller may see, a 404.
        """
        return _stored(await self._database.run(lambda connection: _row(connection, response_id, caller)))

    async def delete(self, response_id: str, caller: Caller) -> bool:
        """Whether it was there, for this caller."""
        condition, owners = caller.condition()
        statement, values = f"DELETE FROM responses WHERE id = ? AND {condition}", (response_id, *owners)
        return await self._database.run(lambda connection: connection.execute(statement, values).rowcount > 0)

    async def input_items(self, response_id: str, caller: Caller) -> list[Item]:
        """Of that response's own request.

        Raises:
            HttpError: there is no such response that the caller may see.
        """
        return await self._database.run(lambda connection: _input_items(connection, response_id, caller))

    async def conversation(self, response_id: str, param: str, caller: Caller) -> list[Item]:
        """All items up to and including a response's output.

        Args:
            param: the field that names it.

        Raises:
            HttpError: it or one before it is not stored, or the caller may not see it, or it has not been answered.
        """
        return await self._database.run(lambda connection: _conversation(connection, response_id, param, caller))

    async def items(self, ids: Iterable[str], caller: Caller) -> dict[str, Item]:
        """Stored items by id; those that are not there, or not for this caller, are left out."""
        wanted = tuple(dict.fromkeys(ids))
        return await self._database.run(lambda connection: _items(connection, wanted, caller)) if wanted else {}

    async def unfinished(self) -> list[str]:
        """Those in the background that a server left before they ended, oldest first."""
        statement = "SELECT id FROM responses WHERE request IS NOT NULL ORDER BY number"
        rows = await self._database.run(lambda connection: connection.execute(statement).fetchall())
        return [row["id"] for row in rows]

    async def take_up(self, response_id: str) -> StoredResponse | None:
        """One that is unfinished, to make it again, which is counted; None: it has been deleted or finished."""
        row = await self._database.run(lambda connection: _take_up(connection, response_id))
        return None if row is None else _stored(row)


def not_found(response_id: str, param: str = "response_id") -> HttpError:
    message = f"no stored response {response_id[:256]!r}: not stored, deleted, or replaced by newer ones"
    return HttpError(ErrorBody(404, message, param, code="response_not_found"))


def _insert(connection: sqlite3.Connection, stored: StoredResponse, items: Sequence[Item]) -> None:
    response = stored.response
    request = None if stored.request is None else orjson.dumps(stored.request)
    connection.execute(
        "INSERT INTO responses (id, previous, status, response, request, events, owner) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(stored.id, response["previous_response_id"], response["status"]),
            *(orjson.dumps(response), request, stored.events, stored.owner),
        ),
    )
    _insert_items(connection, stored.id, items, is_output=False)
    _insert_items(connection, stored.id, response["output"], is_output=True)


def _make_room(connection: sqlite3.Connection, caller: Caller, limit: int) -> None:
    condition, owners = caller.condition()
    oldest = f"SELECT number FROM responses WHERE {condition} ORDER BY number DESC LIMIT 1 OFFSET ?"
    connection.execute(f"DELETE FROM responses WHERE {condition} AND number <= ({oldest})", (*owners, *owners, limit))


def _finish(connection: sqlite3.Connection, stored: StoredResponse) -> bool:
    found = connection.execute(
        """
        UPDATE responses SET status = ?, response = ?, request = NULL, events = ?
        WHERE id = ? AND request IS NOT NULL
        """,
        (stored.response["status"], orjson.dumps(stored.response), stored.events, stored.id),
    )
    if found.rowcount:
        _insert_items(connection, stored.id, stored.response["output"], is_output=True)
    return found.rowcount > 0


def _insert_items(connection: sqlite3.Connection, response_id: str, items: Sequence[Item], *, is_output: bool) -> None:
    connection.executemany(
        "INSERT INTO response_items (response, position, is_output, id, item) VALUES (?, ?, ?, ?, ?)",
        [(response_id, number, is_output, item["id"], orjson.dumps(item)) for number, item in enumerate(items)],
    )


def _take_up(connection: sqlite3.Connection, response_id: str) -> sqlite3.Row | None:
    unfinished = "id = ? AND request IS NOT NULL"
    connection.execute(f"UPDATE responses SET attempts = attempts + 1 WHERE {unfinished}", (response_id,))
    row: sqlite3.Row | None = connection.execute(
        f"SELECT * FROM responses WHERE {unfinished}", (response_id,)
    ).fetchone()
    return row


def _row(connection: sqlite3.Connection, response_id: str, caller: Caller) -> sqlite3.Row:
    condition, owners = caller.condition()
    statement = f"SELECT * FROM responses WHERE id = ? AND {condition}"
    row: sqlite3.Row | None = connection.execute(statement, (response_id, *owners)).fetchone()
    if row is None:
        raise not_found(response_id)
    return row


def _stored(row: sqlite3.Row) -> StoredResponse:
    request = None if row["request"] is None else orjson.loads(row["request"])
    return StoredResponse(orjson.loads(row["response"]), request, row["events"], row["attempts"], row["owner"])


def _input_items(connection: sqlite3.Connection, response_id: str, caller: Caller) -> list[Item]:
    _row(connection, response_id, caller)
    rows = connection.execute(
        "SELECT item FROM response_items WHERE response = ? AND NOT is_output ORDER BY position", (response_id,)
    )
    return [orjson.loads(row["item"]) for row in rows]


def _conversation(connection: sqlite3.Connection, response_id: str, param: str, caller: Caller) -> list[Item]:
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
        statement = "SELECT item FROM response_items WHERE response = ? ORDER BY is_output, position"
        items += [orjson.loads(found["item"]) for found in connection.execute(statement, (row["id"],))]
    return items


def _items(connection: sqlite3.Connection, ids: Sequence[str], caller: Caller) -> dict[str, Item]:
    found: dict[str, Item] = {}
    condition, owners = caller.condition("responses.owner")
    statement = (
        "SELECT item FROM response_items JOIN responses ON responses.id = response_items.response "
        f"WHERE response_items.id = ? AND {condition} LIMIT 1"
    )
    for name in ids:
        row = connection.execute(statement, (name, *owners)).fetchone()
        if row is not None:
            found[name] = orjson.loads(row["item"])
    return found
