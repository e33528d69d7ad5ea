"""Program: one function that is compiled for one bucket, with all that the engine has to know of it.

A new kind of program is a subclass, in one file, that is named in `programs.PROGRAMS`: it is then compiled ahead,
stored, counted, and run on all hosts like the others. What it computes is written for one data-parallel rank.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.model.functional import LogitsHead, Model, ModelStructure, unflatten_model
from palladio.pallas_kernels.target import Target
from palladio.runtime.execution.batch.batch_builder import NUM_COLUMNS, ForwardLayout, StepLayouts
from palladio.runtime.execution.sampling.sampler import MASKED_TIERS, TIERS, SamplerTarget, SampleTier
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from palladio.runtime.execution.state.device_state import DeviceShape, DeviceState, Weights
from palladio.runtime.scheduling.batch.buckets import Buckets

# What replaces the donated arguments, in their order; what else stays on the device; what goes to the host.
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
        """The layouts of the steps' vectors."""
        shape = self.shape
        of_steps = shape.num_decode_steps, shape.num_tables, shape.joined_passes
        return StepLayouts.of(self.buckets, shape.page_size, *of_steps)

    @property
    def always_media(self) -> bool:
        """Whether steps without media run what those with media run: where a single shape makes no result depend on
        what else is in a step, no other program may do so either."""
        return self.shape.num_embeds > 0 and not self.buckets.decode

    @functools.cached_property
    def head(self) -> LogitsHead:
        """Picks the arrays that sampling and scoring take, out of the model's."""
        return LogitsHead.of(self.model.structure, self.num_weights)

    @functools.cached_property
    def sampler_target(self) -> SamplerTarget:
        numbered = self.unflatten(tuple(range(self.num_weights)))  # type: ignore[arg-type]  # in place of arrays
        return SamplerTarget(self.shape.mesh, numbered.kernels.target)

    @functools.cached_property
    def tiers(self) -> tuple[SampleTier, ...]:
        """Those in which steps are sampled."""
        return tuple(tier for tier in TIERS if tier != "plain" or self.shape.has_plain_tier)

    def joins(self, layout: ForwardLayout, tier: SampleTier) -> bool:
        """Whether a decode step of one forward pass and its sampling are one program. Not where drafts are looked up:
        `Forward` keeps the tokens that it computes."""
        is_plain = tier != "full" and tier not in MASKED_TIERS and self.shape.proposer is None
        return is_plain and layout.num_requests <= self.shape.joined_rows

    @property
    def generates(self) -> bool:
        """Whether it makes tokens, not embeddings."""
        return self.shape.pooling is None

    def unflatten(self, weights: Weights) -> Model:
        return unflatten_model(self.model.structure, weights)

    def logits(self, head: Weights, hidden: jax.Array) -> jax.Array:
        """Return the logits of rows.

        Args:
            head: the weights that `head` selects.
            hidden: [R, D].

        Returns:
            f32[R, V].
        """
        return self.head.logits(head, hidden, self.model.num_valid_tokens)

    def classify(self, head: Weights, vectors: jax.Array) -> jax.Array:
        """Pooled rows [R, D] → f32[R, L], the logits of labels; of a model that does not classify, the rows."""
        return self.head.classify(head, vectors) if head else vectors


class Takes(NamedTuple):
    """What a program takes of the state, as its first arguments.

    Attributes:
        whole: weights, which all ranks have whole, but for experts that they have in common.
        donated: what it overwrites, by its name in DeviceState.
        read: other state of each rank.
    """

    whole: tuple[Any, ...] = ()
    donated: Mapping[str, Any] = {}
    read: tuple[Any, ...] = ()


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
        """Whether steps in these buckets cannot do without it. By its sizes: what has tokens is of a prefill step, what
        has requests alone of a decode step, if it runs the layers, or of sampling; what has neither is of all steps."""
        _, num_requests, num_tokens, tier = self.key
        if tier not in (None, "full"):
            return False  # tier "full" does the same
        if num_tokens:
            return any(one.num_tokens == num_tokens for one in buckets.prefill)
        return not num_requests or num_requests in (buckets.decode if self.runs_layers else buckets.sample)

    @abc.abstractmethod
    def takes(self, state: DeviceState) -> Takes:
        """The arguments that are on the device already."""

    @abc.abstractmethod
    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The arrays that a call brings, of one rank."""

    def pack(self, state: DeviceState, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The last arguments: the call's arrays, in the form in which `compute` takes them."""
        return arrays

    @abc.abstractmethod
    def compute(self, *args: Any, **kwargs: Any) -> Results:
        """The function that is compiled, of one rank's arguments."""

    def update(self, state: DeviceState, new: Mapping[str, Any], kept: Any) -> DeviceState:
        """The state after a call, from what replaces the donated arguments, and what else stays on the device."""
        return state._replace(**new)

    def run(self, compiled: Callable[..., Any], state: DeviceState, arrays: tuple[Any, ...]) -> tuple[DeviceState, Any]:
        """Call the compiled program once.

        Args:
            arrays: arrays of all ranks.

        Returns:
            The state after the call, and what goes to the host.
        """
        whole, donated, read = self.takes(state)
        new, kept, given = compiled(*whole, *donated.values(), *read, *self.pack(state, arrays))
        return self.update(state, dict(zip(donated, new, strict=True)), kept), given

    def declaration(self, state: DeviceState) -> tuple[Any, tuple[Any, ...]]:
        """Return the jitted function, and the shapes of its arguments.

        Args:
            state: the device's state, with shapes in place of arrays.
        """
        ranks, (whole, donated, read) = self.design.shape.ranks, self.takes(state)
        function = ranks.over(self.compute, whole=whole, num_state=len(donated) + len(read))

        def program(*arguments: Any) -> Any:
            return function(*arguments)

        program.__name__ = self.kind
        new = tuple(donated.values())
        jitted = jax.jit(
            program,
            donate_argnums=tuple(range(len(whole), len(whole) + len(new))),
            out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, new), ranks.state, ranks.exchanged),
            compiler_options=self._compiler_options(),
        )
        arrays = self.pack(state, tuple(map(ranks.from_host, self.from_host())))
        return jitted, (*whole, *new, *read, *arrays)

    def _compiler_options(self) -> dict[str, str]:
        return compiler_options(self.design.shape.target, self.key.num_tokens) if self.runs_layers else {}


class SamplingProgram(Program):
    """A program that samples. Tiers below "full" take and overwrite nothing of the sampler but the last tokens."""

    def sampler_of(self, state: DeviceState) -> Any:
        """What it takes of the sampler."""
        return state.sampler if self.key.tier == "full" else state.sampler.last_token

    def update(self, state: DeviceState, new: Mapping[str, Any], kept: Any) -> DeviceState:
        if self.key.tier == "full":
            return state._replace(**new)
        return state._replace(**{**new, "sampler": state.sampler.with_last_token(new["sampler"])})


class SamplingOfRows(SamplingProgram):
    """A sampling program after a forward pass. Takes packed i32[B, NUM_COLUMNS] and, unless all tokens are allowed,
    masks i32[B, mask_width]."""

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        size = self.key.num_requests
        masks = (host_array(size, self.design.shape.mask_width),) if self.key.tier in MASKED_TIERS else ()
        return host_array(size, NUM_COLUMNS), *masks

    def pack(self, state: DeviceState, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        is_unmasked = len(arrays) == 1 and self.key.tier in MASKED_TIERS
        return (*arrays, state.all_allowed[self.key.num_requests]) if is_unmasked else arrays


def whole_sampler(taken: Any) -> SamplerState:
    """Return the sampler's state with what a tier takes of it."""
    return taken if isinstance(taken, SamplerState) else SamplerState.of_last_token(taken)


def part_of_sampler(state: SamplerState, taken: Any) -> Any:
    """Return the part of a new state that was taken of the old one."""
    return state if isinstance(taken, SamplerState) else state.last_token


def host_array(*shape: int, dtype: DTypeLike = jnp.int32) -> jax.ShapeDtypeStruct:
    """For `Program.from_host`."""
    return jax.ShapeDtypeStruct(shape, dtype)


# Vector memory for one operation of XLA's own, in KiB, by the kind of TPU. Its defaults, 16 MiB on v5e and
# v5p and 32 on v6e, make the tiles of products of many rows so small that operands are read again and again: see
# benchmarks/results/notes/2026-11-24.md. What operations do not use holds arrays between them, so more is not always
# better.
_OPERATION_KIB: Mapping[str, int] = MappingProxyType({"v5e": 40 * 1024, "v5p": 32 * 1024, "v6e": 64 * 1024})
LEAST_TOKENS = 512  # of a step whose products are limited by the matrix units, not by reading weights


def compiler_options(target: Target, num_tokens: int) -> dict[str, str]:
    """For a program that runs the layers.

    Args:
        num_tokens: of a step of prompts; 0: of a decode step.
    """
    kib = _OPERATION_KIB.get(target.kind) if target.platform == "tpu" and num_tokens >= LEAST_TOKENS else None
    return {} if kib is None else {"xla_tpu_scoped_vmem_limit_kib": str(kib)}
