"""Programs that change block tables, copy states of layers and compare pages."""

from collections.abc import Iterable
from typing import Any, Self

import jax
import jax.numpy as jnp

from palladio.runtime.execution.batch.batch_builder import EARLY_UPDATES
from palladio.runtime.execution.programs.program import Program, ProgramDesign, Results, Takes, host_array
from palladio.runtime.execution.state.device_state import DeviceState
from palladio.runtime.execution.steps.step_functions import (
    copy_states,
    page_difference,
    state_difference,
    update_tables,
)
from palladio.runtime.scheduling.batch.buckets import Buckets

COMPARED_PAGES = 64  # pages of each block table that one compare program compares
COPIED_STATES = 1, 8  # slots that one copy program copies; each copy reads and writes all layers' states of a slot


class Compare(Program):
    """Compares pages with others, see CacheSelfCheck, and where layers keep states, those of two slots. Takes pages
    i32[2, G·COMPARED_PAGES], COMPARED_PAGES of each block table, and then slots i32[2]; gives f32[]."""

    kind = "compare"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)] if design.shape.checks_cache else ()

    def takes(self, state: DeviceState) -> Takes:
        return Takes(read=(state.kv_cache,))

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        pages = host_array(2, self.design.shape.num_tables * COMPARED_PAGES)
        return (pages, host_array(2)) if self.design.shape.num_snapshots else (pages,)

    def compute(self, kv_cache: tuple[Any, ...], pages: jax.Array, slots: jax.Array | None = None) -> Results:
        cache = self.design.shape.cache
        found = page_difference(kv_cache, pages, cache.groups.tables)
        if slots is not None:
            found = jnp.maximum(found, state_difference(cache.states(kv_cache), slots))
        return (), None, found


class CopyStates(Program):
    """Copies states between slots. Takes i32[2, N]: from which slots, and to which."""

    kind = "copy_states"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design, size) for size in COPIED_STATES] if design.shape.num_snapshots else ()

    def is_needed(self, buckets: Buckets) -> bool:
        return True

    def takes(self, state: DeviceState) -> Takes:
        return Takes(donated={"kv_cache": state.kv_cache})

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(2, self.key.num_requests),)

    def compute(self, kv_cache: tuple[Any, ...], slots: jax.Array) -> Results:
        cache = self.design.shape.cache
        states = copy_states(cache.states(kv_cache), *slots)
        return ((*cache.pages(kv_cache), *states),), None, None


class Tables(Program):
    """Changes of the block tables that do not fit a step's vector. Takes updates i32[EARLY_UPDATES, 3]."""

    kind = "tables"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)]

    def takes(self, state: DeviceState) -> Takes:
        return Takes(donated={"tables": state.tables})

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(EARLY_UPDATES, 3),)

    def compute(self, tables: jax.Array, updates: jax.Array) -> Results:
        return (update_tables(tables, updates),), None, None
