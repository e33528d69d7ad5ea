"""EngineClient: the whole of what a front (HTTP routes, offline callers) may ask of an engine."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from palladio.runtime.front.control.model_switch import ModelSwitch
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.interface.messages.engine_state import EngineReady, LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.process.liveness import Liveness
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

EngineState = Literal["starting", "ready", "released", "restarting", "draining", "dead"]
FastPath = Callable[[RequestOutput], bool]
"""Takes an output at once, without waiting for anything, and says whether it has."""


class EngineClient(Protocol):
    """An engine seen from a front. Implemented by AsyncEngine, and by the fake engine of the HTTP tests.

    Attributes:
        config: the engine's configuration.
        tokenizer: None with skip_tokenizer_init.
        sampling_defaults: default sampling fields from the checkpoint's generation_config.json.
        liveness: whether it answers, while `state` is "ready".
        model: pauses generation, exchanges the weights, frees device memory (then `state` is "released").
    """

    config: EngineConfig
    tokenizer: Tokenizer | None
    sampling_defaults: Mapping[str, Any]
    liveness: Liveness
    model: ModelSwitch

    @property
    def state(self) -> EngineState: ...

    @property
    def progress(self) -> LoadProgress | None:
        """Latest start-up progress while `state` is "starting" or "restarting"."""

    @property
    def failure(self) -> str | None:
        """Why `state` is "dead" or "restarting"."""

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again after a failure."""
        ...

    @property
    def info(self) -> EngineReady:
        """The limits that the engine chose.

        Raises:
            EngineNotReadyError: still starting.
        """

    def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs of all n samples, interleaved, until each has finished.

        Closing the iterator early (a client that disconnects) aborts what still runs and frees its pages.
        An abort from elsewhere ends the iterator with `finish.type == "abort"` on each sample that had not finished;
        so does what goes wrong after the first output, with the HTTP status of its error in `finish.status`.

        Raises (at the first step of the iterator, before any work is queued):
            InvalidRequestError: empty prompt, ids out of the vocabulary, a request_id already running, a priority
                that the scheduling policy does not look at.
            ContextLengthError: prompt longer than the context, with both numbers.
            OverloadedError: queue full, engine starting or draining.
            DeadlineError: the timeout passed before the first output.
            EngineDeadError: the engine ended; also raised mid-stream.

        The cause of an error that ended a request in the engine's queue is a RefusedOutputError, which names its wait.
        """
        ...

    def attach(self, request_id: str, fast_path: FastPath) -> None:
        """Outputs of a running request may take `fast_path` from now on, while its reader waits for the next one. What
        it does not take goes to the reader, and so does the last output of each sample; nothing changes its order.

        A task that wakes up for each token would cost more than all that is done with it.

        Args:
            request_id: its `scoped_id`.
        """
        ...

    async def abort(self, request_id: str | None) -> int:
        """Aborts the request with this id (None: all of them); returns how many were running."""
        ...

    async def flush_cache(self) -> None:
        """Drops the prefix cache.

        Raises:
            OverloadedError: requests are running.
        """

    async def stats(self, timeout: float = 20.0, *, check_integrity: bool = False, pages: bool = False) -> EngineStats:
        """A snapshot from the engine loop itself.

        Args:
            timeout: seconds.
            check_integrity: look for pages and slots that are owned wrongly; no step runs meanwhile.
            pages: with maps of the pages; no step is planned meanwhile.

        Raises:
            EngineDeadError: the engine ended or does not answer within `timeout` seconds.
        """
        ...

    async def explain(self, request_ids: Sequence[str]) -> dict[str, dict[int, LiveRequest]]:
        """What the engine is doing with requests, by request id and sample, in one round trip; samples that have ended
        are left out, and so are ids that are unknown.

        Raises:
            EngineNotReadyError: it is being restarted.
            EngineDeadError: it ended or does not answer.
        """
        ...

    async def configure_process(self, log_level: int | None = None, *, freeze_gc: bool = False) -> None:
        """Changes settings of the engine's process, on host 0.

        Args:
            log_level: a number of Python's logging; None: it stays.
            freeze_gc: garbage collection leaves out all objects that exist now.

        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
        """

    async def start_profile(self, options: ProfileOptions) -> None:
        """Begins a trace of the device and the host.

        Raises:
            InvalidRequestError: one is under way, its folder cannot be written, or the profiler refuses.
        """

    async def stop_profile(self) -> ProfileReport:
        """End the trace, and return when it is written; or report the last one, if a bound has ended it.

        Raises:
            InvalidRequestError: none is under way, or it could not be written.
            DeadlineError: writing takes too long; it goes on.
        """
        ...


def shut_down(drain_seconds: float) -> EngineNotReadyError:
    """Why a request ends whose server is told to stop before the request is done."""
    return EngineNotReadyError(
        f"the server is shutting down, and this request did not end within the {drain_seconds:g} s of --drain-timeout; "
        "send it again: another server, or this one's successor, will answer it",
        retry_after=5.0,
    )


def not_ready(engine: EngineClient) -> EngineDeadError | EngineNotReadyError:
    """Why an engine whose state is not "ready" takes no requests."""
    if engine.state == "dead":
        return EngineDeadError(engine.failure or "the engine has stopped")
    if engine.state == "draining":
        return EngineNotReadyError("the server is shutting down and does not accept new requests", retry_after=5.0)
    if engine.state == "restarting":
        return EngineNotReadyError(
            f"the engine is restarting after a failure ({engine.failure}); try again soon", retry_after=5.0
        )
    if engine.state == "released":
        return EngineNotReadyError(
            f"the server has released device memory ({', '.join(sorted(engine.model.released))}); POST "
            "/resume_memory_occupation restores it",
            retry_after=5.0,
        )
    progress = engine.progress
    detail = "" if progress is None else f" ({progress.phase}: {progress.done} of {progress.total})"
    return EngineNotReadyError(f"the engine is still starting{detail}; try again soon", retry_after=5.0)
