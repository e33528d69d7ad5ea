"""DeviceExecutor: owns the device's state, and runs programs that read and update it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.execution.state.device_state import DeviceState, HostArray, Weights

OnCall = Callable[[ProgramKey | None, tuple[HostArray, ...]], None]


def ignore_call(key: ProgramKey | None, arrays: tuple[HostArray, ...]) -> None:
    """Do nothing: there are no other hosts."""


class DeviceExecutor:
    """Runs programs by key. The state after some calls depends on nothing but the calls: several hosts that make the
    same ones in the same order hold the same state, each its devices' part.

    Args:
        on_call: called before each call, once its program is there; None as the key: `reset_state`.

    Attributes:
        programs: the programs that it runs.
        state: what they read and update.
        ranks: whose arrays programs take and give.
    """

    def __init__(self, state: DeviceState, programs: StepPrograms, on_call: OnCall = ignore_call) -> None:
        design = programs.design
        self.programs = programs
        self.ranks = design.shape.ranks
        sizes = programs.buckets.sample if design.generates else ()
        self.state = state._replace(
            head=design.head.select(state.weights), all_allowed={size: self._no_mask(size) for size in sizes}
        )
        self._num_pages = design.shape.cache.num_pages(state.kv_cache, design.shape.mesh)
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
        """`run` for one rank alone; the others' results are not read. Returns that rank's part."""
        return self.ranks.take(rank, self.call(key, *(self.ranks.only(rank, array) for array in arrays)))

    def call(self, key: ProgramKey, *arrays: HostArray) -> Any:
        """Run a program with arrays of all ranks.

        Args:
            arrays: arrays of all ranks, as `on_call` gets them.
        """
        compiled, program, state = self.programs.built[key], self.programs.by_key[key], self.state
        self._on_call(key, arrays)
        self.state, given = program.run(compiled, state, arrays)
        return given

    def lend(self, programs: StepPrograms) -> "DeviceExecutor":
        """Make an executor of other programs on this one's state, which may not be used until `take_back`.

        Args:
            programs: of the same state.
        """
        return DeviceExecutor(self.state, programs)

    def take_back(self, borrower: "DeviceExecutor") -> None:
        """Go on with the state that the borrower's programs have left."""
        self.state = borrower.state._replace(head=self.state.head, all_allowed=self.state.all_allowed)

    def reset_state(self) -> None:
        """Makes everything but the weights anew: an error has left it undefined. Every request must start over."""
        self._on_call(None, ())
        state = self.state
        _delete((state.of_requests, state.last_hidden, state.hidden))  # first: there is no room for both
        fresh = self.programs.design.shape.allocate(state.weights, self._num_pages, state.pooling_weights)
        self._put(**fresh._replace(head=state.head, all_allowed=state.all_allowed)._asdict())

    def use_weights(self, weights: Weights) -> None:
        """Replace the weights that later calls read; the earlier ones are deleted.

        Args:
            weights: weights of the same shapes, or none: then no program that reads them may be called.
        """
        _delete(self.state.weights)
        self._put(weights=weights, head=self.programs.design.head.select(weights) if weights else ())

    def release_cache(self) -> None:
        """Deletes the KV cache. No program that takes it may be called before `restore_cache`."""
        _delete(self.state.kv_cache)
        self._put(kv_cache=())

    def restore_cache(self) -> None:
        """Makes the KV cache anew, of the same size."""
        self._put(kv_cache=self.programs.design.shape.allocate_cache(self._num_pages))

    def _put(self, **fields: Any) -> None:
        """Replace fields of the state between two calls of programs."""
        self.state = self.state._replace(**fields)

    def _no_mask(self, num_rows: int) -> jax.Array:
        masks = np.full((num_rows, self.programs.design.shape.mask_width), -1, np.int32)
        array: jax.Array = jax.device_put(self.ranks.repeat(masks), self.ranks.exchanged)
        return array


def _delete(arrays: Any) -> None:
    """Free the memory of all arrays of a tree."""
    for array in jax.tree.leaves(arrays):
        array.delete()
