"""BatchRun: one batch from whatever state it is in to its end."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from palladio.http.batches.batch import LIVE, Batch
from palladio.http.batches.batch_claims import BatchClaims, Claim
from palladio.http.batches.batch_limits import BatchLimits
from palladio.http.batches.batch_lines import DuplicateFinder, LineReader
from palladio.http.batches.batch_records import Fault, Line, left, not_run
from palladio.http.batches.batch_store import BatchStore
from palladio.http.batches.endpoints import find_endpoint
from palladio.http.batches.line_runner import LineRunner
from palladio.http.batches.other_names import OtherNames, asked_model
from palladio.http.batches.result_buffer import ResultBuffer
from palladio.http.files.file_store import RESULT_PREFIX, RESULT_PURPOSE, Contents, FileStore, StoredFile
from palladio.http.generation.context import Context, Endpoint
from palladio.http.security.callers import SERVER
from palladio.http.storage.records.database import Database

POLL = 5.0  # seconds between looks at what other servers have done, if no news come
MAX_ERRORS = 100  # that a failed batch lists

_PAGE = 64  # results that are copied into a file at a time
_EXPIRED = Fault("batch_expired", "the line was not run before the batch's completion_window ended")
_CANCELLED = Fault("batch_cancelled", "the batch was cancelled before the line had an answer")

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class BatchRun:
    """All state is in the store: it can be dropped at any moment, and another one goes on.

    Attributes:
        now: seconds since the epoch.
    """

    context: Context
    files: FileStore
    store: BatchStore
    claims: BatchClaims
    shared: BatchLimits
    now: Callable[[], float]
    batch_id: str

    async def run(self) -> None:
        """
        Raises:
            OSError, sqlite3.Error, HttpError: such as a full disk, also in groups. It may be run again.
        """
        batch = await self.store.get(self.batch_id, SERVER)
        while batch.status in LIVE:
            endpoint = find_endpoint(batch.endpoint)
            assert endpoint is not None, "it was looked up when the batch was made"
            match batch.status:
                case "in_progress":
                    after = await self._answer(batch, endpoint)
                case _:
                    after = await self._advance_alone(batch, endpoint)
            if after.status != batch.status:
                log_status(after)
            batch = after

    async def _advance_alone(self, batch: Batch, endpoint: Endpoint[Any]) -> Batch:
        """What one server does for a batch; the others wait for it, or for its end."""
        async with self._database.exclusive(f"batch {batch.id}") as is_ours:
            now = await self.store.get(batch.id, SERVER)
            if now.status != batch.status:
                return now
            if is_ours:
                return await (self._validate if batch.status == "validating" else self._end)(batch, endpoint)
        await self.shared.news.wait(POLL)
        return await self.store.get(batch.id, SERVER)

    @property
    def _database(self) -> Database:
        return self.context.storage.database

    def _reader(self, batch: Batch, endpoint: Endpoint[Any]) -> LineReader:
        limits = self.context.limits
        return LineReader(lambda: self.files.read(batch.input_file_id), endpoint, limits.max_bytes, limits.max_values)

    async def _validate(self, batch: Batch, endpoint: Endpoint[Any]) -> Batch:
        """Count the lines, and store results for lines that are no requests. A file without any request, or with too
        many lines, fails the batch."""
        async with self.shared.validating:
            finder, faults = DuplicateFinder(), list[tuple[int, Fault]]()
            total, last_line, has_object, model = 0, 0, False, None
            limit, names = self.context.config.max_batch_lines, OtherNames(self.context)
            try:
                async with contextlib.aclosing(self._reader(batch, endpoint).chunks()) as chunks:
                    async for chunk in chunks:
                        total += len(chunk)
                        last_line = chunk[-1].number
                        if total > limit:
                            message = f"the file has more than {limit} lines (--max-batch-lines)"
                            return await self._fail(batch, [(None, Fault("too_many_lines", message))])
                        lines = [finder.check(line) for line in chunk]
                        wrong = [(line, line.fault) for line in lines if line.fault is not None]
                        if wrong:
                            await self.store.add_faults(batch.id, [not_run(line, fault) for line, fault in wrong])
                            faults += [(line.number, fault) for line, fault in wrong[: MAX_ERRORS - len(faults)]]
                        has_object = has_object or any(line.is_object for line in lines)
                        model = model or next(filter(None, map(asked_model, lines)), None)
                        names.add(lines)
            except FileNotFoundError:
                self._check_gone(batch)
                message = "the contents of the input file are gone from the server's storage"
                return await self._fail(batch, [(None, Fault("file_not_found", message, "input_file_id"))])
            if total == 0:
                return await self._fail(batch, [(None, Fault("empty_file", "the file is empty", "input_file_id"))])
            if not has_object:
                return await self._fail(batch, list(faults))
            names.warn(batch.id)
            model = model or self.context.names.shown[0]
            return await self.store.begin(batch.id, total=total, last_line=last_line, model=model)

    def _check_gone(self, batch: Batch) -> None:
        """Called for contents of its input file that are not there.

        Raises:
            FileNotFoundError: they may be there for other servers, and for this one later.
        """
        if self._database.is_shared and self.now() < batch.expires_at:
            raise FileNotFoundError(f"the contents of input file {batch.input_file_id} are not there")
        logger.error(
            "Batch %s: the contents of its input file are missing; its remaining lines get no results", batch.id
        )

    async def _fail(self, batch: Batch, faults: list[tuple[int | None, Fault]]) -> Batch:
        errors = [dataclasses.asdict(fault) | {"line": number} for number, fault in faults]
        batch, contents = await self.store.fail(batch.id, errors)
        await self.files.drop(contents)
        return batch

    async def _answer(self, batch: Batch, endpoint: Endpoint[Any]) -> Batch:
        """Runs lines that have no results, until there are none, or the batch's time is over."""
        try:
            async with asyncio.timeout(max(0.0, batch.expires_at - self.now())) as limit:
                async with self.shared.answering:
                    with self.shared.running_lines(batch.id):
                        await self._answer_lines(batch, endpoint)
                if await self.claims.num_left(batch.id):  # with other servers
                    await self.shared.news.wait(POLL)
        except TimeoutError:
            if not limit.expired():
                raise
            async with self._database.exclusive(f"batch {batch.id}") as is_ours:
                if is_ours:
                    await self._skip_rest(batch, endpoint, _EXPIRED)
                else:
                    await self.shared.news.wait(POLL)
                    return await self.store.get(batch.id, SERVER)
        return await self.store.finalize(batch.id, is_expired=limit.expired())

    async def _answer_lines(self, batch: Batch, endpoint: Endpoint[Any]) -> None:
        """Run the lines of all ranges that this server claims."""
        gate, crashes = self.shared.gate, await self.store.crashes(batch.id)
        runner = LineRunner(self.context, self.store, gate, batch, endpoint, self.now, crashes)
        buffer = ResultBuffer(self.store, batch.id)

        async def answer(line: Line) -> None:
            # A fault that its validation did not find: --max-request-bytes or --max-request-values was higher then.
            result = await runner.run(line) if line.fault is None else not_run(line, line.fault)
            buffer.add(result)
            self.context.observer.metrics.count_line(succeeded=result.succeeded)

        async def finish(claim: Claim, tasks: list[asyncio.Task[None]]) -> None:
            await asyncio.gather(*tasks)
            buffer.finish(claim.first)

        await self.claims.release(batch.id)  # those of a run before this one
        try:
            async with buffer.writing(), asyncio.TaskGroup() as group, self._claimed(batch, endpoint) as claimed:
                async for claim, lines in claimed:
                    tasks = []
                    for line in lines:
                        await buffer.room()
                        release = await gate.acquire()
                        tasks.append(group.create_task(answer(line)))
                        # A callback: a task that is cancelled before its first step runs nothing of its own.
                        tasks[-1].add_done_callback(release)
                        await asyncio.sleep(0)
                    group.create_task(finish(claim, tasks))
        except* FileNotFoundError:
            self._check_gone(batch)
            await self.claims.give_up(batch.id)

    @contextlib.asynccontextmanager
    async def _claimed(
        self, batch: Batch, endpoint: Endpoint[Any]
    ) -> AsyncGenerator[AsyncGenerator[tuple[Claim, list[Line]], None], None]:
        """Claims ranges one by one, and reads their lines that have no results."""

        async def claims() -> AsyncGenerator[Claim, None]:
            last = 0
            while True:
                await self.shared.gate.wait_ready()
                claim = await self.claims.next(batch.id, last)
                if claim is None:
                    return
                last = claim.last
                yield claim

        async with contextlib.aclosing(self._reader(batch, endpoint).claimed(claims())) as found:
            yield found

    async def _skip_rest(self, batch: Batch, endpoint: Endpoint[Any], fault: Fault) -> None:
        """Gives lines without results this error."""
        done = await self.store.lines_done(batch.id)
        try:
            async with contextlib.aclosing(self._reader(batch, endpoint).chunks()) as chunks:
                async for chunk in chunks:
                    rest = [left(line, fault) for line in chunk if line.number not in done]
                    if rest:
                        await self.store.add_results(batch.id, rest)
        except FileNotFoundError:  # somebody has been at the folder: the batch ends with what it has
            self._check_gone(batch)

    async def _end(self, batch: Batch, endpoint: Endpoint[Any]) -> Batch:
        """Writes the files. Broken off before its last step, it is done again; then the first files are leftovers."""
        if batch.status == "cancelling" and batch.in_progress_at is not None:
            await self._skip_rest(batch, endpoint, _CANCELLED)
        has_results = batch.in_progress_at is not None
        made: list[Contents] = []
        async with self.files.dropped_on_failure(made):
            output = await self._write(batch, succeeded=True, made=made) if has_results else None
            errors = await self._write(batch, succeeded=False, made=made) if has_results else None
        async with self.files.dropped_on_failure(made, but_not_on_cancel=True):
            batch, contents = await self.store.end(batch.id, output, errors)
        await self.files.drop(contents)
        return batch

    async def _write(self, batch: Batch, *, succeeded: bool, made: list[Contents]) -> StoredFile | None:
        """A file of the results of one kind; None: there are none."""
        if not await self.store.records(batch.id, succeeded=succeeded, after=0, limit=1):
            return None
        contents = await self.files.put(RESULT_PREFIX, self._records(batch, succeeded=succeeded))
        made.append(contents)
        name = f"{batch.id}_{'output' if succeeded else 'error'}.jsonl"
        return self.files.describe(
            contents,
            purpose=RESULT_PURPOSE,
            filename=name,
            expires_after=batch.output_expires_after,
            owner=batch.owner,
        )

    async def _records(self, batch: Batch, *, succeeded: bool) -> AsyncGenerator[bytes, None]:
        """The results of one kind, some lines at a time."""
        last = 0
        while page := await self.store.records(batch.id, succeeded=succeeded, after=last, limit=_PAGE):
            yield b"".join(record + b"\n" for _, record in page)
            last = page[-1][0]


def log_status(batch: Batch) -> None:
    """One line each time that it changes."""
    counts = f"{batch.completed} completed and {batch.failed} failed of {batch.total} lines"
    if batch.num_left:
        counts += f", {batch.num_left} {batch.status} without an answer"
    logger.info("Batch %s (%s): %s, %s", batch.id, batch.endpoint, batch.status, counts)
