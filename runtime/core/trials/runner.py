"""Runs the trial of a kernel: compiles its cases, runs each once, and compares with the reference."""

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials.case import Case, HostArray, Inputs, Kernel
from palladio.runtime.core.trials.comparison import Difference, compare
from palladio.runtime.core.trials.verdicts import Verdict
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory
from palladio.runtime.execution.compiled.program_cache import accept_4_bits

_MAX_TEXT: Final = 400  # characters of an error

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class TrialLimits:
    """How long a trial may take.

    Attributes:
        run_seconds: seconds of a case's runs, after compilation.
        compile_seconds: seconds of its compilation.
    """

    run_seconds: float = 60.0
    compile_seconds: float = 600.0


class UntriedError(Exception):
    """A kernel cannot be tried: the reference itself fails, or the device has no memory left for its arguments."""


class TrialRunner:
    """Runs trials on one device.

    Args:
        device: that computes.
        target: that kernels are compiled for.
        on_hung: called with a message, in another thread, when a limit has passed; it ends the process.
        limits: how long a trial may take.
    """

    def __init__(
        self,
        device: jax.Device,
        target: Target,
        on_hung: Callable[[str], None],
        limits: TrialLimits | None = None,
    ) -> None:
        self._device = device
        self._target = target
        self._on_hung = on_hung
        self._limits = limits or TrialLimits()

    def expected(self, case: Case) -> list[list[HostArray]]:
        """Return the reference's results for each of a case's inputs, in host memory.

        Raises:
            UntriedError: it fails, which says nothing about the kernel.
        """
        assert case.expected is not None
        try:
            refer = jax.jit(case.expected)
            return [list(inputs.kept(_on_host(refer(*self._arguments(inputs))))) for inputs in case.inputs]
        except Exception as error:
            raise UntriedError(_shortened(error)) from error

    def run(self, kernel: Kernel, case: Case, expected: list[list[HostArray]]) -> Verdict:
        """Compile a case, run it on each of its inputs, and compare.

        Args:
            expected: the reference's results for each of the inputs.

        Raises:
            UntriedError: memory is short, which says nothing about the kernel.
        """
        start, stage = time.perf_counter(), "compile"
        try:
            with self._limited(kernel, case, "compiling", self._limits.compile_seconds):
                compiled = self.compiled(kernel, case)
            stage = "run"
            results = [self._results(kernel, case, inputs, compiled) for inputs in case.inputs]
        except Exception as error:
            if stage == "run" and is_out_of_memory(error):
                raise UntriedError(_shortened(error)) from error
            logger.debug("Kernel %s does not %s", kernel.name, stage, exc_info=True)
            text = f"it does not {stage}: {_shortened(error)}"
            where = case.name, case.signature()
            return Verdict(kernel.name, "failed", *where, text, seconds=time.perf_counter() - start)
        found = [compare(result, right, case.dtype) for result, right in zip(results, expected, strict=True)]
        worst = max(range(len(found)), key=lambda number: found[number].error)
        difference: Difference = found[worst]
        seconds = time.perf_counter() - start
        figures = (min(difference.error, 1e9), difference.bound, seconds)
        where = f"{case.name}: {case.inputs[worst].name}", case.signature()
        return Verdict(kernel.name, "wrong" if difference.text else "ok", *where, difference.text, *figures)

    def _results(self, kernel: Kernel, case: Case, inputs: Inputs, compiled: Any) -> list[HostArray]:
        """Run a case's program once; the time limit begins when the arguments are on the device."""
        arguments = jax.block_until_ready(self._arguments(inputs))
        with self._limited(kernel, case, "running", self._limits.run_seconds):
            results = _on_host(compiled(*arguments))
        return list(inputs.kept(results))

    def computes(self) -> bool:
        """Return whether the device still computes: some take no more work of a process one of whose kernels has read
        outside of its memory."""
        try:
            total = jax.jit(jnp.sum)(jax.device_put(np.arange(4, dtype=np.int32), self._device))
            return int(total) == 6
        except jax.errors.JaxRuntimeError:
            return False

    def compiled(self, kernel: Kernel, case: Case) -> Any:
        """Compile a case's program for this device.

        Raises:
            Exception: any refusal of the compiler.
        """
        call = functools.partial(case.call, kernel.backend, self._target)
        jitted = jax.jit(call, donate_argnums=case.donated)
        here = jax.sharding.SingleDeviceSharding(self._device)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), case.abstract())
        compiled = jitted.lower(*shapes).compile()
        accept_4_bits(compiled)
        return compiled

    def measure(self, kernel: Kernel, case: Case, inputs: Inputs, runs: int = 10) -> float:
        """Return the seconds of one run, of several that follow each other without waiting.

        Args:
            inputs: what it runs on.
            runs: how many.
        """
        with self._limited(kernel, case, "running", self._limits.run_seconds + self._limits.compile_seconds):
            compiled = self.compiled(kernel, case)
            sets = [self._arguments(inputs) for _ in range(runs if case.donated else 1)]
            jax.block_until_ready(sets)
            jax.block_until_ready(compiled(*self._arguments(inputs)))
            start = time.perf_counter()
            jax.block_until_ready([compiled(*sets[number % len(sets)]) for number in range(runs)])
            return (time.perf_counter() - start) / runs

    def _arguments(self, inputs: Inputs) -> tuple[Any, ...]:
        arguments: tuple[Any, ...] = jax.device_put(inputs.make(), self._device)
        return arguments

    @contextlib.contextmanager
    def _limited(self, kernel: Kernel, case: Case, doing: str, seconds: float) -> Iterator[None]:
        message = (
            f"kernel {kernel.name} ({case.name}; {case.options}) hangs in its trial: {doing} it takes more than "
            f"{seconds:g} s; the next start will not use it"
        )
        timer = threading.Timer(seconds, self._on_hung, (message,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _on_host(results: Any) -> Any:
    return jax.tree.map(np.asarray, results)


def _shortened(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"
