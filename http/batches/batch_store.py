"""BatchStore: batches, and the results of their lines until these are in files.

The state of a batch is here alone: whatever is done for one, it can be dropped at any moment and begun again from here.
A line has one result, whatever happens, and is counted in the transaction that keeps it.
"""

import dataclasses
from collections.abc import Callable, Sequence, Set
from typing import Any

import orjson

from palladio.http.batches.batch import LIVE, Batch, Status, Usage
from palladio.http.batches.batch_claims import drop_ranges, finish_ranges, make_ranges
from palladio.http.batches.batch_records import LineResult
from palladio.http.files.file_store import StoredFile, find_file, hold_file, insert_file, release_file
from palladio.http.security.callers import SERVER, Caller
from palladio.http.storage.records.database import Connection, Database
from palladio.http.storage.records.store import Store, find_row, insert_row, insert_rows, transaction
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import InvalidRequestError

_RESULT = ("batch_id", "line", "succeeded", "record")


class BatchStore(Store):
    """Batches and the results of their lines, in the database.

    Args:
        now: seconds since the epoch; default: the database's clock.
    """

    def __init__(self, database: Database, now: Callable[[], float] | None = None) -> None:
        super().__init__(database)
        self._now = now or database.now

    @transaction
    def create(self, connection: Connection, batch: Batch, caller: Caller) -> None:
        """Keeps the contents of its input file until it has ended.

        Raises:
            HttpError: there is no such file that the caller may see.
            InvalidRequestError: the file is for something else.
        """
        try:
            file = find_file(connection, batch.input_file_id, caller, self._now(), for_update=True)
        except HttpError as error:
            raise HttpError(dataclasses.replace(error.body, param="input_file_id")) from None
        if file.purpose != "batch":
            message = f"input_file_id: the purpose of {file.id} is {file.purpose}; upload it with purpose batch"
            raise InvalidRequestError(message, param="input_file_id")
        insert_row(connection, "batches", dataclasses.asdict(batch))
        connection.notify()
        hold_file(connection, batch.input_file_id, batch.id)

    @transaction
    def get(self, connection: Connection, batch_id: str, caller: Caller) -> Batch:
        """
        Raises:
            HttpError: there is none that the caller may see.
        """
        return _find(connection, batch_id, caller)

    @transaction
    def page(self, connection: Connection, caller: Caller, *, after: str | None, limit: int) -> list[Batch]:
        """Return a page of batches, the latest first.

        Args:
            after: the position after which the page begins.
        """
        condition, owners = caller.condition()
        position = "substr(id, length(id) - 35)"
        query = f"SELECT * FROM batches WHERE {condition} AND {position} < coalesce(?, '~') ORDER BY id DESC LIMIT ?"
        return [Batch.of(row) for row in connection.execute(query, (*owners, after, limit))]

    @transaction
    def live(self, connection: Connection) -> dict[str, Status]:
        """Return the status of each batch that has not ended, by id, oldest first."""
        query = f"SELECT id, status FROM batches WHERE status IN ({', '.join('?' * len(LIVE))}) ORDER BY id"
        return {row["id"]: row["status"] for row in connection.execute(query, LIVE)}

    @transaction
    def cancel(self, connection: Connection, batch_id: str, caller: Caller) -> Batch:
        """
        Raises:
            HttpError: there is none that the caller may see, or it has ended.
        """
        batch = _find(connection, batch_id, caller, for_update=True)
        if batch.status == "cancelling":
            return batch
        if batch.status not in ("validating", "in_progress"):
            what = "all of its lines have results" if batch.status == "finalizing" else f"it is {batch.status}"
            raise HttpError(ErrorBody(409, f"batch {batch_id} cannot be cancelled: {what}", code="batch_ended"))
        drop_ranges(connection, batch_id)
        connection.notify()
        return _update(connection, batch_id, status="cancelling", cancelling_at=self._time())

    @transaction
    def begin(self, connection: Connection, batch_id: str, *, total: int, last_line: int, model: str) -> Batch:
        """Start the lines of a validated batch; results of faulty lines are stored.

        Args:
            last_line: number of the last line.
        """
        values = _counts(connection, batch_id) | {"total": total, "model": model, "in_progress_at": self._time()}
        before = _find(connection, batch_id, for_update=True)
        if before.status == "validating":
            make_ranges(connection, batch_id, last_line)
            connection.notify()
        return _advance(connection, batch_id, "validating", "in_progress", **values)

    @transaction
    def finalize(self, connection: Connection, batch_id: str, *, is_expired: bool) -> Batch:
        """Finalize a batch whose lines all have results. While ranges are left, an unexpired batch stays as it is.

        Args:
            is_expired: finalize it though ranges are left.
        """
        now = self._time()
        before = _find(connection, batch_id, for_update=True)
        query = "SELECT 1 FROM batch_ranges WHERE batch_id = ? LIMIT 1"
        if not is_expired and connection.execute(query, (batch_id,)).fetchone() is not None:
            return before
        drop_ranges(connection, batch_id)
        connection.notify()
        times = {"finalizing_at": now} | ({"expired_at": now} if is_expired else {})
        return _advance(connection, batch_id, "in_progress", "finalizing", **times)

    @transaction
    def fail(self, connection: Connection, batch_id: str, errors: Sequence[dict[str, Any]]) -> tuple[Batch, list[str]]:
        """Its file is none of a batch. Returns the ids of the contents to drop, too."""
        text = orjson.dumps(errors).decode()
        batch = _advance(connection, batch_id, "validating", "failed", failed_at=self._time(), errors=text)
        return batch, _end(connection, batch)

    @transaction
    def end(
        self, connection: Connection, batch_id: str, output: StoredFile | None, errors: StoredFile | None
    ) -> tuple[Batch, list[str]]:
        """The contents of its result files are stored. Returns the ids of the contents to drop, too: of its input, or,
        if another server was faster, of these files."""
        batch, now = _find(connection, batch_id, for_update=True), self._time()
        if batch.status not in ("cancelling", "finalizing"):
            return batch, [file.id for file in (output, errors) if file is not None]
        if batch.status == "cancelling":
            ended: dict[str, Any] = {"status": "cancelled", "cancelled_at": now}
        elif batch.expired_at is not None:
            ended = {"status": "expired"}
        else:
            ended = {"status": "completed", "completed_at": now}
        for name, file in (("output_file_id", output), ("error_file_id", errors)):
            if file is not None:
                insert_file(connection, file)
                ended[name] = file.id
        batch = _update(connection, batch_id, **ended)
        return batch, _end(connection, batch)

    @transaction
    def add_results(
        self,
        connection: Connection,
        batch_id: str,
        results: Sequence[LineResult],
        finished: Set[int] = frozenset(),
    ) -> None:
        """Those of lines that have one already are left out, the counts go with the others; and so are all once the
        batch has ended, or ends and another server has looked for lines without a result.

        Args:
            finished: ranges of which all lines have results now, by their first lines.
        """
        rows = [(batch_id, result.line, int(result.succeeded), result.record) for result in results]
        made = insert_rows(connection, "batch_results", _RESULT, rows, "ON CONFLICT DO NOTHING RETURNING line")
        new = {row["line"] for row in made}
        left = set(new)
        counts = dict.fromkeys(("completed", "failed", *(field.name for field in dataclasses.fields(Usage))), 0)
        for result in results:
            is_new = result.line in left
            left.discard(result.line)
            if is_new and not result.was_left:
                counts["completed" if result.succeeded else "failed"] += 1
                for name, number in dataclasses.asdict(result.usage()).items():
                    counts[name] += number
        changes = ", ".join(f"{name} = {name} + ?" for name in counts)
        statement = f"UPDATE batches SET {changes} WHERE id = ? AND status IN ('in_progress', 'cancelling')"
        if connection.execute(statement, (*counts.values(), batch_id)).rowcount:
            finish_ranges(connection, batch_id, finished)
            return
        # The batch has ended, or is about to: its files are made of the results that there were.
        connection.executemany(
            "DELETE FROM batch_results WHERE batch_id = ? AND line = ?", [(batch_id, line) for line in new]
        )

    @transaction
    def add_faults(self, connection: Connection, batch_id: str, results: Sequence[LineResult]) -> None:
        """Store results of lines that are no requests; `begin` counts these lines later."""
        if _find(connection, batch_id).status != "validating":
            return  # another server has looked at all of them
        rows = [(batch_id, result.line, 0, result.record) for result in results]
        insert_rows(connection, "batch_results", _RESULT, rows, "ON CONFLICT DO NOTHING")

    @transaction
    def lines_done(self, connection: Connection, batch_id: str) -> set[int]:
        """The lines that have results."""
        query = "SELECT line FROM batch_results WHERE batch_id = ?"
        return {row["line"] for row in connection.execute(query, (batch_id,))}

    @transaction
    def records(
        self, connection: Connection, batch_id: str, *, succeeded: bool, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Lines and their records, in the lines' order."""
        query = (
            "SELECT line, record FROM batch_results WHERE batch_id = ? AND succeeded = ? AND line > ? "
            "ORDER BY line LIMIT ?"
        )
        found = connection.execute(query, (batch_id, int(succeeded), after, limit))
        return [(row["line"], row["record"]) for row in found]

    @transaction
    def add_crash(self, connection: Connection, batch_id: str, line: int) -> int:
        """The engine failed while it had the line. Returns how often it has."""
        query = (
            "INSERT INTO batch_crashes VALUES (?, ?, 1) ON CONFLICT (batch_id, line) "
            "DO UPDATE SET num_crashes = batch_crashes.num_crashes + 1 RETURNING num_crashes"
        )
        (row,) = connection.execute(query, (batch_id, line)).fetchall()
        return int(row["num_crashes"])

    @transaction
    def crashes(self, connection: Connection, batch_id: str) -> dict[int, int]:
        """Line → how often the engine failed while it had it."""
        query = "SELECT line, num_crashes FROM batch_crashes WHERE batch_id = ?"
        return {row["line"]: row["num_crashes"] for row in connection.execute(query, (batch_id,))}

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now()

    def _time(self) -> int:
        return int(self._now())


def _find(connection: Connection, batch_id: str, caller: Caller = SERVER, *, for_update: bool = False) -> Batch:
    row = find_row(connection, "batches", batch_id, caller.condition(), for_update=for_update)
    if row is None:
        raise HttpError(ErrorBody(404, f"no such batch: {batch_id[:256]!r}", "batch_id", code="batch_not_found"))
    return Batch.of(row)


def _update(connection: Connection, batch_id: str, **values: Any) -> Batch:
    changes = ", ".join(f"{name} = ?" for name in values)
    connection.execute(f"UPDATE batches SET {changes} WHERE id = ?", (*values.values(), batch_id))
    return _find(connection, batch_id)


def _advance(connection: Connection, batch_id: str, before: str, after: str, **values: Any) -> Batch:
    """From one status to the next; a batch that has left the first one, as by a cancel, stays as it is."""
    batch = _find(connection, batch_id, for_update=True)
    return _update(connection, batch_id, status=after, **values) if batch.status == before else batch


def _counts(connection: Connection, batch_id: str) -> dict[str, int]:
    query = "SELECT count(*) AS number, count(nullif(succeeded, 0)) AS completed FROM batch_results WHERE batch_id = ?"
    row = connection.execute(query, (batch_id,)).fetchone()
    return {"completed": row["completed"], "failed": row["number"] - row["completed"]}


def _end(connection: Connection, batch: Batch) -> list[str]:
    if batch.status in LIVE:
        return []
    for table in ("batch_results", "batch_crashes", "batch_ranges"):
        connection.execute(f"DELETE FROM {table} WHERE batch_id = ?", (batch.id,))
    return release_file(connection, batch.input_file_id, batch.id)
