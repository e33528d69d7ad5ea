"""Backends of attention that fail, in as many ways as kernels do, and engines whose process has one of them."""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.ragged_paged_attention import api, xla
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.start import tried_plan
from palladio.runtime.core.trials.kernel_trials import TrialPlace
from palladio.runtime.core.trials.runner import TrialLimits

NAME = "faulty"
KERNEL = f"{api.OP}/{NAME}"
RUN_SECONDS = 2.0


def _wrong(out: jax.Array, metadata: Any) -> jax.Array:
    return out * 1.01


def _not_finite(out: jax.Array, metadata: Any) -> jax.Array:
    return out.at[metadata.query_start[metadata.num_requests] - 1].set(jnp.nan)  # of the last real row alone


def _uncompiled(out: jax.Array, metadata: Any) -> jax.Array:
    shape = jax.ShapeDtypeStruct(out.shape, out.dtype)
    called: jax.Array = jax.ffi.ffi_call("palladio_no_such_kernel", shape)(out)
    return called


def _calling(act: Callable[[], Any], out: jax.Array, metadata: Any) -> jax.Array:
    def on_host(values: Any) -> Any:
        act()
        return np.asarray(values)

    called: jax.Array = jax.pure_callback(on_host, jax.ShapeDtypeStruct(out.shape, out.dtype), out)
    return called


def _divide() -> None:
    raise ZeroDivisionError("by the faulty kernel")


FAULTS: dict[str, Callable[[jax.Array, Any], jax.Array]] = {
    "wrong": _wrong,
    "not_finite": _not_finite,
    "uncompiled": _uncompiled,
    "raises": functools.partial(_calling, _divide),
    "sleeps": functools.partial(_calling, functools.partial(time.sleep, 1e6)),
    "aborts": functools.partial(_calling, os.abort),
}


def attention(fault: str, q: jax.Array, kv_pages: jax.Array, metadata: Any, options: Any) -> jax.Array:
    """Attend as the portable backend, and then fail."""
    return FAULTS[fault](xla.attention(q, kv_pages, metadata, options), metadata)


def register(fault: str, platform: str = "cpu") -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the tables of backends and of their order, with a faulty one that is tried first."""
    backends = {**api.BACKENDS, NAME: functools.partial(attention, fault)}
    return backends, {**api.AUTO_ORDER, platform: (NAME, *api.AUTO_ORDER[platform])}


def _create(fault: str, *args: Any) -> EngineCore:
    """Create an engine in a process of its own, in which the faulty backend stays."""
    backends, orders = register(fault)
    api.BACKENDS.update(backends)
    api.AUTO_ORDER.update(orders)
    limits = TrialLimits(RUN_SECONDS, 120.0)
    tried_plan.TrialPlace = functools.partial(TrialPlace, limits=limits)  # type: ignore[misc, assignment, attr-defined]
    return EngineCore.create(*args)


create_wrong = functools.partial(_create, "wrong")
create_not_finite = functools.partial(_create, "not_finite")
create_uncompiled = functools.partial(_create, "uncompiled")
create_raises = functools.partial(_create, "raises")
create_sleeps = functools.partial(_create, "sleeps")
create_aborts = functools.partial(_create, "aborts")
