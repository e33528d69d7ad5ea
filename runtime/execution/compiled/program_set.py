"""StepPrograms: the closed set of programs: which an engine can start with, in what order the others are built, and
what it may run meanwhile. All of it follows from what programs say of themselves."""

from collections.abc import Iterable
from typing import Any

import jax

from palladio.runtime.execution.compiled.out_of_memory import compile_advice, is_out_of_memory
from palladio.runtime.execution.compiled.program_cache import OnBuilt, ProgramCache
from palladio.runtime.execution.compiled.workspace import ProgramMemory, workspace_of
from palladio.runtime.execution.programs.program import Program, ProgramDesign, ProgramKey, StaticModel
from palladio.runtime.execution.programs.programs import declare_programs
from palladio.runtime.execution.programs.step_programs import Decode, Sample
from palladio.runtime.execution.sampling.sampler import TIERS, SampleTier
from palladio.runtime.execution.state.device_state import DeviceShape, DeviceState
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.scheduling.batch.buckets import Buckets
from palladio.runtime.scheduling.batch.scheduled_batch import StepKind

FIRST_REQUESTS = 8  # that an engine can run at once before its larger programs are built
FIRST_TOKENS = 256  # of a prefill step until then


class StepPrograms:
    """Declares the programs for a model and its buckets, and hands out the ones that steps call.

    Args:
        state: arrays, or ShapeDtypeStructs in their place.
        built: an empty set, which is filled and can then be built.

    Attributes:
        design: what decides the set. buckets: its shapes of steps.
        by_key: the programs. built: the same, as far as they are built.
    """

    def __init__(
        self,
        model: StaticModel,
        state: DeviceState,
        shape: DeviceShape,
        buckets: Buckets,
        built: ProgramCache[ProgramKey],
    ) -> None:
        self.design = ProgramDesign(model, len(state.weights), shape, buckets)
        self.buckets = buckets
        self.built = built
        self.by_key = {program.key: program for program in declare_programs(self.design)}
        state = state._replace(
            head=self.design.head.select(state.weights),
            last_hidden={size: self._hidden(size) for size in buckets.sample},
            hidden={bucket.num_tokens: self._hidden(bucket.num_tokens) for bucket in buckets.prefill},
        )
        abstract: DeviceState = jax.tree.map(_abstract, state)
        for key, program in self.by_key.items():
            jitted, args = program.declaration(abstract)
            built.add(key, jitted, *args)
        always = self._needed_by(Buckets((), (), ()))
        self._decode = {size: self._needed_by(Buckets((size,), (), ())) - always for size in buckets.decode}
        self._prefill = {bucket: self._needed_by(Buckets((), (bucket,), ())) - always for bucket in buckets.prefill}
        self._verify = {
            one: self._needed_by(Buckets((), (one.forward,), (), (one,))) - always for one in buckets.verify
        }
        self._sample = {size: self._needed_by(Buckets((), (), (size,))) - always for size in buckets.sample}
        self._several = {
            size: {key for key in self.by_key if key.kind == Decode.kind and key.num_requests == size}
            for size in buckets.several
        }

    @property
    def workspace(self) -> int:
        """Bytes of device memory that all programs need in addition to their arguments, estimated from built ones."""
        needs = {key: ProgramMemory.of(program) for key, program in self.built.programs.items()}
        return workspace_of(needs, self.by_key)

    def first_keys(self, *, splits_prompts: bool) -> list[ProgramKey]:
        """The fewest programs that can serve every request, if only a few at once."""
        needed = self._needed_by(self._first_buckets(splits_prompts=splits_prompts))
        return [key for key in self.by_key if key in needed]

    def background_keys(self, *, splits_prompts: bool) -> list[ProgramKey]:
        """The rest: what lets more run at once, then what lets smaller steps pad less, then what no step needs."""
        opened = self._first_buckets(splits_prompts=splits_prompts)
        (num_requests,), num_tokens = opened.sample, opened.max_prefill_tokens
        first, needed = self._needed_by(opened), self._needed_by(self.buckets)

        def rank(key: ProgramKey) -> tuple[int, int]:
            if key not in needed:
                return 3, key.num_requests
            if key.num_tokens:
                return (1, key.num_tokens) if key.num_tokens > num_tokens else (2, -key.num_tokens)
            return (0, key.num_requests) if key.num_requests > num_requests else (2, -key.num_requests)

        return sorted((key for key in self.by_key if key not in first), key=rank)

    def taken_by(
        self, kind: StepKind, num_rows: int, num_tokens: int, num_sampled: int, tier: SampleTier
    ) -> list[ProgramKey]:
        """What a step calls, and what else its buckets need before they open, if all buckets are to choose from.

        Args:
            num_sampled: rows that are sampled.
        """
        buckets = self.buckets
        verify = buckets.pick_verify(num_rows) if kind == "verify" else None
        if verify is not None:
            sampled, needed = verify.num_requests, self._verify[verify]
        elif kind == "decode" and buckets.decode:
            sampled = buckets.pick_decode(num_rows)
            needed = self._decode[sampled] | self._sample[sampled]
        else:
            sampled = buckets.pick_sample(num_sampled) if num_sampled else 0
            needed = self._prefill[buckets.pick_prefill(num_tokens, num_rows)]
            needed |= self._sample.get(sampled, frozenset()) | self._decode.get(sampled, frozenset())
        tiers = (program.key_of(sampled, tier=tier) for program in (Decode, Sample))
        return [*(key for key in self.by_key if key in needed), *(key for key in tiers if key in self.by_key)]

    def build(self, keys: Iterable[ProgramKey], on_built: OnBuilt = lambda: None) -> None:
        """Build programs, and wait for them.

        Args:
            on_built: called after each one.

        Raises:
            ConfigError: one of them is too large for the device.
        """
        try:
            self.built.build(keys, on_built)
        except jax.errors.JaxRuntimeError as error:
            refused = self.built.refused
            if refused is None or not is_out_of_memory(error):
                raise
            advice = compile_advice(refused, self.buckets, self.design.shape.ranks.num_ranks)
            raise ConfigError(f"{advice}. XLA error: {error}") from error

    def largest_keys(self) -> list[ProgramKey]:
        """The programs that need most memory."""
        *_, decode = (frozenset[ProgramKey](), *self._decode.values())
        largest = [self._prefill[self.buckets.prefill[-1]], decode, self._sample[self.buckets.sample[-1]]]
        largest += [self._verify[bucket] - largest[0] for bucket in self.buckets.verify[-1:]]
        return [key for needed in largest for key in self.by_key if key in needed]

    def open_buckets(self) -> Buckets:
        """The buckets whose programs are built."""
        built = self.built.programs.keys()
        sample = tuple(size for size, needed in self._sample.items() if needed <= built)
        decodes = any(self._decode.values())
        if decodes:  # a decode step samples all of its rows
            sample = tuple(size for size in sample if self._decode[size] <= built)
        prefill = tuple(bucket for bucket, needed in self._prefill.items() if needed <= built)
        verify = tuple(bucket for bucket, needed in self._verify.items() if needed <= built)
        several = tuple(size for size, needed in self._several.items() if needed <= built)
        return Buckets(sample if decodes else (), prefill, sample, verify, several)

    def tier(self, kind: type[Program], num_requests: int, wanted: SampleTier) -> SampleTier:
        """The tier to sample in: the wanted one, or until it is built one that does more; the wanted one if none is."""
        tiers = TIERS[TIERS.index(wanted) :]
        return next((tier for tier in tiers if kind.key_of(num_requests, tier=tier) in self.built), wanted)

    def _first_buckets(self, *, splits_prompts: bool) -> Buckets:
        """Few enough to be built soon: one of each kind."""
        buckets = self.buckets
        if self.design.generates:
            few = next((size for size in buckets.decode if size >= FIRST_REQUESTS), buckets.sample[-1])
        else:
            few = min(FIRST_REQUESTS, buckets.max_requests)
        enough = FIRST_TOKENS if splits_prompts else buckets.max_prefill_tokens
        fitting = (b for b in buckets.prefill if b.num_tokens >= enough and b.num_requests >= few)
        return Buckets((few,) if buckets.decode else (), (next(fitting, buckets.prefill[-1]),), (few,))

    def _needed_by(self, buckets: Buckets) -> frozenset[ProgramKey]:
        return frozenset(key for key, program in self.by_key.items() if program.is_needed(buckets))

    def _hidden(self, num_rows: int) -> Any:
        """The hidden states of `num_rows` tokens of each rank. Any: it stands where a jax.Array will."""
        ranks, hidden = self.design.shape.ranks, self.design.model.hidden
        return jax.ShapeDtypeStruct((ranks.num_ranks * num_rows, *hidden.shape), hidden.dtype, sharding=ranks.state)


def _abstract(x: Any) -> jax.ShapeDtypeStruct:
    """The shape of an array, or of what describes one already: some weights have a fixed memory layout."""
    has_layout = isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None and x.format.layout is not None
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.format if has_layout else x.sharding)
