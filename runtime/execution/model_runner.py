"""ModelRunner: a scheduler's steps as calls of programs, which the executor makes."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

import jax
import numpy as np

from palladio.runtime.execution.batch.batch_builder import BatchBuilder, HostBatch, StepForm
from palladio.runtime.execution.batch.media_rows import ROWS_PER_CALL, MediaRows, has_media, num_calls
from palladio.runtime.execution.batch.reading import InFlightStep, Int32Array, Pooled, read_batch, wants_tokens
from palladio.runtime.execution.compiled.build_order import BuildOrder
from palladio.runtime.execution.device_executor import DeviceExecutor
from palladio.runtime.execution.programs.cache_programs import (
    COMPARED_PAGES,
    COPIED_STATES,
    Compare,
    CopyStates,
    Tables,
)
from palladio.runtime.execution.programs.draft_programs import Draft, Verify
from palladio.runtime.execution.programs.pool_programs import Pool, PoolTokens
from palladio.runtime.execution.programs.program import Program, ProgramKey
from palladio.runtime.execution.programs.step_programs import (
    RESET_TOKENS,
    Decode,
    Forward,
    ForwardMedia,
    Reset,
    Sample,
    Score,
    WriteEmbeds,
    slot_rules,
)
from palladio.runtime.execution.sampling.sampler import MASKED_TIERS, TIERS, SampleOutput, SampleTier
from palladio.runtime.interface.request.prompt_parts import text_ids
from palladio.runtime.scheduling.batch.buckets import Buckets
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from palladio.runtime.scheduling.state.new_tokens import SampledRows
from palladio.runtime.scheduling.state.request import Request


@dataclasses.dataclass(frozen=True, slots=True)
class ForwardedStep:
    """The first half of a step, dispatched.

    Attributes:
        form: of the vectors. hosts: they, by rank.
        tier: that its rows ask for; known only now: a request may end before the second half, and give up its slot.
        last_array: what was dispatched last; None if one program does all of it: that is the second half.
    """

    planned: ScheduledStep
    form: StepForm
    hosts: list[HostBatch]
    tier: SampleTier
    last_array: jax.Array | None


class ModelRunner:
    """Runs scheduled steps as calls of programs. `forward` and `sample` only dispatch; `read` waits for tokens.

    Args:
        eos_ids: the model's: no output that has to go on (min_tokens) shows them, whether they would end it or not.
        is_lazy: programs are built when a step first needs them.
        order: hears of each step as long as programs are built; None: they are not.

    Attributes:
        executor: makes the calls. programs: the programs that it runs.
        shape: the shape of one rank's state on the device.
    """

    def __init__(
        self,
        executor: DeviceExecutor,
        eos_ids: Iterable[int] = (),
        *,
        is_lazy: bool,
        order: BuildOrder | None = None,
    ) -> None:
        self.executor = executor
        self.programs = executor.programs
        self._eos_ids = frozenset(eos_ids)
        self._design = executor.programs.design
        self.shape = self._design.shape
        self._builders = [BatchBuilder(self.shape.num_slots) for _ in range(executor.ranks.num_ranks)]
        self._buckets = executor.programs.buckets
        # By the number of a tier: the first one of the engine's that does as much.
        self._least_tiers: list[SampleTier] = [
            next(tier for tier in self._design.tiers if TIERS.index(tier) >= least) for least in range(len(TIERS))
        ]
        self._keys: dict[tuple[type[Program], int, SampleTier], ProgramKey] = {}
        self._decode_forms: dict[int, StepForm] = {}  # by the number of rows
        self._is_lazy, self._num_built = is_lazy, -1  # -1: never looked at
        self._order = order
        self._shares_memory = self.shape.mesh.devices.flat[0].platform == "cpu"  # nothing to copy then

    def buckets(self) -> Buckets:
        """Buckets that steps can use now: of the built programs, or all if calls build their programs."""
        num_built = len(self.programs.built)
        if self._num_built != num_built and not self._is_lazy:
            self._buckets = self.programs.open_buckets()
            self._decode_forms.clear()
            self._num_built = num_built
        return self._buckets

    def forward(self, step: ScheduledStep) -> ForwardedStep:
        """Dispatches the first half of a step, all but sampling; returns before the device has run it."""
        if step.kind == "prefill" and self._design.generates:
            for rank, batch in step.parts:
                for row in batch.chunks:
                    if self._builders[rank].assign(row.request):
                        self._load_history(rank, row.request)
        form, hosts = self._build(step)
        for number in range(max([len(host.early_updates) for host in hosts])):
            self.executor.run(Tables.key_of(), [host.early(number) for host in hosts])
        last_array, tier = None, self._tier(hosts)
        if self._order is not None and not self._order.note(step, self._buckets, tier):
            self._order = None
        self._copy_states(step, "before")
        if not self._is_one_program(step, form, tier):
            if step.kind == "verify":
                self.executor.run(Draft.key_of(form.num_sampled), [host.forward for host in hosts])
            sizes, arrays = (form.layout.num_requests, form.layout.num_tokens), [[host.forward for host in hosts]]
            if self._takes_media(step):
                self.executor.run(ForwardMedia.key_of(*sizes), *arrays, self._write_embeds(step, sizes[1]))
            else:
                self.executor.run(Forward.key_of(*sizes), *arrays)
            self._copy_states(step, "after")
            last_array = next(iter(self.executor.state.last_hidden.values()))
        return ForwardedStep(step, form, hosts, tier, last_array)

    def sample(self, forwarded: ForwardedStep, masks: list[Int32Array] | None) -> InFlightStep:
        """Dispatches the second half.

        Args:
            masks: i32[forwarded.form.num_sampled, mask_width] of each rank, the tokens that each row may sample; None:
                all of them.
        """
        if not self._design.generates:
            step = self._pool(forwarded)
        elif forwarded.last_array is None:
            step = self._decode(forwarded)
        else:
            step = self._sample(forwarded, masks)
        if not self._shares_memory:
            for array in jax.tree.leaves((step.output, step.scores, step.embeddings)):
                array.copy_to_host_async()
        return step

    def read(self, step: InFlightStep) -> list[SampledRows]:
        """Waits for a step and returns what it gave to each of its batches (`ScheduledStep.parts`): nothing later looks
        at the device's arrays.

        Raises:
            JaxRuntimeError: the step failed; its requests have no further tokens.
        """
        step.last_array.block_until_ready()  # of a step without tokens too: its error is not the next step's
        results = (step.output, step.scores, step.embeddings)
        return [read_batch(batch, *self.executor.ranks.take(rank, results)) for rank, batch in step.planned.parts]

    def page_difference(
        self, rank: int, pairs: Sequence[Sequence[tuple[int, int]]], slots: tuple[int, int] = (0, 0)
    ) -> float:
        """The largest relative difference of two pages' keys and values, in any pair; waits for the device.

        Args:
            pairs: of each block table. Exists with --cache-self-check only.
            slots: whose states are compared too, where layers keep any; the scratch slot twice: none.
        """
        largest = 0.0
        states = (np.array(slots, np.int32),) if self.shape.num_snapshots else ()
        for begin in range(0, max(map(len, pairs)), COMPARED_PAGES):
            numbers = np.zeros((2, len(pairs), COMPARED_PAGES), np.int32)
            for table, of_table in enumerate(pairs):
                part = of_table[begin : begin + COMPARED_PAGES]
                numbers[:, table, : len(part)] = np.reshape(part, (-1, 2)).T
            compared = self.executor.run_on(rank, Compare.key_of(), numbers.reshape(2, -1), *states)
            largest = max(largest, float(compared))
        return largest

    def _copy_states(self, step: ScheduledStep, when: Literal["before", "after"]) -> None:
        """Snapshots into slots before a step, slots into snapshots after it."""
        if not self.shape.num_snapshots:
            return
        copies = [None if batch is None else batch.copies for batch in step.batches]
        if when == "before":
            by_rank = [[] if each is None else list(each.before) for each in copies]
        else:
            by_rank = [[] if each is None else [(one.source, one.slot) for one in each.after] for each in copies]
        while most := max(map(len, by_rank)):
            size = next((size for size in COPIED_STATES if size >= most), COPIED_STATES[-1])
            slots = np.zeros((len(by_rank), 2, size), np.int32)
            for rank, pairs in enumerate(by_rank):
                slots[rank, :, : len(pairs[:size])] = np.reshape(pairs[:size], (-1, 2)).T
                del pairs[:size]
            self.executor.run(CopyStates.key_of(size), list(slots))

    def _build(self, step: ScheduledStep) -> tuple[StepForm, list[HostBatch]]:
        form = self._form(step)
        return form, [builder.build(form, batch) for builder, batch in zip(self._builders, step.batches, strict=True)]

    def _form(self, step: ScheduledStep) -> StepForm:
        """The form of a step. Decode steps of as many rows share one object: builders know their last step by it."""
        layouts, buckets = self._design.layouts, self._buckets
        if step.kind != "decode" or not layouts.decode:
            return StepForm.of(step, layouts, buckets)
        if (form := self._decode_forms.get(num_rows := step.num_rows)) is None:
            form = self._decode_forms[num_rows] = StepForm.of(step, layouts, buckets)
        return form

    def _is_one_program(self, step: ScheduledStep, form: StepForm, tier: SampleTier) -> bool:
        """Whether one program computes the step and samples. Where it is not built yet, two do."""
        if form.layout.num_steps > 1 or step.num_passes > 1:
            return True
        if step.kind != "decode" or step.is_constrained or not self._design.joins(form.layout, tier):
            return False
        return self._is_lazy or self._key(Decode, form.layout.num_requests, tier) in self.programs.built

    def _pool(self, forwarded: ForwardedStep) -> InFlightStep:
        step, form, pooling = forwarded.planned, forwarded.form, self.shape.pooling
        assert pooling is not None, "else it would sample"
        sizes = form.layout.num_requests, form.layout.num_tokens
        vectors: jax.Array | None = None
        of_tokens: jax.Array | None = None
        if pooling.methods:
            vectors = self.executor.run(Pool.key_of(*sizes), [host.forward for host in forwarded.hosts])
        if pooling.gives_tokens and (vectors is None or wants_tokens(step)):
            of_tokens = self.executor.run(PoolTokens.key_of(*sizes))
        last = of_tokens if vectors is None else vectors
        assert last is not None, "a model without methods gives vectors of tokens"
        pooled = Pooled(vectors, of_tokens) if form.num_sampled else None
        return InFlightStep(step, None, None, form.bucket_size, 1, last, pooled)

    def _sample(self, forwarded: ForwardedStep, masks: list[Int32Array] | None) -> InFlightStep:
        form, hosts, tier, last_array = forwarded.form, forwarded.hosts, forwarded.tier, forwarded.last_array
        assert last_array is not None, "see `sample`"
        output: SampleOutput | None = None
        if form.num_sampled:
            if masks is not None and tier not in MASKED_TIERS:
                tier = "masked"
            allowed = () if masks is None else (masks,)
            kind = Verify if forwarded.planned.kind == "verify" else Sample
            output = self._run_tier(kind, form.num_sampled, tier, [host.sampling for host in hosts], *allowed)
            last_array = output.token_ids
        scores = None
        if form.scores:
            key = Score.key_of(num_tokens=form.layout.num_tokens)
            columns = [host.score_targets for host in hosts], [host.score_slots for host in hosts]
            scores = self.executor.run(key, *columns)
            last_array = scores[0]
        return InFlightStep(forwarded.planned, output, scores, form.bucket_size, 1, last_array)

    def _decode(self, forwarded: ForwardedStep) -> InFlightStep:
        layout, hosts = forwarded.form.layout, forwarded.hosts
        output = self._run_tier(Decode, layout.num_requests, forwarded.tier, [host.packed for host in hosts])
        self._copy_states(forwarded.planned, "after")
        planned, size = forwarded.planned, forwarded.form.bucket_size
        return InFlightStep(planned, output, None, size, max(layout.num_steps, planned.num_passes), output.token_ids)

    def _run_tier(
        self, kind: type[Program], num_rows: int, tier: SampleTier, *arrays: list[Int32Array]
    ) -> SampleOutput:
        output: SampleOutput = self.executor.run(self._key(kind, num_rows, tier), *arrays)
        return output

    def _key(self, kind: type[Program], num_rows: int, tier: SampleTier) -> ProgramKey:
        """The key of the program that samples in this tier, or, until it is built, of a program that can do more."""
        key = self._keys.get((kind, num_rows, tier))
        if key is None:
            key = kind.key_of(num_rows, tier=tier if self._is_lazy else self.programs.tier(kind, num_rows, tier))
            if key.tier == tier and key in self.programs.built:
                self._keys[kind, num_rows, tier] = key  # it stays
        return key

    def _tier(self, hosts: Sequence[HostBatch]) -> SampleTier:
        return self._least_tiers[max([host.tier for host in hosts])]

    def _takes_media(self, step: ScheduledStep) -> bool:
        """Whether this step's program is the one with rows of embeddings."""
        return self._design.always_media or (self.shape.num_embeds > 0 and has_media(step))

    def _write_embeds(self, step: ScheduledStep, num_tokens: int) -> list[Int32Array]:
        """Brings the rows of the step's media into the pool; returns which of its tokens have which row, by rank."""
        width = self.shape.hidden_size
        media = [MediaRows.of(batch, num_tokens, width) for batch in step.batches]
        for number in range(num_calls(media)):
            first = np.array(number * ROWS_PER_CALL, np.int32)
            self.executor.run(WriteEmbeds.key_of(), [first] * len(media), [each.piece(number) for each in media])
        return [each.places for each in media]

    def _load_history(self, rank: int, request: Request) -> None:
        """Counts a request's tokens and sets its bias, stop ids and asked ids in the device's row of its slot."""
        params = request.given.params
        suppressed = frozenset(request.given.stop_token_ids) | (self._eos_ids if params.min_tokens else frozenset())
        asked_ids = params.logprob_token_ids or ()
        rules = slot_rules(params.logit_bias, sorted(suppressed), asked_ids, self.shape.vocab_size)
        rule_arrays = [np.asarray(array) for array in vars(rules).values()]
        slot = np.array(request.slot, np.int32)
        known = text_ids(request.token_ids, request.given.media) if request.given.media else request.token_ids
        num_prompt_tokens = len(known) - request.num_output_tokens
        for begin in range(0, max(1, len(known)), RESET_TOKENS):
            ids = known[begin : begin + RESET_TOKENS]
            token_ids = np.zeros(RESET_TOKENS, np.int32)
            token_ids[: len(ids)] = ids
            is_prompt = np.arange(begin, begin + RESET_TOKENS) < num_prompt_tokens
            tokens = (token_ids, is_prompt, np.array(len(ids), np.int32), np.array(begin == 0))
            self.executor.run_on(rank, Reset.key_of(), slot, *tokens, *rule_arrays)
