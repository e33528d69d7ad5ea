"""DeviceExecutor: the device's state, and the programs that change it, called with host arrays alone."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from palladio.runtime.execution.device_state import DeviceShape, DeviceState
from palladio.runtime.execution.program_keys import ProgramKey
from palladio.runtime.execution.programs import StepPrograms
from palladio.runtime.execution.sampler import MASKED_TIERS, SampleOutput
from palladio.runtime.execution.sampler_state import SlotRules, SlotTokens
from palladio.runtime.multihost.coordinator import HostCoordinator
from palladio.runtime.telemetry.watchdog import Activity

HostArray = npt.NDArray[Any]
OnCall = Callable[[ProgramKey | None, tuple[HostArray, ...]], None]


def _tell_nobody(key: ProgramKey | None, arrays: tuple[HostArray, ...]) -> None:
    pass


def for_groups(arrays: Sequence[HostArray]) -> HostArray:
    """One array of each group as what programs take and give: stacked, or the very array of the only group."""
    return arrays[0] if len(arrays) == 1 else np.stack(arrays)


class DeviceExecutor:
    """Runs programs by key. The state after some calls depends on nothing but the calls: several hosts that make the
    same ones in the same order hold the same state, each its devices' part.

    Args:
        on_call: told of each call before it is made, once its program is there; None as the key: `reset_state`.

    Attributes:
        programs: that it runs.
        state: what they read and update.
    """

    def __init__(
        self, state: DeviceState, shape: DeviceShape, programs: StepPrograms, on_call: OnCall = _tell_nobody
    ) -> None:
        self.programs = programs
        self.state = state
        self._on_call = on_call
        self._shape = shape
        self._head = programs.head.select(state.weights)
        self._last_hidden: dict[int, jax.Array] = {}
        self._hidden: jax.Array | None = None
        sampled = programs.buckets.sample if shape.pooling is None else ()
        self._all_allowed = {size: self._no_mask(size) for size in sampled}

    def run(self, key: ProgramKey, *arrays: HostArray) -> Any:
        """Dispatches a program and returns before the device has run it. What it takes and gives beside the state, of
        several groups stacked, [G, …], see `for_groups`:

        | program | takes | gives |
        |---|---|---|
        | forward | packed i32[layout.size] | hidden states, kept for what follows: sample, score or pool |
        | sample | packed i32[B, NUM_COLUMNS]; masks i32[B, mask_width] or, all being allowed, none | SampleOutput |
        | decode | both vectors, as above | SampleOutput, stacked |
        | score | targets i32[T] | logprobs [T], top ids [T, 20], top logprobs [T, 20] |
        | pool | packed i32[layout.size], that of the forward step | embeddings f32[B, D] |
        | reset | slot i32[], the arrays of SlotTokens and of SlotRules | |
        | tables | updates i32[EARLY_UPDATES, 3] | |
        | compare | pages i32[2, COMPARED_PAGES] | f32[] |

        Raises:
            ProgramError: the program cannot be made; the state is as it was.
        """
        program = self.programs.built[key]
        self._on_call(key, arrays)
        match key.name:
            case "forward":
                return self._forward(program, key, *arrays)
            case "sample":
                return self._sample(program, key, *arrays)
            case "decode":
                return self._decode(program, key, *arrays)
            case "score":
                return program(self._head, self._hidden, *arrays)
            case "pool":
                pooled, vectors = program(self.state.pooled, self._hidden, *arrays)
                self.state = self.state._replace(pooled=pooled)
                return vectors
            case "reset":
                self._reset(program, *arrays)
            case "tables":
                self.state = self.state._replace(tables=program(self.state.tables, *arrays))
            case "compare":
                return program(self.state.kv_cache, *arrays)
        return None

    def reset_state(self) -> None:
        """Makes everything but the weights anew: an error has left it undefined. Every request must start over."""
        self._on_call(None, ())
        num_pages = self.state.kv_cache[0].shape[0] // self._shape.num_groups
        self._last_hidden, self._hidden = {}, None
        for array in jax.tree.leaves(self.state[1:]):
            array.delete()  # first: there is no room for both
        self.state = self._shape.allocate(self.state.weights, num_pages)

    def _no_mask(self, num_rows: int) -> jax.Array:
        masks = np.full((num_rows, self.programs.mask_width), -1, np.int32)
        array: jax.Array = jax.device_put(for_groups([masks] * self._shape.num_groups), self._shape.exchanged)
        return array

    def _forward(self, program: Callable[..., Any], key: ProgramKey, packed: HostArray) -> jax.Array:
        weights, kv_cache, tables, sampler, _ = self.state
        kv_cache, tables, last_hidden, self._hidden = program(weights, kv_cache, tables, sampler.last_token, packed)
        self.state = self.state._replace(kv_cache=kv_cache, tables=tables)
        sizes = self.programs.buckets.sample if key.num_tokens else (key.num_requests,)
        self._last_hidden = dict(zip(sizes, last_hidden, strict=True))
        last: jax.Array = last_hidden[0]
        return last

    def _sample(
        self, program: Callable[..., Any], key: ProgramKey, packed: HostArray, *masks: HostArray
    ) -> SampleOutput:
        rows = self._last_hidden[key.num_requests]
        allowed: tuple[HostArray | jax.Array, ...] = masks
        if key.tier in MASKED_TIERS and not masks:
            allowed = (self._all_allowed[key.num_requests],)
        sampler = self.state.sampler
        output: SampleOutput
        if key.tier == "full":
            sampler, output = program(self._head, sampler, rows, packed, *allowed)
        else:
            last_token, output = program(self._head, sampler.last_token, rows, packed, *allowed)
            sampler = dataclasses.replace(sampler, last_token=last_token)
        self.state = self.state._replace(sampler=sampler)
        return output

    def _decode(
        self, program: Callable[..., Any], key: ProgramKey, packed: HostArray, sampling: HostArray
    ) -> SampleOutput:
        weights, kv_cache, tables, sampler, _ = self.state
        sampler_state = sampler if key.tier == "full" else sampler.last_token
        output: SampleOutput
        kv_cache, tables, new, output = program(weights, kv_cache, tables, sampler_state, packed, sampling)
        sampler = new if key.tier == "full" else dataclasses.replace(sampler, last_token=new)
        self.state = self.state._replace(kv_cache=kv_cache, tables=tables, sampler=sampler)
        return output

    def _reset(self, program: Callable[..., Any], slot: HostArray, *arrays: HostArray) -> None:
        count = len(dataclasses.fields(SlotTokens))
        tokens: Any = SlotTokens(*arrays[:count])  # type: ignore[arg-type]  # jit takes numpy's arrays as its own
        sampler = program(self.state.sampler, slot, tokens, SlotRules(*arrays[count:]))
        self.state = self.state._replace(sampler=sampler)


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
