"""Running prompts on the engine: one stream of outputs per HTTP request, closed whatever happens to the client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from starlette.types import Receive

from palladio.http.generation.context import Context
from palladio.http.observability.request_record import Origin, RequestRecord
from palladio.http.wire.errors import CLIENT_CLOSED_REQUEST, ErrorBody, HttpError
from palladio.runtime.front.engine_protocol import EngineClient
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.generation_request import GenerationRequest
from palladio.runtime.interface.outputs import RequestOutput

T = TypeVar("T")
Outputs = AsyncGenerator[RequestOutput, None]

MAX_GRAMMAR_BYTES = 16 * 1024 * 1024  # of all samples: each is told its grammar
MAX_UNREAD = 64  # outputs of several prompts that wait for their reader here
_AT_A_TIME = 32  # prompts that go to the engine in one go
MAX_SAMPLES = 4096  # prompts × n in one request; more would hold one connection for very long


def numbered_ids(name: str, count: int) -> list[str]:
    """The engine's ids for a request: the client's id, numbered if there are several prompts."""
    return [name] if count == 1 else [f"{name}.{position}" for position in range(count)]


def check_num_prompts(count: int, param: str) -> None:
    if count > MAX_SAMPLES:
        raise InvalidRequestError(f"a request takes at most {MAX_SAMPLES} prompts, got {count}", param=param)


def check_num_samples(num_prompts: int, num_samples: int) -> None:
    """
    Args:
        num_samples: of all prompts together.

    Raises:
        InvalidRequestError: they are too many.
    """
    if num_samples > MAX_SAMPLES:
        raise InvalidRequestError(
            f"a request takes at most {MAX_SAMPLES} samples (prompts × n), got {num_samples} of {num_prompts} prompts; "
            "lower n or send fewer prompts",
            param="n",
        )


class OutputStream:
    """The outputs of all samples of an HTTP request's prompts; an output's index is that of its choice.

    `start` opens it; leaving it as a context manager aborts what still runs.

    Args:
        requests: the prompts.
        name: of the whole; None: that of its only prompt.
        origin: where the request comes from; None: nobody is told of it.

    Attributes:
        first: the output that `start` waited for; None if there is none at all.
        rest: the outputs after it; whoever takes one tells `observe`.
            (Two attributes, not one iterator: a layer less for each token.)
        observe: to be told of each output of `rest`.
    """

    def __init__(
        self,
        context: Context,
        requests: Sequence[GenerationRequest],
        *,
        name: str | None = None,
        origin: Origin | None = None,
    ) -> None:
        self._context = context
        self._origin = origin
        self._record: RequestRecord | None = None
        self.observe: Callable[[RequestOutput], None] = _ignore
        self._requests = requests
        self._name = name or requests[0].request_id
        self._stack = contextlib.AsyncExitStack()
        self.first: RequestOutput | None = None
        engine = context.engine
        self.rest = engine.generate(requests[0]) if len(requests) == 1 else _merge(engine, requests)

    def renewed(self) -> "OutputStream":
        """The same, not yet started."""
        return OutputStream(self._context, self._requests, name=self._name, origin=self._origin)

    @property
    def n(self) -> int:
        """Of each prompt, where all have the same: everywhere but /generate."""
        return self._requests[0].params.n

    @property
    def logprobs(self) -> int | None:
        """Likeliest tokens to report, of all prompts alike; None: no log-probabilities."""
        return self._requests[0].params.logprobs

    @property
    def num_choices(self) -> int:
        return sum(request.params.n for request in self._requests)

    async def start(self) -> Self:
        """Waits for the first output, so that an error found before it still gets its HTTP status."""
        _check_grammars(self._requests)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._context.running.track(self._name, self._requests))
            self._begin_record(stack)
            await stack.enter_async_context(contextlib.aclosing(self.rest))
            self.first = await anext(self.rest, None)
            if self.first is not None:
                self.observe(self.first)
                check_abort(self.first)
            self._stack = stack.pop_all()
        return self

    def settle(self, error: BaseException | None = None) -> None:
        """Nothing comes any more, and the client does not know it yet. Args: error: what ended it early."""
        if self._record is not None:
            self._record.end(error)

    def _begin_record(self, stack: contextlib.AsyncExitStack) -> None:
        if self._origin is None:
            return
        observer, tokenizer = self._context.observer, self._context.engine.tokenizer
        self._record = observer.begin(self._name, self._requests, self._origin, tokenizer)
        self.observe = self._record.add

        def end(_: object, error: BaseException | None, __: object) -> bool:
            self.settle(error)
            return False

        stack.push(end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, traceback)


def _check_grammars(requests: Sequence[GenerationRequest]) -> None:
    size = sum(
        request.params.n * len(request.params.grammar.text)
        for request in requests
        if request.params.grammar is not None
    )
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidRequestError.of(
            "the {param} of all samples together is {size} characters, over the limit of {limit}: lower n, send fewer "
            "prompts, or a smaller grammar",
            param="grammar",
            size=size,
            limit=MAX_GRAMMAR_BYTES,
        )


def _ignore(_output: RequestOutput) -> None:
    pass


def check_abort(output: RequestOutput) -> None:
    """
    Raises:
        PalladioError: the engine gave the request up; an abort that the client asked for is a normal end.
    """
    finish = output.finish
    if finish is not None and finish.type == "abort" and finish.status:
        raise finish.error("the engine aborted the request")


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


async def _merge(engine: EngineClient, requests: Sequence[GenerationRequest]) -> Outputs:
    """The outputs of several prompts as they come; the first error ends them all. What a slow reader leaves stays with
    the engine's streams, which merge it."""
    queue: asyncio.Queue[RequestOutput | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(MAX_UNREAD)

    async def pump(request: GenerationRequest) -> None:
        async with contextlib.aclosing(engine.generate(request)) as outputs:
            async for output in outputs:
                output.index += request.first_index
                await room.acquire()
                queue.put_nowait(output)

    tasks: list[asyncio.Task[None]] = []
    try:
        for request in requests:
            task = asyncio.create_task(pump(request))
            task.add_done_callback(queue.put_nowait)
            tasks.append(task)
            if len(tasks) % _AT_A_TIME == 0:
                await asyncio.sleep(0)  # they begin, then others have their turn
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, asyncio.Task):
                item.result()
                running -= 1
            else:
                room.release()
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
