"""The profiler: traces of the device and the host, in the xplane format that XProf and TensorBoard read."""

import dataclasses
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.profile_options import (
    DEFAULT_STEPS,
    MAX_GROWTH,
    MAX_SECONDS,
    WRITE_SECONDS,
    ProfileOptions,
    ProfileReport,
)
from palladio.runtime.telemetry.activity import Activity
from palladio.runtime.telemetry.process_memory import give_back, resident_bytes

_PROBE = b"\0" * 4096  # a full disk takes a name, but no bytes
_NOTHING_LEFT = "No profile started"  # as JAX says it
_FAILURES = (OSError, ValueError, RuntimeError)  # of paths, and of JAX's profiler, whose own error is a RuntimeError
_INTERVAL = 0.05  # seconds between two looks at a trace's bounds

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileLimits:
    """Bounds of a trace, apart from its steps.

    Attributes:
        seconds: how long it may take.
        growth: bytes that this process may grow meanwhile. A trace is held in memory until it is written, which takes
            four times as much for a while, and a second for every 30 MiB or so.
        write_seconds: time after which a trace that is not written yet is reported.
        close_seconds: how long the engine's end waits for it.
    """

    seconds: float = MAX_SECONDS
    growth: int = MAX_GROWTH
    write_seconds: float = WRITE_SECONDS
    close_seconds: float = 5.0


@dataclasses.dataclass(slots=True)
class _Profile:
    """The one that is under way, or was the last.

    Attributes:
        num_steps: steps since it was asked for.
        ended_by: the bound that ended it; "": somebody asked for its end.
        has_news: `stop` has something to report: a call asked for the trace's end, or a bound came before.
        failure: why it could not be written.
    """

    options: ProfileOptions
    phase: Literal["waiting", "tracing", "writing", "over"] = "waiting"
    num_steps: int = 0
    ended_by: str = ""
    has_news: bool = False
    failure: str = ""
    end: threading.Event = dataclasses.field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    @property
    def last_step(self) -> int:
        steps = self.options.num_steps
        return self.options.start_step + (DEFAULT_STEPS if steps is None else steps)


class Profiler:
    """At most one trace at a time. Whatever goes wrong with it, the engine goes on.

    A trace begins between steps. A thread of its own ends it, when it is asked to or when the first bound is met, and
    writes it, while the engine goes on: JAX does not hold Python's lock meanwhile.

    Args:
        activity: records when the engine's thread writes to a folder.
        memory: bytes that this process holds.
    """

    def __init__(
        self,
        activity: Activity,
        limits: ProfileLimits = ProfileLimits(),
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        self._activity = activity
        self._limits = limits
        self._memory = memory
        self._lock = threading.Lock()  # over all that follows; never held while something is written
        self.profile: _Profile | None = None
        self._unwritten: str | None = None  # where a trace belongs that could not be written: JAX still holds it

    def start(self, options: ProfileOptions) -> None:
        """Begins a trace, now or at a later step.

        Raises:
            InvalidRequestError: one is under way or being written, its folder cannot be written, or JAX refuses it.
        """
        with self._activity.writing_profile():
            self._check_free()
            self._write_the_last()
            try:
                _prepare(options.output_dir)
            except _FAILURES as error:
                raise InvalidRequestError(
                    f"output_dir {options.output_dir} cannot be written: {_reason(error)}", param="output_dir"
                ) from error
            profile = _Profile(options)
            if options.start_step == 0:
                try:
                    self._begin(profile)
                except _FAILURES as error:
                    raise InvalidRequestError(f"the profile could not be started: {_reason(error)}") from error
            self.profile = profile

    def stop(self) -> ProfileReport | None:
        """End the trace, or report the last one if a bound ended it and no call has asked for its end.

        Returns:
            None: it is being written; ask again.

        Raises:
            InvalidRequestError: none is under way, or it could not be written.
        """
        profile = self.profile
        with self._lock:
            if profile is None or (profile.phase == "over" and not profile.has_news):
                last = "" if profile is None else f"; the last one is over, and in {profile.options.output_dir}"
                raise InvalidRequestError(f"no profile is running: start one first{last}")
            if profile.phase == "waiting":
                profile.phase = "over"
            if profile.phase != "over":
                profile.has_news = True
                profile.end.set()
                return None
            profile.has_news = False
        if profile.failure:
            raise InvalidRequestError(profile.failure)
        return ProfileReport(profile.options.output_dir, profile.ended_by)

    def step(self) -> None:
        """After each step."""
        profile = self.profile
        if profile is None or profile.phase not in ("waiting", "tracing") or profile.end.is_set():
            return
        profile.num_steps += 1
        if profile.phase == "tracing":
            if profile.num_steps >= profile.last_step:
                profile.end.set()
        elif profile.num_steps >= profile.options.start_step:
            try:
                self._begin(profile)
            except _FAILURES as error:
                profile.phase = "over"
                logger.error("The profile in %s failed: %s", profile.options.output_dir, _reason(error))

    def close(self) -> None:
        """The engine ends: a trace under way is ended and written, if that does not take long."""
        profile = self.profile
        if profile is None or profile.thread is None:
            return
        profile.end.set()
        profile.thread.join(self._limits.close_seconds)
        if profile.thread.is_alive():
            logger.warning("The profile in %s is incomplete: the engine is stopping", profile.options.output_dir)

    def _check_free(self) -> None:
        profile = self.profile
        if profile is None or profile.phase == "over":
            return
        folder = profile.options.output_dir
        if profile.phase == "writing":
            raise InvalidRequestError(f"the last profile is being written to {folder}; try again in a few seconds")
        raise InvalidRequestError(f"a profile is already running, in {folder}; stop it first")

    def _begin(self, profile: _Profile) -> None:
        options = profile.options
        levels = jax.profiler.ProfileOptions()
        levels.host_tracer_level = options.host_tracer_level
        levels.python_tracer_level = options.python_tracer_level
        if not options.traces_device and jax.default_backend() == "tpu":
            levels.advanced_configuration = {"tpu_trace_mode": "TRACE_ONLY_HOST"}
        base = self._memory()
        jax.profiler.start_trace(options.output_dir, profiler_options=levels)
        profile.phase = "tracing"
        profile.thread = threading.Thread(target=self._watch, args=(profile, base), name="profiler", daemon=True)
        profile.thread.start()

    def _watch(self, profile: _Profile, base: int) -> None:
        """Wait for a trace's end, in its thread, and write it.

        Args:
            base: bytes of the process at its beginning.
        """
        begun = time.monotonic()
        while not profile.end.wait(_INTERVAL):
            if bound := self._bound(time.monotonic() - begun, self._memory() - base):
                profile.ended_by = bound
                break
        self._write(profile)

    def _bound(self, seconds: float, growth: int) -> str:
        """Which one is met; "": none."""
        if seconds >= self._limits.seconds:
            return f"it reached the time limit of {self._limits.seconds:g} s"
        if growth >= self._limits.growth:
            most = self._limits.growth / 2**20
            return f"the engine process grew by {growth / 2**20:.0f} MiB, more than the limit of {most:g} MiB"
        return ""

    def _write(self, profile: _Profile) -> None:
        options = profile.options
        with self._lock:
            profile.phase = "writing"
            num_steps = profile.num_steps - options.start_step
            if not profile.ended_by and options.num_steps is None and profile.num_steps >= profile.last_step:
                profile.ended_by = f"it reached {DEFAULT_STEPS} steps, the default of num_steps"
            profile.has_news = profile.has_news or bool(profile.ended_by)
        if profile.ended_by:
            logger.warning("The profile in %s was stopped: %s", options.output_dir, profile.ended_by)
        late = threading.Timer(self._limits.write_seconds, _complain, (options.output_dir, self._limits.write_seconds))
        late.daemon = True
        late.start()
        failure = ""
        try:
            jax.profiler.stop_trace()
        except _FAILURES as error:
            failure = _reason(error)
        late.cancel()
        give_back()  # a trace takes some 80 MiB in an arena of its thread, which the next one's thread would not reuse
        with self._lock:
            if failure:
                self._unwritten = options.output_dir
                profile.failure = f"cannot write the profile to {options.output_dir}: {failure}"
            profile.phase = "over"
        if failure:
            logger.error("The profile in %s failed: %s", options.output_dir, failure)
        else:
            logger.info("Wrote a profile of %d steps to %s", num_steps, options.output_dir)

    def _write_the_last(self) -> None:
        """JAX takes no new trace before the last one is written; from 0.12 on it has dropped what they could not write.

        Raises:
            InvalidRequestError: that still fails.
        """
        if self._unwritten is None:
            return
        try:
            _prepare(self._unwritten)
            jax.profiler.stop_trace()
        except _FAILURES as error:
            if str(error) == _NOTHING_LEFT:
                self._unwritten = None
                return
            raise InvalidRequestError(
                f"the last profile could not be written yet to {self._unwritten}, so no other profile can start: "
                f"{_reason(error)}; free disk space there, or restart the engine"
            ) from error
        logger.info("Wrote the previous profile to %s", self._unwritten)
        self._unwritten = None


def _complain(folder: str, seconds: float) -> None:
    logger.error(
        "Still writing the profile in %s after %g s; no other profile can start until it is written", folder, seconds
    )


def _prepare(folder: str) -> None:
    """Makes the folder and writes to it.

    Raises:
        OSError, ValueError: that is not possible.
    """
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path, buffering=0) as file:
        file.write(_PROBE)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
