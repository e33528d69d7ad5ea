"""The profiler: traces of the device and the host, in the xplane format that XProf and TensorBoard read."""

import logging
from pathlib import Path

import jax

from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.profile_options import ProfileOptions

logger = logging.getLogger("palladio.engine")


class Profiler:
    """At most one trace at a time, begun and ended between steps.

    Writing a trace takes a while, in which no step runs.
    """

    def __init__(self) -> None:
        self._options: ProfileOptions | None = None
        self._is_tracing = False
        self._num_steps = 0  # since `start`

    def start(self, options: ProfileOptions) -> None:
        """Begins a trace, now or at a later step.

        Raises:
            InvalidRequestError: one is under way, or its folder cannot be made.
        """
        if self._options is not None:
            raise InvalidRequestError(f"a profile is under way already, in {self._options.output_dir}; stop it first")
        try:
            Path(options.output_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequestError(
                f"output_dir {options.output_dir} cannot be made: {error.strerror}", param="output_dir"
            ) from error
        self._options, self._num_steps = options, 0
        if options.start_step == 0:
            self._begin(options)

    def stop(self) -> str:
        """Writes the trace; returns the folder.

        Raises:
            InvalidRequestError: none is under way.
        """
        options = self._options
        if options is None:
            raise InvalidRequestError("no profile is under way: start one first")
        self._options = None
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()
            logger.info("The profile of %d steps is in %s", self._num_steps - options.start_step, options.output_dir)
        return options.output_dir

    def step(self) -> None:
        """After each step."""
        options = self._options
        if options is None:
            return
        self._num_steps += 1
        if not self._is_tracing and self._num_steps >= options.start_step:
            self._begin(options)
        elif options.num_steps is not None and self._num_steps >= options.start_step + options.num_steps:
            self.stop()

    def _begin(self, options: ProfileOptions) -> None:
        levels = jax.profiler.ProfileOptions()
        levels.host_tracer_level = options.host_tracer_level
        levels.python_tracer_level = options.python_tracer_level
        levels.device_tracer_level = options.device_tracer_level
        jax.profiler.start_trace(options.output_dir, profiler_options=levels)
        self._is_tracing = True
