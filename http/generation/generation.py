"""Running prompts on the engine: one stream of outputs per HTTP request, closed whatever happens to the client."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive

from palladio.http.generation.context import Context
from palladio.http.generation.params import request_options
from palladio.http.generation.sample_limits import check_samples, stop_patterns
from palladio.http.observability.records.request_record import Origin, RequestRecord
from palladio.http.prompts.chat_messages import run_encoding
from palladio.http.security.callers import Caller
from palladio.http.wire.body import JsonBody, describe_body, until_disconnect
from palladio.http.wire.errors import RequestNames
from palladio.http.wire.protocol import PromptFields, WireModel
from palladio.runtime.front.requests.engine_protocol import EngineClient, Sink
from palladio.runtime.interface.outputs.request_output import RequestOutput, RequestTimings
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.request_options import RequestOptions
from palladio.runtime.text.tokenizers.stop_regex import read_pattern

T = TypeVar("T")
B = TypeVar("B", bound=WireModel)
Outputs = AsyncGenerator[RequestOutput, None]

MAX_UNREAD = 64  # outputs of several prompts that wait for their reader here
_AT_A_TIME = 32  # samples that go to the engine in one go
_PATTERN_COST = 64  # reading a character of a pattern takes as long as tokenizing so many of a text


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
        check_samples(self._requests)
        if patterns := stop_patterns(self._requests):
            await run_encoding(lambda: [*map(read_pattern, patterns)], _PATTERN_COST * sum(map(len, patterns)))
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

    async def feed(self, write: Callable[[RequestOutput], object]) -> None:
        """Waits for the end of every sample, and hands each output on as it comes.

        Raises:
            PalladioError: the engine gave a request up, or `write` does.
        """
        async with await self.start():
            if self.first is not None:
                write(self.first)
            async for output in self.rest:
                self.observe(output)
                check_abort(output)
                write(output)

    def divert(self, sink: Sink) -> None:
        """See EngineClient.divert; outputs of several prompts go to the reader."""
        if len(self._requests) == 1:
            self._context.engine.divert(self._requests[0].scoped_id, sink)

    def end_record(self, error: BaseException | None = None) -> None:
        """Nothing comes any more, and the client does not know it yet. Args: error: what ended it early."""
        if self._record is not None:
            self._record.end(error)
            if error is not None and self._origin is not None:
                self._context.observer.errors.note_failure(self._origin, error)

    def _begin_record(self, stack: contextlib.AsyncExitStack) -> None:
        if self._origin is None:
            return
        observer, tokenizer = self._context.observer, self._context.engine.tokenizer
        self._record = observer.begin(self._name, self._requests, self._origin, tokenizer)
        self.observe = self._record.add

        def end(_: object, error: BaseException | None, __: object) -> bool:
            self.end_record(error)
            return False

        stack.push(end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, traceback)


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


_TRACE_HEADERS = ("traceparent", "tracestate")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Attributes:
    request_id: the request's name, unless its body gives one.
    route: the path that was asked for.
    shown_id: the X-Request-Id that goes back.
    caller: who asks.
    headers: those that carry a distributed trace.
    receive: messages of the client, whose body has been read; None: there is nobody who could go away.
    is_background: it only takes what other requests leave, see RequestOptions.
    timeout: seconds that it has where its body does not say; None: as the server's flags have it.
    names: what the client calls the fields of its request, for errors.
    """

    request_id: str
    route: str
    shown_id: str
    caller: Caller
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    receive: Receive | None = None
    is_background: bool = False
    timeout: float | None = None
    names: RequestNames = dataclasses.field(default_factory=RequestNames)

    @classmethod
    def of(cls, request: Request) -> Self:
        headers = {name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers}
        state = request.state
        names = RequestNames.of(request.scope)
        return cls(
            state.request_id, request.url.path, state.shown_id, state.caller, headers, request.receive, names=names
        )

    def origin(self, *, no_logs: bool | None = None, log_metrics: bool | None = None) -> Origin:
        """For the observer. Args: as the body gives them."""
        return Origin(self.route, self.shown_id, self.headers, not no_logs, log_metrics is not False, self.caller.owner)

    def options(self, body: PromptFields) -> RequestOptions:
        """
        Raises:
            InvalidRequestError: a value is out of range.
        """
        options = request_options(body)
        timeout = self.timeout if options.timeout is None else options.timeout
        return dataclasses.replace(options, background=self.is_background, timeout=timeout, owner=self.caller.owner)

    def detached(self) -> Self:
        """The same for work that goes on when the client goes away."""
        return dataclasses.replace(self, receive=None)

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, and cancels it if the client goes away first.

        Raises:
            HttpError: the client went away; nobody will read this.
        """
        return await (work if self.receive is None else until_disconnect(self.receive, work))


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint(Generic[B]):
    """A route whose body is a model, and what answers it; batches call it without HTTP in between.

    Attributes:
        path: of the route.
        model: what its body is.
        answer: what it does; of a body without `stream: true` it gives a plain response.
    """

    path: str
    model: type[B]
    answer: Callable[[Context, Call, B], Awaitable[Response]]

    async def run(self, context: Context, call: Call, body: object) -> Response:
        """Args: body: decoded JSON. Raises PalladioError and HttpError as the route does."""
        call.names.allow_warnings(context.note_warning)
        return await self.answer(context, call, self.model.parse(body, call.names))

    def add_to(self, router: APIRouter, context: Context, *, by_put: bool = False) -> None:
        """Adds the route. Args: by_put: the method is PUT, of which the schema does not tell."""

        read = JsonBody(self.model, context.note_warning)

        async def route(request: Request) -> Response:
            return await self.answer(context, Call.of(request), await read(request))

        class DirectRoute(APIRoute):
            """Without FastAPI's own reading of requests, which has nothing to do here and takes a tenth of a start."""

            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                return route

        router.add_api_route(
            self.path,
            route,
            route_class_override=DirectRoute,
            name=self.path.removeprefix("/v1").strip("/").replace("/", "_"),
            methods=["PUT" if by_put else "POST"],
            response_model=None,
            include_in_schema=not by_put,
            openapi_extra=describe_body(self.model),
        )


class Usage:
    """OpenAI's `usage` of the outputs seen so far. Each prompt counts once, whatever n."""

    def __init__(self, n: int) -> None:
        self._reasoning: dict[int, int] = {}  # by index
        self._n = n
        self._latest: dict[int, RequestOutput] = {}

    def note_reasoning(self, index: int, count: int) -> None:
        """So many tokens of a choice are reasoning so far."""
        self._reasoning[index] = count

    def add(self, output: RequestOutput) -> None:
        self._latest[output.index] = output

    def as_dict(self) -> dict[str, Any]:
        prompts: dict[int, RequestOutput] = {}
        for index in sorted(self._latest):
            prompts.setdefault(index // self._n, self._latest[index])
        prompt_tokens = sum(output.prompt_tokens for output in prompts.values())
        completion_tokens = sum(output.completion_tokens for output in self._latest.values())
        reasoning_tokens = sum(self._reasoning.values())
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(output.cached_tokens for output in prompts.values())},
            "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "reasoning_tokens": reasoning_tokens,
        }

    def timings(self) -> dict[str, Any]:
        """`timings` of the samples that have ended: of several, the longest; detokenize and the counts are sums."""
        ends = [output for output in self._latest.values() if output.finish is not None and output.times is not None]
        each = [RequestTimings.of_output(end) for end in ends]

        def longest(values: Iterable[float | None]) -> float | None:
            return max((value for value in values if value is not None), default=None)

        return {
            "queue": longest(timings.queue for timings in each),
            "compile_wait": longest(timings.compile_wait for timings in each),
            "prefill": longest(timings.prefill for timings in each),
            "decode": longest(timings.decode for timings in each),
            "detokenize": sum(timings.detokenize for timings in each),
            "total": longest(timings.total for timings in each),
            "cached_tokens": self.as_dict()["prompt_tokens_details"]["cached_tokens"],
            "retractions": sum(end.num_retractions for end in ends),
        }


def finish_fields(finish: FinishReason | None, *, has_calls: bool = False) -> dict[str, Any]:
    """How a choice says why it ended: OpenAI's field, SGLang's `matched_stop` and vLLM's `stop_reason`.

    Args:
        has_calls: it calls tools: that is why, unless it was cut off.
    """
    if finish is None:
        return {"finish_reason": None, "matched_stop": None, "stop_reason": None}
    reason = "tool_calls" if has_calls and finish.type == "stop" else finish.type
    return {"finish_reason": reason, "matched_stop": finish.matched, "stop_reason": finish.matched}
