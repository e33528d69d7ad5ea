"""Running prompts on the engine: one stream of outputs per HTTP request, closed whatever happens to the client."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.types import Receive

from palladio.http.context import Context
from palladio.http.errors import CLIENT_CLOSED_REQUEST, ErrorBody, HttpError
from palladio.runtime.engine_client import EngineClient
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.messages import EngineReady
from palladio.runtime.outputs import RequestOutput
from palladio.runtime.sampling_params import SamplingParams

T = TypeVar("T")
Outputs = AsyncGenerator[RequestOutput, None]

MAX_PROMPTS = 4096  # prompts in one request; more would hold one connection for very long


@dataclasses.dataclass(frozen=True)
class Job:
    """One prompt for the engine.

    Attributes:
        first_index: of its samples among the request's choices.
    """

    prompt_ids: list[int]
    params: SamplingParams
    request_id: str
    first_index: int = 0


def job_ids(name: str, count: int) -> list[str]:
    """The engine's ids for a request: the client's id, numbered if there are several prompts."""
    return [name] if count == 1 else [f"{name}.{position}" for position in range(count)]


def default_max_tokens(
    params: SamplingParams, default: int, num_prompt_tokens: int, info: EngineReady
) -> SamplingParams:
    """Sets max_tokens where the client did not: the route's default, but never more than the context holds."""
    room = min(info.context_length, info.max_total_tokens) - num_prompt_tokens
    limit = max(1, params.min_tokens, min(default, room))
    return dataclasses.replace(params, max_tokens=limit)


def check_num_prompts(count: int, param: str) -> None:
    if count > MAX_PROMPTS:
        raise InvalidRequestError(f"a request takes at most {MAX_PROMPTS} prompts, got {count}", param=param)


class OutputStream:
    """The outputs of all samples of all jobs; an output's index is that of its choice.

    `start` opens it; leaving it as a context manager aborts what still runs.

    Attributes:
        first: the output that `start` waited for; None if there is none at all.
        rest: the outputs after it. (Two attributes, not one iterator: a layer less for each token.)
    """

    def __init__(self, context: Context, jobs: list[Job], *, name: str, received: float) -> None:
        self._context = context
        self._jobs = jobs
        self._name = name
        self._stack = contextlib.AsyncExitStack()
        self.first: RequestOutput | None = None
        self.rest = (
            _start(context.engine, jobs[0], received) if len(jobs) == 1 else _merge(context.engine, jobs, received)
        )

    @property
    def n(self) -> int:
        """Of each prompt, where all have the same: everywhere but /generate."""
        return self._jobs[0].params.n

    @property
    def num_choices(self) -> int:
        return sum(job.params.n for job in self._jobs)

    async def start(self) -> Self:
        """Waits for the first output, so that an error found before it still gets its HTTP status."""
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._context.track(self._name, [job.request_id for job in self._jobs]))
            await stack.enter_async_context(contextlib.aclosing(self.rest))
            self.first = await anext(self.rest, None)
            if self.first is not None:
                check_abort(self.first)
            self._stack = stack.pop_all()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()


def check_abort(output: RequestOutput) -> None:
    """
    Raises:
        HttpError: the engine gave the request up; an abort that the client asked for is a normal end.
    """
    finish = output.finish
    if finish is not None and finish.type == "abort" and finish.status:
        message = finish.message or "the engine aborted the request"
        headers = {"Retry-After": "1"} if finish.status in (429, 503) else {}
        raise HttpError(ErrorBody(finish.status, message, code="request_aborted", headers=headers))


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, and cancels it if the client goes away first. The request's body must have been read.

    Raises:
        HttpError: the client went away; nobody will read this.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise HttpError(ErrorBody(CLIENT_CLOSED_REQUEST, "the client closed the connection"))
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait((task, gone))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(engine: EngineClient, job: Job, received: float) -> Outputs:
    return engine.generate(job.prompt_ids, job.params, request_id=job.request_id, received=received)


async def _merge(engine: EngineClient, jobs: list[Job], received: float) -> Outputs:
    """The outputs of several jobs as they come; the first error ends them all."""
    queue: asyncio.Queue[RequestOutput | asyncio.Task[None]] = asyncio.Queue()

    async def pump(job: Job) -> None:
        async with contextlib.aclosing(_start(engine, job, received)) as outputs:
            async for output in outputs:
                output.index += job.first_index
                queue.put_nowait(output)

    tasks = [asyncio.create_task(pump(job)) for job in jobs]
    try:
        for task in tasks:
            task.add_done_callback(queue.put_nowait)
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, asyncio.Task):
                item.result()
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
