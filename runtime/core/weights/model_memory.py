"""ModelMemory: one host's part of the model's weights and KV cache, exchanged, freed and restored while it serves."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax

from palladio.runtime.core.weights.weight_loader import WeightLoader
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory
from palladio.runtime.execution.device_executor import DeviceExecutor
from palladio.runtime.interface.errors import InvalidRequestError

Order = Literal["load", "release_weights", "release_cache", "restore_cache"]

_FAILED = 0  # what a host says that could not load the weights


class ModelMemory:
    """Every host has one, and all are given the same orders in the same order, between two steps.

    Args:
        agree: gives the smallest of all hosts' values, and waits for them.
    """

    def __init__(self, loader: WeightLoader, executor: DeviceExecutor, agree: Callable[[int], int]) -> None:
        self._loader = loader
        self._executor = executor
        self._agree = agree

    def obey(self, order: Order, path: str = "") -> None:
        """
        Args:
            path: of load: the directory of the weights; "": those of the start.

        Raises:
            InvalidRequestError: the weights cannot be loaded, or the cache has no room, here or on another host; all
                hosts keep what they had.
        """
        with self._executor.programs.built.expecting_compiles():
            match order:
                case "load":
                    self._load(path)
                case "release_weights":
                    self._executor.use_weights(())
                case "release_cache":
                    self._executor.release_cache()
                case "restore_cache":
                    self._restore_cache()

    def _restore_cache(self) -> None:
        problem = None
        try:
            self._executor.restore_cache()
            jax.block_until_ready(self._executor.state.kv_cache)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            problem = error
        if not self._agree(int(problem is None)):
            self._executor.release_cache()
            raise InvalidRequestError(
                "the devices have no room for the KV cache, which stays released: free memory that other processes "
                f"took meanwhile, and try again. XLA error: {problem or 'on another host'}"
            ) from problem

    def _load(self, path: str) -> None:
        """Into fresh arrays, which are used if all hosts have theirs, from the same files."""
        problem, weights, print_here = None, None, _FAILED
        try:
            if self._executor.state.weights:
                self._loader.check_room()
            weights = self._loader.load(Path(path)) if path else self._loader.load_first()
            print_here = self._loader.fingerprint(Path(path)) if path else _FAILED + 1
        except InvalidRequestError as error:
            problem = error
        least, most = self._agree(print_here), -self._agree(-print_here)
        if problem is not None:
            raise problem
        if least == _FAILED:
            raise InvalidRequestError(f"another host cannot load the weights in {path}: its log says why")
        if least != most:
            raise InvalidRequestError(f"the hosts have different files in {path}")
        assert weights is not None, "there was no problem"
        self._executor.use_weights(weights)
