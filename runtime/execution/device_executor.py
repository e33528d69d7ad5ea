"""DeviceExecutor: the device's state, and the programs that change it, called with host arrays alone."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from palladio.runtime.execution.device_state import DeviceState
from palladio.runtime.execution.program import ProgramKey
from palladio.runtime.execution.program_set import StepPrograms
from palladio.runtime.execution.ranks import HostArray
from palladio.runtime.multihost.coordinator import HostCoordinator
from palladio.runtime.telemetry.watchdog import Activity

OnCall = Callable[[ProgramKey | None, tuple[HostArray, ...]], None]


def _tell_nobody(key: ProgramKey | None, arrays: tuple[HostArray, ...]) -> None:
    pass


class DeviceExecutor:
    """Runs programs by key. The state after some calls depends on nothing but the calls: several hosts that make the
    same ones in the same order hold the same state, each its devices' part.

    Args:
        on_call: told of each call before it is made, once its program is there; None as the key: `reset_state`.

    Attributes:
        programs: that it runs.
        state: what they read and update.
        ranks: whose arrays programs take and give.
    """

    def __init__(self, state: DeviceState, programs: StepPrograms, on_call: OnCall = lambda key, arrays: None) -> None:
        design = programs.design
        self.programs = programs
        self.ranks = design.shape.ranks
        sizes = programs.buckets.sample if design.generates else ()
        self.state = state._replace(
            head=design.head.select(state.weights), all_allowed={size: self._no_mask(size) for size in sizes}
        )
        self._on_call = on_call

    def run(self, key: ProgramKey, *arrays: Sequence[HostArray]) -> Any:
        """Dispatches a program and returns before the device has run it. Returns what it gives to the host, of which
        `ranks.take` is one rank's part; see the classes of programs.

        Args:
            arrays: those of `Program.from_host`, each as a list by rank.

        Raises:
            ProgramError: the program cannot be made; the state is as it was.
        """
        return self.call(key, *map(self.ranks.stack, arrays))

    def run_on(self, rank: int, key: ProgramKey, *arrays: HostArray) -> Any:
        """`run` for one rank alone; the others compute something that nobody reads. Returns that rank's part."""
        return self.ranks.take(rank, self.call(key, *(self.ranks.only(rank, array) for array in arrays)))

    def call(self, key: ProgramKey, *arrays: HostArray) -> Any:
        """The same. Args: arrays: of all ranks, as `on_call` is told of them."""
        compiled, program, state = self.programs.built[key], self.programs.by_key[key], self.state
        self._on_call(key, arrays)
        self.state, given = program.run(compiled, state, arrays)
        return given

    def reset_state(self) -> None:
        """Makes everything but the weights anew: an error has left it undefined. Every request must start over."""
        self._on_call(None, ())
        state, shape = self.state, self.programs.design.shape
        num_pages = state.kv_cache[0].shape[0] // self.ranks.num_ranks
        for array in jax.tree.leaves((state.of_requests, state.last_hidden, state.hidden)):
            array.delete()  # first: there is no room for both
        self.state = state = state._replace(last_hidden={}, hidden={})
        kv_cache, tables, sampler, pooled = shape.allocate(state.weights, num_pages).of_requests
        self.state = state._replace(kv_cache=kv_cache, tables=tables, sampler=sampler, pooled=pooled)

    def _no_mask(self, num_rows: int) -> jax.Array:
        masks = np.full((num_rows, self.programs.design.shape.mask_width), -1, np.int32)
        array: jax.Array = jax.device_put(self.ranks.repeat(masks), self.ranks.exchanged)
        return array


class CallListener:
    """Told on host 0 of what the executor calls, and of programs that a step waits for.

    Args:
        hosts: the others, which do the same.
    """

    def __init__(self, activity: Activity, hosts: HostCoordinator | None) -> None:
        self._activity = activity
        self._hosts = hosts

    def call(self, key: ProgramKey | None, arrays: tuple[HostArray, ...]) -> None:
        """See DeviceExecutor."""
        if self._hosts is not None:
            self._hosts.call(key, arrays)

    @contextlib.contextmanager
    def building(self, key: ProgramKey) -> Iterator[None]:
        """See ProgramCache."""
        alongside = contextlib.nullcontext() if self._hosts is None else self._hosts.building(key)
        with self._activity.compiling(str(key)), alongside:
            yield
