"""AsyncEngine: the engine as the front sees it. Text in, text out, on one event loop; never imports jax."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from palladio.runtime.front.control.control_calls import UNANSWERED, ControlCalls, begin_profile, end_profile, order
from palladio.runtime.front.control.model_switch import ModelSwitch
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.front.control.supervisor import RestartBudget, Supervisor, TrialRestarts
from palladio.runtime.front.launch_inputs import load_tokenizer, resolve_config
from palladio.runtime.front.requests.crash_dump import CrashDumper
from palladio.runtime.front.requests.engine_protocol import EngineState, FastPath, not_ready, shut_down
from palladio.runtime.front.requests.intake import RequestIntake
from palladio.runtime.front.requests.payloads import PayloadStore
from palladio.runtime.front.requests.request_table import RequestTable
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError, OverloadedError
from palladio.runtime.interface.messages.calls import (
    AbortRequests,
    ConfigureProcess,
    ControlReply,
    Explain,
    FlushCache,
    FromEngine,
    GetStats,
    StepOutputs,
    ToEngine,
)
from palladio.runtime.interface.messages.engine_state import EngineBusy, EngineFailed, EngineReady, LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.process.liveness import Liveness
from palladio.runtime.process.transport import EngineTransport
from palladio.runtime.text.hub.hub import read_sampling_defaults
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

_STOP_TIMEOUT = 10.0
_STOP_TIMEOUT_STARTING = 0.5  # while it loads it does not listen
_EXPIRE_INTERVAL = 0.1

logger = logging.getLogger(__name__)


class AsyncEngine:
    """Implements EngineClient, which documents its methods, over a transport. Every method runs in the event loop that
    called `start`.

    Lives through starting → ready → draining → dead: `await start()`, which returns at once, then `await wait_ready()`.
    When an engine in a process of its own fails, it goes from ready to restarting and back (--max-engine-restarts):
    requests that have had output end with EngineDeadError, the others wait for the new engine.

    Args:
        transport: to an engine in a thread of this process, or in a process of its own (which a server wants).
    """

    def __init__(self, config: EngineConfig, transport: EngineTransport) -> None:
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self.sampling_defaults: Mapping[str, Any] = {}
        self._transport = transport
        self._phase: Literal["starting", "ready", "restarting", "dead"] = "starting"
        self._draining = False
        self._progress: LoadProgress | None = None
        self._display = ProgressDisplay()
        self._failure: EngineFailed | None = None
        self._info: EngineReady | None = None
        self._front: RequestIntake | None = None
        self._resolved: EngineConfig | None = None  # with local directories; the engine has it
        self._launch_task: asyncio.Task[None] | None = None
        self._restart_task: asyncio.Task[None] | None = None
        max_restarts = 0 if transport.shares_interpreter else config.survival.max_engine_restarts
        self._supervisor = Supervisor(transport, RestartBudget(max_restarts))
        self._trial_restarts = TrialRestarts(transport)
        self._tokenizer_loaded = False
        self._settled, self._dead = asyncio.Event(), asyncio.Event()  # settled: no longer starting
        self._dumper = None if config.survival.crash_dump_folder is None else CrashDumper()
        self._streams = RequestTable(None if self._dumper is None else self._dumper.recorder)
        self._payloads = PayloadStore()
        self._calls = ControlCalls(transport.send)
        self.model = ModelSwitch(self._call, self.abort, config.source.weight_version, config.parallel.num_hosts)
        timeout = 0.0 if transport.shares_interpreter else config.survival.health_timeout
        self.liveness = Liveness(lambda: transport.send(GetStats(UNANSWERED)), timeout)

    @property
    def state(self) -> EngineState:
        if self._draining and self._phase != "dead":
            return "draining"
        return "released" if self._phase == "ready" and self.model.released else self._phase

    @property
    def progress(self) -> LoadProgress | None:
        last = self._progress
        goes_on = last is not None and last.done < last.total  # behind an engine that serves already
        return last if goes_on or self.state in ("starting", "restarting") else None

    @property
    def failure(self) -> str | None:
        return None if self._failure is None else self._failure.message

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    @property
    def info(self) -> EngineReady:
        if self._info is None:
            raise not_ready(self)
        return self._info

    async def start(self) -> None:
        """Begin to load; return at once. `wait_ready` and `state` give the outcome."""
        self._launch_task = asyncio.create_task(self._launch())
        self._tick()

    async def wait_ready(self) -> None:
        """Returns when requests are accepted.

        Raises:
            ConfigError: a flag or the checkpoint is wrong.
            DeviceTakenError: another process has the device.
            EngineDeadError: the engine could not start for another reason.
        """
        await self._settled.wait()
        if self._phase == "dead" and self._failure is not None:
            raise self._failure.error()

    async def wait_dead(self) -> None:
        """Return when the engine is dead for good, before requests fail."""
        await self._dead.wait()

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """Refuses new requests, gives the running ones `drain_seconds`, fails the rest, ends the engine.

        While the engine is being restarted that goes on, as long as requests wait for it. A second call cuts a first
        one short, and aborts what runs.
        """
        is_second, self._draining = self._draining, True
        if self._phase != "dead" and drain_seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._streams.idle.wait(), drain_seconds)
        self._supervisor.retire()
        for task in (self._launch_task, self._restart_task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if is_second:
            await self.abort(None)
        else:
            self._abort(self._streams.fail_unfinished(shut_down(drain_seconds)))
        starts = self._phase in ("starting", "restarting")
        await self._transport.stop(_STOP_TIMEOUT_STARTING if starts or is_second else _STOP_TIMEOUT)
        self._die(EngineFailed("the engine was shut down", config=False))
        self.model.close()  # not in a thread: at exit none can be started
        self._payloads.close()
        if self._dumper is not None:
            await self._dumper.finish()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        if self.state != "ready":
            raise not_ready(self)
        name, samples = request.scoped_id, self._loaded_front().resolve(request)
        media = await self._payloads.keep(request.media) if request.media else ()
        try:
            if media:
                samples = [dataclasses.replace(sample, media=media) for sample in samples]
                if self.state not in ("ready", "restarting"):  # it was, before the rows were written
                    raise not_ready(self)
            stream = self._streams.open(name, samples, self.tokenizer)
            try:
                await self._add(samples)
                while not stream.is_over:
                    for output in await stream.take():
                        yield output
            finally:
                self._abort(self._streams.close(name))
        finally:
            if media:
                self._payloads.drop(media)

    def attach(self, request_id: str, fast_path: FastPath) -> None:
        self._streams.attach(request_id, fast_path)

    async def abort(self, request_id: str | None) -> int:
        count, engine_ids = self._streams.abort(request_id)
        self._abort(engine_ids)
        return count

    async def flush_cache(self) -> None:
        await order(self._call, FlushCache, 20.0, OverloadedError)

    async def stats(self, timeout: float = 20.0, *, check_integrity: bool = False, pages: bool = False) -> EngineStats:
        reply = await self._call(functools.partial(GetStats, check_integrity=check_integrity, pages=pages), timeout)
        assert reply.stats is not None
        return reply.stats

    async def explain(self, request_ids: Sequence[str]) -> dict[str, dict[int, LiveRequest]]:
        places = {
            engine_id: (name, index) for name in request_ids for index, engine_id in self._streams.running(name).items()
        }
        states: dict[str, dict[int, LiveRequest]] = {}
        if places:
            reply = await self._call(functools.partial(Explain, request_ids=list(places)), timeout=20.0)
            for state in reply.requests:
                name, index = places[state.request_id]
                states.setdefault(name, {})[index] = state
        return states

    async def configure_process(self, log_level: int | None = None, *, freeze_gc: bool = False) -> None:
        """Change settings of the engine's process."""
        await order(self._call, functools.partial(ConfigureProcess, log_level=log_level, freeze_gc=freeze_gc), 20.0)

    async def start_profile(self, options: ProfileOptions) -> None:
        await begin_profile(self._call, options)

    async def stop_profile(self) -> ProfileReport:
        return await end_profile(self._call)

    async def _launch(self) -> None:
        try:
            config = await resolve_config(self.config, self._on_message)
            self.sampling_defaults = read_sampling_defaults(Path(config.source.model_path))
            self._resolved = config
            if not self._transport.shares_interpreter:  # two threads importing jax and transformers get in each
                self._transport.start(config, self._on_message)  # other's way; two processes save the time
            self.tokenizer = await load_tokenizer(config.source)
            self._tokenizer_loaded = True
            if self._transport.shares_interpreter:
                self._transport.start(config, self._on_message)
        except ConfigError as error:
            self._die(EngineFailed(str(error), config=True))
        except Exception as error:
            logger.exception("The engine could not start")
            self._die(EngineFailed(f"the engine could not start: {type(error).__name__}: {error}", config=False))
        self._become_ready()
        if self._phase == "dead":
            await self._transport.stop(_STOP_TIMEOUT_STARTING)

    def _become_ready(self) -> None:
        if self._phase == "starting" and self._info is not None and self._tokenizer_loaded:
            self._front = RequestIntake(self._info, self.tokenizer, self.config.scheduler)
            self._phase = "ready"
            self._settle()

    def _on_failure(self, failure: EngineFailed) -> None:
        if self._phase == "ready":
            if self._dumper is not None and self._resolved is not None and self._info is not None:
                self._dumper.dump(failure.message, self._resolved, self._info)
            try:
                self._supervisor.may_restart(failure.message)
            except EngineDeadError as error:
                logger.error("The engine stopped: %s", error)
                failure = EngineFailed(str(error), config=False)
            else:
                self._phase = "restarting"
                self._failure = failure
                self._restart_task = asyncio.create_task(self._restart(failure.message))
                return
        if self._phase == "starting" and self._resolved is not None and not self._draining:
            config = self._trial_restarts.next_config(self._resolved, failure)
            if config is not None:
                self._resolved, self._progress = config, None
                self._restart_task = asyncio.create_task(self._start_again(config))
                return
        self._die(failure)

    async def _start_again(self, config: EngineConfig) -> None:
        """Go on with the first start, in a new process."""
        failure = await self._trial_restarts.start(config, self._on_message)
        if failure is not None:
            self._die(failure)

    async def _restart(self, failure: str) -> None:
        """Goes on with a new engine, unless that fails too often."""
        config = self._resolved
        assert config is not None, "it has been ready"
        num_ended, num_kept = self._streams.fail_served(EngineDeadError(failure))
        self._calls.fail(EngineDeadError(failure))
        logger.error(
            "The engine failed: %s; %d requests with output were aborted, %d wait for the restart",
            *(failure, num_ended, num_kept),
        )
        expiry = asyncio.create_task(self._expire_waiting())
        begun = time.monotonic()
        self._progress = None
        try:
            info = await self._supervisor.restart(config, self._on_message)
            await self.model.restore(self._calls.ask)
        except EngineDeadError as error:
            logger.error("The engine stopped: %s", error)
            self._die(EngineFailed(str(error), config=False))
            return
        finally:
            expiry.cancel()
        front = self._loaded_front()
        front.renew(info)
        self.liveness.reset()
        self._info, self._phase, self._failure = info, "ready", None
        requests = self._streams.requests_to_resend(front.room)
        logger.warning(
            "The engine is ready again after %.1f s; resending %d samples",
            *(time.monotonic() - begun, len(requests)),
        )
        await self._add([dataclasses.replace(request, resent=True) for request in requests])

    async def _expire_waiting(self) -> None:
        while True:
            self._streams.expire(time.time())
            await asyncio.sleep(_EXPIRE_INTERVAL)

    def _die(self, failure: EngineFailed) -> None:
        if self._phase == "dead":
            return
        self._phase = "dead"
        self._failure = failure
        self._dead.set()
        self._streams.fail_all(EngineDeadError(failure.message))
        self._calls.fail(EngineDeadError(failure.message))
        self._settle()

    def _settle(self) -> None:
        self._settled.set()
        self._display.close()

    def _tick(self) -> None:
        if not self._settled.is_set():
            self._display.tick()
        elif self._phase == "ready":
            self.liveness.tick()
        if self._phase != "dead":
            interval = self.liveness.interval if self._settled.is_set() else 1.0
            asyncio.get_running_loop().call_later(interval, self._tick)

    def _loaded_front(self) -> RequestIntake:
        assert self._front is not None, "it has been ready"
        return self._front

    async def _add(self, requests: list[GenerationRequest]) -> None:
        """Sends requests to the engine. One that is not ready gets them when it has started again."""
        await self._streams.send(requests, self._transport.send, lambda: self._phase == "ready")

    def _abort(self, engine_ids: list[str]) -> None:
        if engine_ids and self._phase == "ready":
            self._transport.send(AbortRequests(engine_ids))

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case StepOutputs():
                self.liveness.heard()
                self._abort(self._streams.process(message))
            case ControlReply():
                self.liveness.heard()
                self._calls.answer(message)
            case EngineBusy():
                self.liveness.heard_busy(message.doing)
            case LoadProgress():
                self._progress = message
                if not self._settled.is_set():
                    self._display.update(message)
            case EngineReady():
                if not self._supervisor.take(message):
                    self._info = message
                    self._become_ready()
            case EngineFailed():
                if not self._supervisor.take(message):
                    self._on_failure(message)

    async def _call(self, kind: Callable[[int], ToEngine], timeout: float) -> ControlReply:
        if self._phase != "ready":
            raise not_ready(self)
        return await self._calls.ask(kind, timeout)
