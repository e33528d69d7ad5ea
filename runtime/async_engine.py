"""AsyncEngine: the engine as the front sees it. Text in, text out, on one event loop; never imports jax."""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

from palladio.runtime.config import EngineConfig
from palladio.runtime.engine_client import EngineClient, EngineState
from palladio.runtime.errors import (
    ConfigError,
    EngineDeadError,
    EngineNotReadyError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    PalladioError,
    request_error,
)
from palladio.runtime.hub import read_sampling_defaults, resolve_source
from palladio.runtime.messages import (
    AbortRequests,
    AddRequest,
    ControlReply,
    EngineFailed,
    EngineReady,
    EngineStats,
    FlushCache,
    FromEngine,
    GetStats,
    LoadProgress,
    StepOutputs,
)
from palladio.runtime.output_processor import SampleProcessor, merge_outputs
from palladio.runtime.outputs import FinishReason, RequestOutput
from palladio.runtime.progress import ProgressDisplay
from palladio.runtime.request_front import LONG_TEXT as LONG_TEXT
from palladio.runtime.request_front import RequestFront
from palladio.runtime.request_front import Room as Room
from palladio.runtime.request_options import RequestOptions
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.tokenizer import Tokenizer
from palladio.runtime.transport import EngineTransport

_STOP_TIMEOUT = 10.0
_STOP_TIMEOUT_STARTING = 0.5  # while it loads it does not listen

logger = logging.getLogger(__name__)


class AsyncEngine:
    """Implements EngineClient over a transport. Every method runs in the event loop that called `start`.

    Lives through starting → ready → draining → dead: `await start()`, which returns at once, then `await wait_ready()`.

    Args:
        transport: to an engine in a thread of this process, or in a process of its own (which a server wants).
    """

    def __init__(self, config: EngineConfig, transport: EngineTransport) -> None:
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self.sampling_defaults: Mapping[str, Any] = {}
        self._transport = transport
        self._state: EngineState = "starting"
        self._progress: LoadProgress | None = None
        self._display = ProgressDisplay()
        self._failure: EngineFailed | None = None
        self._info: EngineReady | None = None
        self._front: RequestFront | None = None
        self._launch_task: asyncio.Task[None] | None = None
        self._tokenizer_loaded = False
        self._settled = asyncio.Event()  # no longer starting
        self._idle = asyncio.Event()  # no streams
        self._idle.set()
        self._streams: dict[str, _Stream] = {}
        self._samples: dict[str, tuple[_Stream, SampleProcessor]] = {}  # by engine-side id
        self._calls: dict[int, asyncio.Future[ControlReply]] = {}
        self._call_ids = itertools.count()

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def progress(self) -> LoadProgress | None:
        return self._progress if self._state == "starting" else None

    @property
    def failure(self) -> str | None:
        return None if self._failure is None else self._failure.message

    @property
    def info(self) -> EngineReady:
        if self._info is None:
            raise not_ready(self)
        return self._info

    async def start(self) -> None:
        """Begins to load; returns at once. How it went, `wait_ready` and `state` tell."""
        self._launch_task = asyncio.create_task(self._launch())
        self._tick()

    async def wait_ready(self) -> None:
        """Returns when requests are accepted.

        Raises:
            ConfigError: a flag or the checkpoint is wrong.
            EngineDeadError: the engine could not start for another reason.
        """
        await self._settled.wait()
        if self._failure is not None:
            raise (ConfigError if self._failure.config else EngineDeadError)(self._failure.message)

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Refuses new requests, gives the running ones `drain_seconds`, aborts the rest, ends the engine."""
        if self._state in ("starting", "ready"):
            self._state = "draining"
        if self._state == "draining" and drain_seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain_seconds)
        if self._launch_task is not None:
            self._launch_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._launch_task
        await self.abort(None)
        await self._transport.stop(_STOP_TIMEOUT_STARTING if self._info is None else _STOP_TIMEOUT)
        self._die(EngineFailed("the engine was shut down", config=False))

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        request_id: str,
        received: float | None = None,
        options: RequestOptions = RequestOptions(),
    ) -> AsyncGenerator[RequestOutput, None]:
        """See EngineClient.generate."""
        received = time.time() if received is None else received
        front = self._accepting_front()
        if request_id in self._streams:
            raise InvalidRequestError(f"a request with id {request_id!r} is already running", param="request_id")
        stream = _Stream()
        self._streams[request_id] = stream
        self._idle.clear()
        try:
            if isinstance(prompt, str) and len(prompt) > LONG_TEXT:
                prompt_ids = await asyncio.to_thread(front.prompt_ids, prompt)
            else:
                prompt_ids = front.prompt_ids(prompt)
            self._accepting_front()  # it may have died or begun to drain while a long prompt was tokenized
            self._begin(stream, request_id, front.expand(request_id, prompt_ids, params, received, options))
            while stream.unfinished or stream.pending or stream.error is not None:
                for output in await stream.take():
                    yield output
        finally:
            del self._streams[request_id]
            self._drop(stream)
            if not self._streams:
                self._idle.set()

    async def abort(self, request_id: str | None) -> int:
        """See EngineClient.abort."""
        names = list(self._streams) if request_id is None else [request_id]
        streams = [self._streams[name] for name in names if name in self._streams]
        streams = [stream for stream in streams if stream.unfinished or not stream.begun]
        for stream in streams:
            stream.aborted = True
            self._abort_samples(stream)
        return len(streams)

    async def flush_cache(self) -> None:
        """See EngineClient.flush_cache."""
        reply = await self._call(FlushCache, timeout=20.0)
        if not reply.ok:
            raise OverloadedError(reply.message)

    async def stats(self, timeout: float = 20.0) -> EngineStats:
        """See EngineClient.stats."""
        reply = await self._call(GetStats, timeout)
        assert reply.stats is not None
        return reply.stats

    async def _launch(self) -> None:
        try:
            source = await asyncio.to_thread(resolve_source, self.config.source)
            self.sampling_defaults = read_sampling_defaults(Path(source.model_path))
            config = dataclasses.replace(self.config, source=source)
            if not self._transport.shares_interpreter:  # two threads importing jax and transformers get in each
                self._transport.start(config, self._on_message)  # other's way; two processes save the time
            if not source.skip_tokenizer_init:
                folder = source.tokenizer_path or source.model_path
                self.tokenizer = await asyncio.to_thread(
                    Tokenizer.load, folder, trust_remote_code=source.trust_remote_code
                )
            self._tokenizer_loaded = True
            if self._transport.shares_interpreter:
                self._transport.start(config, self._on_message)
        except ConfigError as error:
            self._die(EngineFailed(str(error), config=True))
        except Exception as error:
            logger.exception("the engine could not start")
            self._die(EngineFailed(f"the engine could not start: {type(error).__name__}: {error}", config=False))
        self._become_ready()
        if self._state == "dead":
            await self._transport.stop(_STOP_TIMEOUT_STARTING)

    def _become_ready(self) -> None:
        if self._state == "starting" and self._info is not None and self._tokenizer_loaded:
            self._front = RequestFront(self._info, self.tokenizer, self.config.scheduler)
            self._state = "ready"
            self._settle()

    def _die(self, failure: EngineFailed) -> None:
        if self._state == "dead":
            return
        self._state = "dead"
        self._failure = failure
        for stream in self._streams.values():
            stream.fail(EngineDeadError(failure.message))
        self._samples.clear()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineDeadError(failure.message))
        self._settle()

    def _settle(self) -> None:
        self._settled.set()
        self._display.close()

    def _tick(self) -> None:
        if not self._settled.is_set():
            self._display.tick()
            asyncio.get_running_loop().call_later(1.0, self._tick)

    def _accepting_front(self) -> RequestFront:
        if self._state != "ready" or self._front is None:
            raise not_ready(self)
        return self._front

    def _begin(self, stream: "_Stream", request_id: str, requests: list[AddRequest]) -> None:
        for index, request in enumerate(requests):
            processor = SampleProcessor(request_id, index, request, self.tokenizer)
            self._samples[request.request_id] = (stream, processor)
            stream.unfinished[request.request_id] = None
        stream.begun = True
        if stream.aborted:
            self._abort_samples(stream)
            return
        for request in requests:
            self._transport.send(request)

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                self._on_outputs(message)
            case ControlReply():
                call = self._calls.get(message.call_id)
                if call is not None and not call.done():
                    call.set_result(message)
            case LoadProgress():
                self._progress = message
                if not self._settled.is_set():
                    self._display.update(message)
            case EngineReady():
                self._info = message
                self._become_ready()
            case EngineFailed():
                self._die(message)

    def _on_outputs(self, message: StepOutputs) -> None:
        stopped: list[str] = []
        for output in message.outputs:
            engine_id = output.request_id
            sample = self._samples.get(engine_id)
            if sample is None:
                continue  # aborted while this was on its way
            stream, processor = sample
            if not stream.yielded and output.finish is not None and output.finish.status:
                stream.fail(_refusal(output.finish))  # generate's finally drops the other samples
                del self._samples[engine_id], stream.unfinished[engine_id]
                continue
            try:
                result = processor.process(output)
            except Exception as error:
                logger.exception("the output of request %s could not be processed", engine_id)
                stream.fail(GenerationError(f"the output of the request could not be processed: {error!r}"))
                del self._samples[engine_id]
                continue
            if result.finish is not None:
                del self._samples[engine_id], stream.unfinished[engine_id]
                if output.finish is None:
                    stopped.append(engine_id)
            stream.put(result)
        if stopped:
            self._transport.send(AbortRequests(stopped))

    def _abort_samples(self, stream: "_Stream") -> None:
        """Ends the stream's samples, for its reader and for the engine."""
        for engine_id in stream.unfinished:
            if engine_id in self._samples:
                stream.put(self._samples[engine_id][1].abort())
        self._drop(stream)

    def _drop(self, stream: "_Stream") -> None:
        engine_ids = list(stream.unfinished)
        stream.unfinished.clear()
        for engine_id in engine_ids:
            self._samples.pop(engine_id, None)
        if engine_ids and self._state != "dead":
            self._transport.send(AbortRequests(engine_ids))

    async def _call(self, kind: Callable[[int], FlushCache | GetStats], timeout: float) -> ControlReply:
        if self._state == "dead" or self._info is None:
            raise not_ready(self)
        call_id = next(self._call_ids)
        call = self._calls[call_id] = asyncio.get_running_loop().create_future()
        self._transport.send(kind(call_id))
        try:
            return await asyncio.wait_for(call, timeout)
        except TimeoutError:
            raise EngineDeadError(f"the engine did not answer within {timeout:g} s") from None
        finally:
            del self._calls[call_id]


class _Stream:
    """Outputs on their way to one caller of generate; unbounded: a slow reader delays nobody but itself."""

    def __init__(self) -> None:
        self.pending: list[RequestOutput] = []
        self.error: PalladioError | None = None
        self.unfinished: dict[str, None] = {}  # engine-side ids, in order
        self.begun = False
        self.aborted = False
        self.yielded = False
        self._wake = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        self.pending.append(output)
        self.yielded = True
        self._wake.set()

    def fail(self, error: PalladioError) -> None:
        self.error = self.error or error
        self._wake.set()

    async def take(self) -> list[RequestOutput]:
        if not self.pending and self.error is None:
            self._wake.clear()
            await self._wake.wait()
        if not self.pending and self.error is not None:
            raise self.error
        pending, self.pending = self.pending, []
        return pending if len(pending) == 1 else merge_outputs(pending)


def not_ready(engine: EngineClient) -> EngineDeadError | EngineNotReadyError:
    """Why an engine whose state is not "ready" takes no requests."""
    if engine.state == "dead":
        return EngineDeadError(engine.failure or "the engine ended")
    if engine.state == "draining":
        return EngineNotReadyError("the server is shutting down and takes no new requests", retry_after=5.0)
    progress = engine.progress
    detail = "" if progress is None else f" ({progress.phase}: {progress.done} of {progress.total})"
    return EngineNotReadyError(f"the engine is still starting{detail}; try again soon", retry_after=5.0)


def _refusal(finish: FinishReason) -> PalladioError:
    return request_error(finish.status, finish.message or "the engine refused the request")
