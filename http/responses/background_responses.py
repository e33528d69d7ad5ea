"""Responses in the background: they are made whether or not anybody waits for them."""

import asyncio
import dataclasses
import logging
import uuid

from palladio.http.chat_run import ChatRun
from palladio.http.errors import HttpError, error_body, internal_error
from palladio.http.responses.event_log import EventLog
from palladio.http.responses.response_events import ResponseEvents
from palladio.http.responses.response_items import Response
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.runtime.engine_client import EngineClient
from palladio.runtime.errors import PalladioError

logger = logging.getLogger(__name__)

_UNENDED = ("queued", "in_progress")


@dataclasses.dataclass(slots=True)
class RunningResponse:
    """One that has not ended.

    Attributes:
        events: its writer, which has it as far as it is.
        log: what came so far.
    """

    events: ResponseEvents
    log: EventLog
    task: asyncio.Task[None]


class BackgroundResponses:
    """Those of this server that run. Each is in the store from its beginning, with its request: should the server end
    before it does, another one can make it again.
    """

    def __init__(self, engine: EngineClient, store: ResponseStore) -> None:
        self._engine = engine
        self._store = store
        self._running: dict[str, RunningResponse] = {}
        self._has_claimed = False

    def claim_unfinished(self) -> bool:
        """Whether it falls to the caller to start what an earlier server left in the store: once."""
        is_first, self._has_claimed = not self._has_claimed, True
        return is_first

    def give_back_claim(self) -> None:
        """The next one who asks may try again."""
        self._has_claimed = False

    def start(self, run: ChatRun, events: ResponseEvents) -> RunningResponse:
        """Args: events: of a response that is in the store."""
        log = EventLog()
        log.add(events.queue())
        name = run.name
        running = RunningResponse(events, log, asyncio.create_task(self._run(run, events, log)))
        self._running[name] = running
        running.task.add_done_callback(lambda _: self._running.pop(name, None))
        return running

    def find(self, response_id: str) -> RunningResponse | None:
        return self._running.get(response_id)

    async def cancel(self, response_id: str) -> Response | None:
        """Ends one early, and returns it; None: it does not run."""
        running = self._running.get(response_id)
        if running is None:
            return None
        response = running.events.response
        if response["status"] not in _UNENDED:
            await asyncio.wait((running.task,))  # it is being stored
            return response
        await _stop(running)
        if response["status"] in _UNENDED:  # nobody else has cancelled it meanwhile
            running.events.end("cancelled")
            await self._finish(running.events, running.log)
        return response

    async def drop(self, response_id: str) -> None:
        """Ends one that nobody wants to see any more."""
        running = self._running.get(response_id)
        if running is not None:
            await _stop(running)
            running.log.close()

    async def _run(self, run: ChatRun, events: ResponseEvents, log: EventLog) -> None:
        try:
            await run.feed(lambda output: log.add(events.write(output)))
        except (PalladioError, HttpError) as exc:
            log.add(events.fail(error_body(exc)))
        except Exception:  # the client has its answer: this is the request's border
            error_id = uuid.uuid4().hex
            logger.exception("error %s in response %s", error_id, run.name)
            log.add(events.fail(internal_error(error_id)))
        if self._engine.state in ("draining", "dead") and events.response["status"] in ("failed", "cancelled"):
            log.close()  # it ends with the server: the request stays in the store, to be made again
        else:
            await self._finish(events, log)

    async def _finish(self, events: ResponseEvents, log: EventLog) -> None:
        if events.response["status"] != "failed":
            log.add(events.close())
        await self._store.finish(StoredResponse(events.response, None, log.content))
        log.close()


async def _stop(running: RunningResponse) -> None:
    running.task.cancel()
    await asyncio.wait((running.task,))
