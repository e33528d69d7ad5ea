"""KernelTrials: which kernels of a plan are known to work here, which are not, and the trials of the others."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import jax

from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials.case import Kernel
from palladio.runtime.core.trials.runner import TrialLimits, TrialRunner, UntriedError
from palladio.runtime.core.trials.verdicts import Platform, Verdict, VerdictFile, key_of
from palladio.runtime.folders.trial_markers import left_markers, trial_marker

logger = logging.getLogger("palladio.engine")


class BrokenDeviceError(Exception):
    """A kernel's error has ended all work of this process on the device."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlace:
    """Where trials run, and what they leave.

    Attributes:
        device: that computes.
        target: that kernels are compiled for.
        folder: of verdicts and markers; None: nothing is kept.
        on_hung: ends the process, see TrialRunner; also where a kernel's error leaves the device unusable.
        repeats: tries kernels that have a verdict again.
        forgets: tries kernels again that ended a process, and removes the markers of these.
        limits: how long a trial may take.
    """

    device: jax.Device
    target: Target
    folder: Path | None
    on_hung: Callable[[str], None]
    repeats: bool = False
    forgets: bool = False
    limits: TrialLimits = dataclasses.field(default_factory=TrialLimits)


class KernelTrials:
    """The trials of a plan's kernels.

    Args:
        kernels: those in use; see ModelOnDevice.
        place: where they are tried.
        known: verdicts of this start by key, which are not asked for again.

    Attributes:
        names: the kernels' names, in the same order on every host.
        verdicts: of kernels that have been tried, also by earlier starts, by name.
    """

    def __init__(
        self, kernels: Sequence[Kernel], place: TrialPlace, known: Mapping[str, Verdict] = MappingProxyType({})
    ) -> None:
        self._place = place
        self._file = VerdictFile(place.folder)
        self._platform = Platform.of(place.device) if kernels else None
        self._keys = {} if self._platform is None else {one.name: key_of(one, self._platform) for one in kernels}
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self.names = list(self._kernels)
        self.verdicts = self._known(known)

    @property
    def by_key(self) -> dict[str, Verdict]:
        """Verdicts by the key of their trial."""
        return {self._keys[name]: verdict for name, verdict in self.verdicts.items()}

    @property
    def untried(self) -> list[Kernel]:
        """Kernels without a verdict."""
        return [kernel for name, kernel in self._kernels.items() if name not in self.verdicts]

    @property
    def failed(self) -> list[Verdict]:
        """Verdicts of kernels that must not be used."""
        return [verdict for verdict in self.verdicts.values() if not verdict.passed]

    def run(
        self,
        on_begin: Callable[[Kernel], None] = lambda kernel: None,
        on_verdict: Callable[[Kernel, Verdict, TrialRunner], None] = lambda kernel, verdict, runner: None,
        stopped: threading.Event | None = None,
    ) -> None:
        """Try the kernels without a verdict, one after the other.

        Args:
            on_begin: called before each.
            on_verdict: called after each that could be tried.
            stopped: no kernel is tried any more once it is set.
        """
        untried, start = self.untried, time.perf_counter()
        runner = TrialRunner(self._place.device, self._place.target, self._place.on_hung, self._place.limits)
        for kernel in untried:
            if stopped is not None and stopped.is_set():
                return
            on_begin(kernel)
            verdict = self._try(runner, kernel)
            if verdict is None:
                continue
            self._keep(verdict)
            on_verdict(kernel, verdict, runner)
        if untried:
            seconds = time.perf_counter() - start
            names = ", ".join(kernel.name for kernel in untried)
            logger.info("Kernels tried: %d in %.1f s (%s)", len(untried), seconds, names)

    def _keep(self, verdict: Verdict) -> None:
        assert self._platform is not None
        self.verdicts[verdict.kernel] = verdict
        self._file.keep(self._keys[verdict.kernel], verdict, self._platform)

    def _known(self, known: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """Return verdicts of this start and of earlier ones: those of the file, and of kernels that ended a process."""
        kept = {**({} if self._place.repeats or not self._keys else self._file.read()), **known}
        found = {name: kept[key] for name, key in self._keys.items() if key in kept}
        if self._place.folder is not None:
            for name, key in self._keys.items():
                for marker in left_markers(self._place.folder, key):
                    if self._place.forgets:
                        marker.path.unlink(missing_ok=True)
                        continue
                    if name in found and not found[name].passed:
                        continue  # which says more
                    text = (
                        f"a process hung or was killed in its trial; to try it again, remove {marker.path} or run "
                        "`palladio doctor --kernels`"
                    )
                    found[name] = Verdict(name, "died", text=text)
        return found

    def _try(self, runner: TrialRunner, kernel: Kernel) -> Verdict | None:
        """Try all cases of a kernel until one fails; None: none can be tried.

        Raises:
            BrokenDeviceError: see there.
        """
        found: Verdict | None = None
        seconds = 0.0
        for case in kernel.cases:
            if case.expected is None:
                continue
            try:
                expected = runner.expected(case)
                with self._marked(kernel):
                    verdict = runner.run(kernel, case, expected)
                    if verdict.outcome == "failed" and not runner.computes():
                        self._end_broken(verdict)
            except UntriedError as error:
                logger.warning("Kernel %s is used without a trial of %s: %s", kernel.name, case.name, error)
                continue
            seconds += verdict.seconds
            if not verdict.passed:
                return dataclasses.replace(verdict, seconds=seconds)
            if found is None or (verdict.error or 0.0) > (found.error or 0.0):
                found = verdict
        return None if found is None else dataclasses.replace(found, seconds=seconds)

    def _end_broken(self, verdict: Verdict) -> None:
        """End the process: what else it would try, or load, would fail as well.

        Raises:
            BrokenDeviceError: the process goes on, for it is its caller's.
        """
        self._keep(verdict)
        message = (
            f"kernel {verdict.kernel} fails so in its trial that the device computes nothing more in this process: "
            f"{verdict.reason}; the next start will not use it"
        )
        self._place.on_hung(message)
        raise BrokenDeviceError(message)

    @contextlib.contextmanager
    def _marked(self, kernel: Kernel) -> Iterator[None]:
        folder = self._place.folder
        with contextlib.ExitStack() as stack:
            if folder is not None:
                try:
                    stack.enter_context(trial_marker(folder, self._keys[kernel.name], kernel.name))
                except OSError as error:
                    logger.warning("No marker of the trial of %s can be kept: %s", kernel.name, error)
            yield
