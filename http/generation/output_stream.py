"""OutputStream: the outputs of an HTTP request's prompts as one stream, closed whatever happens to the client."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Self

from palladio.http.generation.context import Context
from palladio.http.observability.records.request_record import Origin, RequestRecord
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.security.body_pipe import BodyPipe
from palladio.http.wire.fields import AS_SENT, FieldMap
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import MAX_STOP_CHARACTERS, STOP_REGEX
from palladio.runtime.text.tokenizers.stop_regex import read_pattern

Outputs = AsyncGenerator[RequestOutput, None]

# Of all samples of a request together: each one carries its prompt and its grammar to the engine.
MAX_GRAMMAR_BYTES = 16 * 1024 * 1024
MAX_IDS = 1 << 25  # of prompts and of allowed_token_ids
MAX_PATTERNS = 16  # different ones, of all prompts

MAX_UNREAD = 64  # outputs of several prompts that wait for their reader here
_AT_A_TIME = 32  # samples that go to the engine in one go
_PATTERN_COST = 64  # reading a character of a pattern takes as long as tokenizing 64 of a text


class OutputStream:
    """The outputs of all samples of an HTTP request's prompts; an output's index is that of its choice.

    `async with stream` opens it, and aborts what still runs at the end; `async for output in stream` gives the outputs.
    The server notes each of them in the request's record.

    Args:
        requests: the prompts.
        name: of the whole; None: that of its only prompt.
        origin: where the request comes from; None: it is in no record.

    Attributes:
        names: what the client calls the engine's fields, which errors of the engine are about.
    """

    def __init__(
        self,
        context: Context,
        requests: Sequence[GenerationRequest],
        *,
        name: str | None = None,
        origin: Origin | None = None,
        names: FieldMap = AS_SENT,
    ) -> None:
        self.names = names
        self._context = context
        self._origin = origin
        self._record: RequestRecord | None = None
        self._observe: Callable[[RequestOutput], None] = _ignore
        self._requests = requests
        self._name = name or requests[0].request_id
        self._stack = contextlib.AsyncExitStack()
        self._is_open = False
        self._first: RequestOutput | None = None  # that opening it waited for
        engine = context.engine
        self._rest = engine.generate(requests[0]) if len(requests) == 1 else _merge(engine, requests)

    def renewed(self) -> "OutputStream":
        """The same, not yet open."""
        return OutputStream(self._context, self._requests, name=self._name, origin=self._origin, names=self.names)

    @property
    def n(self) -> int:
        """Samples of each prompt; everywhere but /generate all prompts have the same number."""
        return self._requests[0].params.n

    @property
    def logprobs(self) -> int | None:
        """Likeliest tokens to report, of all prompts alike; None: no log-probabilities."""
        return self._requests[0].params.logprobs

    @property
    def num_choices(self) -> int:
        return sum(request.params.n for request in self._requests)

    async def start(self) -> Self:
        """Opens it before it is entered: waits for the first output, so that an error found before it still gets its
        HTTP status.

        Raises:
            PalladioError: what went wrong; in the client's names.
        """
        with self.names.renaming():
            await self._open()
        return self

    async def __aenter__(self) -> Self:
        if not self._is_open:
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        """
        Raises:
            PalladioError: the engine gave a request up; in the engine's names.
        """
        first, self._first = self._first, None
        if first is not None:
            return first
        output = await anext(self._rest)
        self._observe(output)
        if output.finish is not None:
            check_abort(output)
        return output

    def attach(self, write: Callable[[RequestOutput], bytes], pipe: BodyPipe) -> None:
        """Attaches a fast path: outputs are written where they come, without a task in between, as long as the client
        keeps up. What it does not take goes to the reader: all of several prompts, and each sample's last output.

        Args:
            write: output → what the client gets of it.
        """
        if len(self._requests) > 1:
            return
        observe = self._observe

        def take(output: RequestOutput) -> bool:
            if not pipe.is_open:
                return False
            observe(output)
            if events := write(output):
                pipe.write(events)
            return True

        self._context.engine.attach(self._requests[0].scoped_id, take)

    def end_record(self, error: BaseException | None = None) -> None:
        """End the record before the client gets the last event.

        Args:
            error: what ended it early.
        """
        if self._record is not None:
            self._record.end(error)
            if error is not None and self._origin is not None:
                self._context.observer.errors.note_failure(self._origin, error)

    async def _open(self) -> None:
        self._is_open = True
        check_samples(self._requests)
        if patterns := stop_patterns(self._requests):
            await run_encoding(lambda: [*map(read_pattern, patterns)], _PATTERN_COST * sum(map(len, patterns)))
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._context.running.track(self._name, self._requests))
            self._begin_record(stack)
            await stack.enter_async_context(contextlib.aclosing(self._rest))
            self._first = await anext(self._rest, None)
            if self._first is not None:
                self._observe(self._first)
                check_abort(self._first)
            self._stack = stack.pop_all()

    def _begin_record(self, stack: contextlib.AsyncExitStack) -> None:
        if self._origin is None:
            return
        observer, tokenizer = self._context.observer, self._context.engine.tokenizer
        self._record = observer.begin(self._name, self._requests, self._origin, tokenizer)
        self._observe = self._record.add

        def end(_: object, error: BaseException | None, __: object) -> bool:
            self.end_record(error)
            return False

        stack.push(end)


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


async def _merge(engine: EngineClient, requests: Sequence[GenerationRequest]) -> Outputs:
    """The outputs of several prompts as they come; the first error ends them all. What a slow reader leaves stays with
    the engine's streams, which merge it."""
    queue: asyncio.Queue[RequestOutput | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(MAX_UNREAD)

    async def pump(request: GenerationRequest) -> None:
        async with contextlib.aclosing(engine.generate(request)) as outputs:
            async for output in outputs:
                output.count_from(request.first_index)
                await room.acquire()
                queue.put_nowait(output)

    tasks: list[asyncio.Task[None]] = []
    try:
        num_begun = 0
        for request in requests:
            task = asyncio.create_task(pump(request))
            task.add_done_callback(queue.put_nowait)
            tasks.append(task)
            num_begun += request.params.n
            if num_begun >= _AT_A_TIME:
                num_begun = 0
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


def check_samples(requests: Sequence[GenerationRequest]) -> None:
    """
    Raises:
        InvalidRequestError: prompts, allowed ids, grammars or stop strings are too large in sum.
    """
    _check_grammars(requests)
    _check_ids(requests)
    _check_stops(requests)


def stop_patterns(requests: Sequence[GenerationRequest]) -> set[str]:
    """The different patterns of `stop_regex`.

    Raises:
        InvalidRequestError: there are more than MAX_PATTERNS.
    """
    patterns = {pattern for request in requests for pattern in request.params.stop_regex}
    if len(patterns) > MAX_PATTERNS:
        message = "{param} takes at most {most} different patterns of all prompts together, got {count}"
        raise InvalidRequestError.of(message, param=STOP_REGEX, most=MAX_PATTERNS, count=len(patterns))
    return patterns


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


def _check_ids(requests: Sequence[GenerationRequest]) -> None:
    size = sum(request.params.n * _num_ids(request) for request in requests)
    if size > MAX_IDS:
        message = (
            "{param} × the samples are {size} token ids, over the limit of {limit}: lower {n}, or send fewer prompts"
        )
        raise InvalidRequestError.of(message, param="prompt", fields={"n": "n"}, size=size, limit=MAX_IDS)


def _num_ids(request: GenerationRequest) -> int:
    return len(request.prompt_ids) + len(request.params.allowed_token_ids or ())


def _check_stops(requests: Sequence[GenerationRequest]) -> None:
    """Prompts may each have their own, and each automaton is made before the first token."""
    stops = {request.params.stop for request in requests}
    if (size := sum(len(string) for strings in stops for string in strings)) > MAX_STOP_CHARACTERS:
        message = "{param} takes strings of at most {most} characters together, got {size} of all prompts"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_CHARACTERS, size=size)
