"""Building an engine's programs: all of them, the first few, or none, as --compile says, while the weights load."""

import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.start.tried_plan import TriedPlan
from palladio.runtime.execution.compiled.build_order import BuildOrder
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.interface.messages.engine_stats import ProgramReport
from palladio.runtime.telemetry.process_memory import give_back

OnProgress = Callable[[LoadProgress], None]

logger = logging.getLogger("palladio.engine")

_RESULTS = {"exported": "exported", "hit": "cache hit", "miss": "compiled", "failed": "failed"}


class WarmUp:
    """Builds programs in a thread of its own.

    Args:
        tried: which programs are to be built, and when; its kernels are tried first, in that thread.
        on_progress: hears of each program, from the time on that `show` is called.

    Attributes:
        seconds: that the programs took which were built before requests are taken.
        order: of the others; None: there are none.
    """

    def __init__(self, tried: TriedPlan, on_progress: OnProgress) -> None:
        self.seconds = 0.0
        self._tried = tried
        self._settled: concurrent.futures.Future[EnginePlan] = concurrent.futures.Future()
        self._on_progress = on_progress
        self._shows = False
        self._start = time.perf_counter()
        self._cpu_start = time.process_time()
        self._num_before = 0  # programs that were built when `_start` began
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="warm-up")
        self._work: concurrent.futures.Future[None] | None = None
        self._take(tried.design)

    def _take(self, design: EnginePlan) -> None:
        """Choose the programs of a plan that are built, and when."""
        self._programs = programs = design.programs
        self._first: list[ProgramKey] = []
        self._rest: list[ProgramKey] = []
        if design.compile == "full":
            self._first = programs.built.declared
        elif design.compile == "background":
            splits_prompts = design.limits.chunk != -1
            self._first = programs.first_keys(splits_prompts=splits_prompts)
            self._rest = programs.background_keys(splits_prompts=splits_prompts)
        self.order = BuildOrder(programs, self._rest) if self._rest else None
        self._total = len(self._first)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Build programs while the body loads; if the body fails, end with the trial and the builds that are under
        way: a process that ends in a trial would say that the kernel has killed it."""
        self._start = time.perf_counter()
        self._work = self._pool.submit(self._build)
        try:
            yield
        except BaseException:
            self._tried.stop()
            concurrent.futures.wait([self._settled])
            self._programs.built.cancel()
            raise

    def wait_settled(self) -> EnginePlan:
        """Wait for the plan whose programs are built.

        Raises:
            ConfigError: no plan works on this device.
        """
        return self._settled.result()

    def finish(self) -> None:
        """Waits for the programs that the engine has to start with.

        Raises:
            ConfigError: one of them does not fit the device.
        """
        assert self._work is not None, "see `building`"
        built = self._programs.built
        self._shows = True
        self._report()
        try:
            self._work.result()
        finally:
            self._shows = False
            self._pool.shutdown()
            give_back()  # compilers leave as much as all programs take
        for line in describe_programs(built.reports):
            logger.info(line)
        logger.info("CPU time of programs and of loading beside them: %.1f s", self._cpu_seconds())

    def go_on(self) -> None:
        """Builds the others in the background, now that the engine can start."""
        built = self._programs.built
        if self.order is not None:
            logger.info("Compiling %d more programs in the background", len(self._rest))
            self._shows = True
            self._start, self._num_before, self._total = time.perf_counter(), len(built), len(built) + len(self._rest)
            self._report()
            built.build_in_background(self.order, self._report_rest)

    def _cpu_seconds(self) -> float:
        """CPU seconds of all threads: compilers have threads of their own, so there is no figure for one program."""
        return time.process_time() - self._cpu_start

    def _build(self) -> None:
        before = self._tried.design
        try:
            design = self._tried.settle()
        except BaseException as error:
            self._settled.set_exception(error)
            raise
        if design is not before:
            self._take(design)
        self._settled.set_result(design)
        self._programs.build(self._first, self._report)
        self.seconds = time.perf_counter() - self._start

    def _report(self) -> None:
        if self._shows:
            done = len(self._programs.built.reports)
            elapsed = time.perf_counter() - self._start
            num_here = done - self._num_before
            eta = elapsed / num_here * (self._total - done) if num_here else None
            self._on_progress(LoadProgress("compile", done, self._total, eta))

    def _report_rest(self) -> None:
        self._report()
        built = self._programs.built
        if len(built.reports) == self._total:
            give_back()
            work = sum(report.seconds for report in built.reports)
            found = len(built), self._total, work, self._cpu_seconds()
            logger.info("All programs are ready: %d of %d (%.1f s of work; CPU time since the start: %.1f s)", *found)


def describe_set(programs: StepPrograms) -> str:
    """One line: how many programs there are, and how many of them take the compiler long."""
    with_model = sum(program.runs_layers for program in programs.by_key.values())
    return f"Programs: {len(programs.by_key)}, {with_model} of them run the model"


def describe_programs(reports: list[ProgramReport]) -> list[str]:
    """A line for each way in which programs were made, naming them all."""
    lines = []
    for result, title in _RESULTS.items():
        made = [report for report in reports if report.result == result]
        if made:
            names = ", ".join(f"{report.name} {report.seconds:.1f}s" for report in made)
            lines.append(f"Programs, {title}: {len(made)} ({sum(r.seconds for r in made):.1f} s of work): {names}")
    return lines
