"""A kernel and the cases of its trial, as values."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.typing import DTypeLike

from palladio.pallas_kernels.target import Target, kernel_name

HostArray = npt.NDArray[Any]
PORTABLE = ("xla", "reference")  # backends that need no trial: they are what others are compared with
_POOL = 2**20 - 3  # random numbers that large arrays repeat; odd, so rows differ


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What a kernel has to do at the least.

    Attributes:
        num_bytes: bytes that it reads and writes.
        num_flops: operations of its products.
    """

    num_bytes: int
    num_flops: int


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of one run of a case.

    Attributes:
        name: what they cover.
        make: makes the arguments, in host memory; all inputs of a case have the same shapes and dtypes.
        kept: selects what is compared from the results: arrays [rows, …] without rows that may hold anything.
        work: of this run.
    """

    name: str
    make: Callable[[], tuple[Any, ...]]
    kept: Callable[[Any], Sequence[HostArray]]
    work: Work


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One program of a trial.

    Attributes:
        name: kind of step and options, for messages.
        call: (backend, target, *arguments) → results.
        expected: arguments → results by the reference, in the same form; None: the case only measures speed.
        inputs: what it runs on; never empty.
        dtype: dtype of the results, whose bound the error keeps to.
        layer: sizes, dtypes and options that shapes and programs follow from, for messages and keys.
        donated: numbers of the arguments that the kernel overwrites.
        options: the options, for messages.
        shapes: the arguments' shapes; None: they are found by making the inputs.
    """

    name: str
    call: Callable[..., Any]
    expected: Callable[..., Any] | None
    inputs: tuple[Inputs, ...]
    dtype: DTypeLike
    layer: str
    donated: tuple[int, ...] = ()
    options: str = ""
    shapes: tuple[Any, ...] | None = None

    def abstract(self) -> tuple[Any, ...]:
        """Return the arguments' shapes."""
        if self.shapes is not None:
            return self.shapes
        return tuple(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.inputs[0].make()))

    def signature(self) -> str:
        """Describe what a verdict holds for. Nothing large is made: every start asks for it."""
        return f"{self.name}, {', '.join(inputs.name for inputs in self.inputs)}: {self.layer}"


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """A backend of an op, with the cases that this model's programs need.

    Attributes:
        op: name of the op, as in its messages.
        backend: name of the backend.
        cases: a kernel that fails in one of them is not used at all.
    """

    op: str
    backend: str
    cases: tuple[Case, ...]

    @property
    def name(self) -> str:
        """The name by which a Target skips it."""
        return kernel_name(self.op, self.backend)


def first_taken(call: Callable[..., Any], names: Sequence[str], target: Target, args: tuple[Any, ...]) -> str | None:
    """Return the first backend that takes a call, as dispatch does; None: none does.

    Args:
        call: (backend, target, *arguments) → results.
        names: backends, best first.
        args: shapes.
    """
    for name in names:
        try:
            jax.eval_shape(lambda *args, name=name: call(name, target, *args), *args)
        except NotImplementedError:
            continue
        return name
    return None


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> HostArray:
    """Return numbers of about 1 in that dtype; those of integers are all that 4 bits hold, or up to 127."""
    kind = jax.numpy.dtype(dtype)
    size = int(np.prod(shape))
    pool: HostArray
    if kind.name == "int4":
        pool = rng.integers(-7, 8, min(size, _POOL))
    elif kind.kind in "iu":
        pool = rng.integers(-127, 128, min(size, _POOL))
    else:
        pool = rng.standard_normal(min(size, _POOL), dtype=np.float32)
    return np.resize(pool.astype(kind), shape)


def flat(array: HostArray) -> HostArray:
    """Return the rows of an array […, lanes] → [rows, lanes]."""
    return array.reshape(-1, array.shape[-1])
