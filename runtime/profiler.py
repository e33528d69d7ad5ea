"""The profiler: traces of the device and the host, in the xplane format that XProf and TensorBoard read."""

import logging
import tempfile
import threading
from pathlib import Path

import jax

from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.profile_options import MAX_SECONDS, ProfileOptions
from palladio.runtime.watchdog import Activity

_PROBE = b"\0" * 4096  # a full disk takes a name, but no bytes
_FAILURES = (OSError, ValueError, RuntimeError)  # of paths, and of JAX's profiler, whose own error is a RuntimeError

logger = logging.getLogger("palladio.engine")


class Profiler:
    """At most one trace at a time. Whatever goes wrong with it, the engine goes on.

    A trace begins and ends between steps, and writing it takes a while, in which no step runs; but one without
    `num_steps` that nobody stops is ended by a thread of its own, since there may be no further step.

    Args:
        activity: is told when the engine's thread writes.
        max_seconds: that a trace without `num_steps` may take.
    """

    def __init__(self, activity: Activity, max_seconds: float = MAX_SECONDS) -> None:
        self._activity = activity
        self._max_seconds = max_seconds
        self._lock = threading.Lock()  # over all that follows
        self._options: ProfileOptions | None = None
        self._is_tracing = False
        self._num_steps = 0  # since `start`
        self._unwritten: str | None = None  # where a trace belongs that could not be written: JAX still holds it
        self._timer: threading.Timer | None = None

    def start(self, options: ProfileOptions) -> None:
        """Begins a trace, now or at a later step.

        Raises:
            InvalidRequestError: one is under way, its folder cannot be written, or JAX refuses it.
        """
        with self._activity.writing_profile(), self._lock:
            if self._options is not None:
                raise InvalidRequestError(
                    f"a profile is under way already, in {self._options.output_dir}; stop it first"
                )
            self._write_the_last()
            try:
                _prepare(options.output_dir)
            except _FAILURES as error:
                raise InvalidRequestError(
                    f"output_dir {options.output_dir} cannot be written: {_reason(error)}", param="output_dir"
                ) from error
            if options.start_step == 0:
                try:
                    self._begin(options)
                except _FAILURES as error:
                    raise InvalidRequestError(f"the profile could not be started: {_reason(error)}") from error
            self._options, self._num_steps = options, 0

    def stop(self) -> str:
        """Writes the trace; returns the folder.

        Raises:
            InvalidRequestError: none is under way, or it could not be written.
        """
        with self._activity.writing_profile(), self._lock:
            options = self._options
            if options is None:
                raise InvalidRequestError("no profile is under way: start one first")
            try:
                self._end(options)
            except _FAILURES as error:
                raise InvalidRequestError(_unwritten(options.output_dir, error)) from error
            return options.output_dir

    def step(self) -> None:
        """After each step."""
        if self._options is not None:
            self._count_step()

    def close(self) -> None:
        """The engine ends; a trace under way is dropped."""
        if self._timer is not None:
            self._timer.cancel()

    def _count_step(self) -> None:
        with self._lock:
            options = self._options
            if options is None:
                return  # the timer has just ended it
            self._num_steps += 1
            try:
                if not self._is_tracing and self._num_steps >= options.start_step:
                    self._begin(options)
                elif options.num_steps is not None and self._num_steps >= options.start_step + options.num_steps:
                    with self._activity.writing_profile():
                        self._end(options)
            except _FAILURES as error:
                self._options = None
                logger.error("The profile in %s failed: %s", options.output_dir, _reason(error))

    def _begin(self, options: ProfileOptions) -> None:
        levels = jax.profiler.ProfileOptions()
        levels.host_tracer_level = options.host_tracer_level
        levels.python_tracer_level = options.python_tracer_level
        levels.device_tracer_level = options.device_tracer_level
        jax.profiler.start_trace(options.output_dir, profiler_options=levels)
        self._is_tracing = True
        if options.num_steps is None:
            self._timer = threading.Timer(self._max_seconds, self._end_overdue, (options,))
            self._timer.daemon = True
            self._timer.start()

    def _end(self, options: ProfileOptions) -> None:
        """Raises:
        OSError, RuntimeError, ValueError: the trace could not be written.
        """
        self._options = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_tracing:
            return
        self._is_tracing = False
        self._unwritten = options.output_dir
        jax.profiler.stop_trace()
        self._unwritten = None
        logger.info("The profile of %d steps is in %s", self._num_steps - options.start_step, options.output_dir)

    def _end_overdue(self, options: ProfileOptions) -> None:
        """In the timer's thread."""
        with self._lock:
            if self._options is not options:
                return  # stopped meanwhile
            logger.warning(
                "The profile has run for %g s, without num_steps and without /stop_profile: it ends now",
                self._max_seconds,
            )
            try:
                self._end(options)
            except _FAILURES as error:
                logger.error("%s", _unwritten(options.output_dir, error))

    def _write_the_last(self) -> None:
        """JAX takes no new trace before the last one is written.

        Raises:
            InvalidRequestError: that still fails.
        """
        if self._unwritten is None:
            return
        try:
            _prepare(self._unwritten)
            jax.profiler.stop_trace()
        except _FAILURES as error:
            raise InvalidRequestError(
                f"the last profile is still to be written to {self._unwritten}, and no other can begin before: "
                f"{_reason(error)}; make room there, or restart the engine"
            ) from error
        logger.info("The last profile could be written now: it is in %s", self._unwritten)
        self._unwritten = None


def _prepare(folder: str) -> None:
    """Makes the folder and writes to it.

    Raises:
        OSError, ValueError: that is not possible.
    """
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path, buffering=0) as file:
        file.write(_PROBE)


def _unwritten(folder: str, error: Exception) -> str:
    return f"the profile could not be written to {folder}: {_reason(error)}"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
