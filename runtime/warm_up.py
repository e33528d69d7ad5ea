"""Building an engine's programs: all of them, the first few, or none, as --compile says, while the weights load."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

import jax

from palladio.runtime.compile_plan import ProgramKey, background_order
from palladio.runtime.config import EngineConfig
from palladio.runtime.errors import ConfigError
from palladio.runtime.messages import LoadProgress, ProgramReport
from palladio.runtime.out_of_memory import compile_advice, is_out_of_memory
from palladio.runtime.step_programs import StepPrograms

OnProgress = Callable[[LoadProgress], None]

logger = logging.getLogger("palladio.engine")

_RESULTS = {"exported": "exported", "hit": "cache hit", "miss": "compiled"}


class WarmUp:
    """Builds programs in a thread of its own.

    Args:
        programs: what is to be built.
        config: how.
        on_progress: hears of each program, from the time on that `show` is called.

    Attributes:
        seconds: that the programs took which were built before requests are taken.
    """

    def __init__(self, programs: StepPrograms, config: EngineConfig, on_progress: OnProgress) -> None:
        self.seconds = 0.0
        self._programs = programs
        self._on_progress = on_progress
        self._shows = False
        self._start = time.perf_counter()
        self._error: jax.errors.JaxRuntimeError | None = None
        everything = programs.built.declared
        self._first: list[ProgramKey] = []
        self._rest: list[ProgramKey] = []
        if config.execution.compile == "full":
            self._first = everything
        elif config.execution.compile == "background":
            self._first = programs.first_keys(splits_prompts=config.scheduler.chunked_prefill_size != -1)
            self._rest = background_order(everything, self._first)
        self._total = len(self._first)
        self._thread = threading.Thread(target=self._build, name="warm-up", daemon=True)

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Builds while the body loads; ends, with what is under way, if the body fails."""
        self._start = time.perf_counter()
        self._thread.start()
        try:
            yield
        except BaseException:
            self._programs.built.cancel()
            raise

    def finish(self) -> None:
        """Waits for the programs that the engine has to start with, and goes on in the background with the others.

        Raises:
            ConfigError: one of them does not fit the device.
        """
        self._shows = True
        self._report()
        self._thread.join()
        self._shows = False
        if self._error is not None:
            refused = self._programs.built.refused
            if is_out_of_memory(self._error) and refused is not None:
                advice = compile_advice(refused, self._programs.buckets)
                raise ConfigError(f"{advice}. XLA says: {self._error}") from self._error
            raise self._error
        built = self._programs.built
        for line in describe_programs(built.reports):
            logger.info(line)
        if self._rest:
            logger.info("%d more programs are compiled in the background", len(self._rest))
            self._shows = True
            self._start, self._total = time.perf_counter(), len(built) + len(self._rest)
            built.build_in_background(self._rest, self._report_rest)

    def _build(self) -> None:
        try:
            self._programs.built.build(self._first, self._report)
            self.seconds = time.perf_counter() - self._start
        except jax.errors.JaxRuntimeError as error:
            self._error = error

    def _report(self) -> None:
        if self._shows:
            done = len(self._programs.built)
            elapsed = time.perf_counter() - self._start
            eta = elapsed / done * (self._total - done) if done else None
            self._on_progress(LoadProgress("compile", done, self._total, eta))

    def _report_rest(self) -> None:
        self._report()
        if len(self._programs.built) == self._total:
            logger.info("All %d programs are there", self._total)


def describe_programs(reports: list[ProgramReport]) -> list[str]:
    """A line for each way in which programs were made, naming them all."""
    lines = []
    for result, title in _RESULTS.items():
        made = [report for report in reports if report.result == result]
        if made:
            names = ", ".join(f"{report.name} {report.seconds:.1f}s" for report in made)
            lines.append(f"Programs, {title}: {len(made)} ({sum(r.seconds for r in made):.1f} s of work): {names}")
    return lines
