"""ProgramCache: compiled programs of this process, by key."""

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import jax

from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory
from palladio.runtime.execution.compiled.program_store import ProgramStore
from palladio.runtime.interface.errors import PalladioError
from palladio.runtime.interface.messages.engine_stats import ProgramReport

logger = logging.getLogger(__name__)
_PAUSE = 0.05  # seconds, before what is built in the background is asked for again

Key = TypeVar("Key", bound=Hashable)
OnBuilt = Callable[[], None]
AroundBuild = Callable[[Key], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Declared:
    """A program that is not built yet: a jitted function and the arguments that it will be called with."""

    jitted: Any
    args: tuple[Any, ...]


class ProgramError(PalladioError):
    """A program could not be made when a step needed it; the device's state is as it was."""


class ProgramCache(Generic[Key]):
    """Programs by key; keys print as the programs' names.

    Added with the arguments they will be called with, then built: taken from the store of exported programs, else
    compiled, through the persistent cache. A call with a key that was never added is a KeyError: nothing is ever traced
    or compiled that is not in the set.

    Args:
        store: exported programs; None: there are none.
        around_late_build: opened around a build that a caller waits for.
        advise: what to tell a caller whose program is too large for the device.

    Attributes:
        reports: how each program was made, in the order of their completion.
        lazy_seconds: time that callers have waited for programs which were not built.
        num_expected_compiles: what XLA compiled for them, and within `expecting_compiles`.
        refused: the program that XLA could not compile, if there is one.
    """

    def __init__(
        self,
        monitor: CompileMonitor,
        store: ProgramStore | None = None,
        *,
        around_late_build: AroundBuild[Key] = lambda key: contextlib.nullcontext(),
        advise: Callable[[Key], str] = "the program {} does not fit the device".format,
    ) -> None:
        self._monitor = monitor
        self._store = store
        self._declared: dict[Key, _Declared] = {}
        self._built: dict[Key, Callable[..., Any]] = {}
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self.reports: list[ProgramReport] = []
        self.lazy_seconds = 0.0
        self.num_expected_compiles = 0
        self._around_late_build = around_late_build
        self._advise = advise
        self.refused: Key | None = None
        self._errors: dict[Key, str] = {}  # of programs that steps asked for

    def sibling(self) -> "ProgramCache[Key]":
        """Make an empty set of programs, built when they are asked for, with counts of its own."""
        return ProgramCache(self._monitor)

    def add(self, key: Key, jitted: Any, *args: Any) -> None:
        """Args: the jitted function, and its arguments (arrays or jax.ShapeDtypeStruct)."""
        assert key not in self._declared, f"{key} is added twice"
        self._declared[key] = _Declared(jitted, args)

    def __getitem__(self, key: Key) -> Callable[..., Any]:
        """The program; made now if it is not built.

        Raises:
            ProgramError: it cannot be made, now or ever.
        """
        program = self._built.get(key)
        return self._build_late(key) if program is None else program

    def ensure(self, key: Key) -> None:
        """Makes the program now if it is not built; raises as `__getitem__` does."""
        if key not in self._built:
            self._build_late(key)

    def __contains__(self, key: Key) -> bool:
        """Whether it is built."""
        return key in self._built

    def __len__(self) -> int:
        """How many are built."""
        return len(self._built)

    @property
    def declared(self) -> list[Key]:
        return list(self._declared)

    @property
    def programs(self) -> dict[Key, Any]:
        """The programs that there are, as jax compiled or loaded them."""
        return dict(self._built)

    def declaration(self, key: Key) -> tuple[Any, tuple[Any, ...]]:
        """The jitted function and its arguments."""
        declared = self._declared[key]
        return declared.jitted, declared.args

    def cancel(self) -> None:
        """Stop building. A program that is being built is finished, but `on_built` is not called for it."""
        self._cancelled.set()

    def build(self, keys: Iterable[Key], on_built: OnBuilt = lambda: None) -> None:
        """Builds programs and waits for them. Tracing holds Python's lock, so it is done here; XLA works in threads.

        Args:
            on_built: called after each program.
        """
        workers = max(2, os.cpu_count() or 2)
        pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="compile")
        try:
            pending: set[concurrent.futures.Future[None]] = set()
            for key in keys:
                start = time.perf_counter()
                if self._load(key) is None:
                    declared = self._declared[key]
                    lowered = declared.jitted.lower(*declared.args)
                    pending.add(pool.submit(self._compile, key, lowered, time.perf_counter() - start))
                else:
                    on_built()
                done = {future for future in pending if future.done()}
                pending -= done
                _finish(done, on_built)
                if self._cancelled.is_set():
                    return
            _finish(concurrent.futures.as_completed(pending), on_built)
        finally:
            pool.shutdown(cancel_futures=True)

    def build_in_background(self, keys: Iterable[Key | None], on_built: OnBuilt = lambda: None) -> None:
        """Builds programs one by one in a thread, and leaves the rest of the machine to who is served meanwhile.

        Args:
            keys: a program to build each time; None: not now, ask again soon.

        The process waits at its end for the program that is being built: Python would end a daemon thread in the middle
        of XLA's C++, which aborts the process.
        """
        self._thread = threading.Thread(
            target=self._run, args=(keys, on_built), name="compile-background", daemon=False
        )
        self._thread.start()

    def wait(self) -> None:
        """Until everything that is built in the background is there."""
        if self._thread is not None:
            self._thread.join()

    @property
    def num_unexpected_compiles(self) -> int:
        """Unexpected compilations in this thread: they grow only by a defect, see RecompileCounter."""
        return self._monitor.compiles_here() - self.num_expected_compiles

    @contextlib.contextmanager
    def expecting_compiles(self) -> Iterator[None]:
        """What this thread compiles while it is open has to be: no defect, see RecompileCounter."""
        before = self._monitor.count_here().compiles
        try:
            yield
        finally:
            self.num_expected_compiles += self._monitor.count_here().compiles - before

    def export(self, store: ProgramStore) -> list[int]:
        """Writes the programs that were compiled here to a store; returns the bytes of each.

        What came from the persistent cache is left out: XLA:CPU does not write such a program out whole.

        Raises:
            OSError: it cannot be written.
        """
        compiled = {report.name for report in self.reports if report.result == "miss"}
        programs = [(str(key), self._declared[key].args, program) for key, program in self._built.items()]
        return [store.save(*program) for program in programs if program[0] in compiled]

    def _run(self, keys: Iterable[Key | None], on_built: OnBuilt) -> None:
        for key in keys:
            if self._cancelled.is_set() or not threading.main_thread().is_alive():
                return  # in the second case the process ends, and waits for this thread
            if key is None:
                self._cancelled.wait(_PAUSE)
                continue
            start = time.perf_counter()
            try:
                self._build(key)
            except Exception:
                logger.exception("Program %s could not be compiled; other programs are used instead", key)
                self.reports.append(ProgramReport(str(key), "failed", time.perf_counter() - start))
            if not self._cancelled.is_set():
                on_built()

    def _build_late(self, key: Key) -> Callable[..., Any]:
        if key in self._errors:
            raise ProgramError(self._errors[key])
        start = time.perf_counter()
        try:
            with self.expecting_compiles(), self._around_late_build(key):
                self._build(key)
        except jax.errors.JaxRuntimeError as error:
            said = self._advise(key) if is_out_of_memory(error) else f"program {key} could not be compiled"
            self._errors[key] = f"{said}. XLA error: {error}"
            raise ProgramError(self._errors[key]) from error
        finally:
            seconds = time.perf_counter() - start
            self.lazy_seconds += seconds
        logger.info("Program %s was built on first use: %s, %.1f s", key, self.reports[-1].result, seconds)
        return self._built[key]

    def _build(self, key: Key) -> None:
        start = time.perf_counter()
        if self._load(key) is None:
            declared = self._declared[key]
            lowered = declared.jitted.lower(*declared.args)
            self._compile(key, lowered, time.perf_counter() - start)

    def _load(self, key: Key) -> Callable[..., Any] | None:
        """From the store, if it is there."""
        if self._store is None:
            return None
        start = time.perf_counter()
        program = self._store.load(str(key), self._declared[key].args)
        if program is not None:
            self._keep(key, program, "exported", time.perf_counter() - start)
        return program

    def _compile(self, key: Key, lowered: Any, trace_seconds: float) -> None:
        start, hits = time.perf_counter(), self._monitor.count_here().cache_hits
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError:
            self.refused = key
            raise
        result = "hit" if self._monitor.count_here().cache_hits > hits else "miss"
        self._keep(key, compiled, result, trace_seconds + time.perf_counter() - start)

    def _keep(self, key: Key, program: Any, result: str, seconds: float) -> None:
        self.reports.append(ProgramReport(str(key), result, seconds))
        self._built[key] = program
        accept_4_bits(program)


def accept_4_bits(program: Any) -> None:
    """Before JAX 0.12, arrays on CPUs do not know that their numbers have 4 bits, and a compiled program compares their
    layouts with its own: it would refuse them, though there is but one layout."""
    if jax.__version_info__ < (0, 12):
        executable = program._executable
        executable._xla_in_layouts = [
            None if layout is not None and layout.sub_byte_element_size_in_bits else layout
            for layout in executable._xla_in_layouts
        ]


def _finish(futures: Iterable[concurrent.futures.Future[None]], on_built: OnBuilt) -> None:
    for future in futures:
        future.result()
        on_built()
