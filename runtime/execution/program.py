"""Program: one function that is compiled for one bucket, with all that the engine has to know of it.

A new kind of program is a subclass, in one file, that is named in `programs.PROGRAMS`: it is then compiled ahead,
stored, counted, and run on all hosts like the others. What it computes is written for one data-parallel rank.
"""

import abc
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.model.decoder import CausalLM
from palladio.model.functional import LogitsHead, ModelStructure, unflatten_model
from palladio.runtime.execution.batch_builder import StepLayouts
from palladio.runtime.execution.device_state import DeviceShape, DeviceState, Weights
from palladio.runtime.execution.sampler import SampleTier
from palladio.runtime.scheduling.buckets import Buckets

TIERS: tuple[SampleTier, ...] = ("greedy", "random", "masked", "full")  # each can do what those before it can

# New state, in the order of `Program.donated`; what else stays on the device; what goes to the host.
Results = tuple[tuple[Any, ...], Any, Any]


class ProgramKey(NamedTuple):
    """Names a program: its kind, the sizes of its bucket, and the sampler's tier."""

    kind: str
    num_requests: int = 0
    num_tokens: int = 0
    tier: SampleTier | None = None

    @property
    def family(self) -> tuple[str, bool]:
        """The kind, and whether for prompts: programs of one family differ in their sizes and tiers."""
        return self.kind, bool(self.num_tokens)

    def __str__(self) -> str:
        sizes = {"bs": self.num_requests, "tok": self.num_tokens}
        parts = [f"{name}={size}" for name, size in sizes.items() if size]
        return f"{self.kind}[{','.join([*parts, *([self.tier] if self.tier else [])])}]".removesuffix("[]")


class StaticModel(NamedTuple):
    """What a program knows of the model when it is traced: all but the weights.

    Attributes:
        structure: its modules.
        hidden: shape [D] and dtype of one token's hidden state.
        num_valid_tokens: ids from here on are padding of the vocabulary and are never sampled.
    """

    structure: ModelStructure
    hidden: jax.ShapeDtypeStruct
    num_valid_tokens: int


@dataclasses.dataclass(frozen=True)
class ProgramDesign:
    """What decides an engine's closed set of programs.

    Attributes:
        num_weights: arrays of the model. shape: of the device's state. buckets: the shapes of steps.
    """

    model: StaticModel
    num_weights: int
    shape: DeviceShape
    buckets: Buckets

    @functools.cached_property
    def layouts(self) -> StepLayouts:
        """Of the steps' vectors."""
        return StepLayouts.of(self.buckets, self.shape.page_size, self.shape.num_decode_steps)

    @functools.cached_property
    def head(self) -> LogitsHead:
        """Picks the arrays that sampling and scoring take, out of the model's."""
        return LogitsHead.of(self.model.structure, self.num_weights)

    @property
    def generates(self) -> bool:
        """Whether it makes tokens, not embeddings."""
        return self.shape.pooling is None

    def unflatten(self, weights: Weights) -> CausalLM:
        return unflatten_model(self.model.structure, weights)

    def logits(self, head: Weights, hidden: jax.Array) -> jax.Array:
        """hidden [R, D] → f32[R, V]. Args: head: the weights that `head` selects."""
        return self.head.logits(head, hidden, self.model.num_valid_tokens)


class Program(abc.ABC):
    """A kind of program as a class, and one program of it as an object.

    The state that it takes and updates is a DeviceState: of arrays when it runs, of their shapes when it is compiled.

    Attributes:
        kind: its name, as logs and profiles show it.
        runs_layers: whether it computes the model's layers; others take little of the compiler's time and memory.
        key: names it.
    """

    kind: ClassVar[str]
    runs_layers: ClassVar[bool] = False

    def __init__(
        self, design: ProgramDesign, num_requests: int = 0, num_tokens: int = 0, tier: SampleTier | None = None
    ) -> None:
        self.design = design
        self.key = self.key_of(num_requests, num_tokens, tier)

    @classmethod
    def key_of(cls, num_requests: int = 0, num_tokens: int = 0, tier: SampleTier | None = None) -> ProgramKey:
        return ProgramKey(cls.kind, num_requests, num_tokens, tier)

    @classmethod
    @abc.abstractmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        """Those that an engine has."""

    def is_needed(self, buckets: Buckets) -> bool:
        """Whether steps in these buckets cannot do without it; by default, none can."""
        return True

    def whole(self, state: DeviceState) -> tuple[Any, ...]:
        """The first arguments: what all ranks have whole, which is weights."""
        return ()

    def donated(self, state: DeviceState) -> tuple[Any, ...]:
        """The next ones: the state that it overwrites."""
        return ()

    def read(self, state: DeviceState) -> tuple[Any, ...]:
        """The next ones: the state that it only reads."""
        return ()

    @abc.abstractmethod
    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The arrays that a call brings, of one rank."""

    def pack(self, state: DeviceState, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The last arguments: the call's arrays, in the form in which `compute` takes them."""
        return arrays

    @abc.abstractmethod
    def compute(self, *args: Any, **kwargs: Any) -> Results:
        """The function that is compiled, of one rank's arguments."""

    def update(self, state: DeviceState, new: tuple[Any, ...], kept: Any) -> DeviceState:
        """The state after a call, from the first two of its results."""
        return state

    def arguments(self, state: DeviceState, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of a call that brings these arrays."""
        return (*self.whole(state), *self.donated(state), *self.read(state), *self.pack(state, arrays))

    def declaration(self, state: DeviceState) -> tuple[Any, tuple[Any, ...]]:
        """The jitted function, and the shapes of its arguments. Args: state: of shapes."""
        ranks, num_whole = self.design.shape.ranks, len(self.whole(state))
        donated = self.donated(state)
        function = ranks.over(self.compute, num_whole=num_whole, num_state=len(donated) + len(self.read(state)))

        def program(*arguments: Any) -> Any:
            return function(*arguments)

        program.__name__ = self.kind
        jitted = jax.jit(
            program,
            donate_argnums=tuple(range(num_whole, num_whole + len(donated))),
            out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, donated), ranks.state, ranks.exchanged),
        )
        return jitted, self.arguments(state, tuple(map(ranks.from_host, self.from_host())))


def host_array(*shape: int, dtype: DTypeLike = jnp.int32) -> jax.ShapeDtypeStruct:
    """For `Program.from_host`."""
    return jax.ShapeDtypeStruct(shape, dtype)
