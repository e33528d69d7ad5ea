"""A scheduler driven without a device: tokens are arithmetic, and a simulated cache checks every page that is read."""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping

import numpy as np

from palladio.runtime.execution.batch.reading import num_scored
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob, TokenOutput, by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.prompt_parts import Media
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.buckets import Buckets, SchedulerLimits
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledRow
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.policy.batch_share import BatchShare
from palladio.runtime.scheduling.policy.waiting_queue import WaitingQueue
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.new_tokens import SampledRows
from palladio.runtime.scheduling.state.page_groups import PageGroups, SnapshotSlots, WindowGroup
from palladio.runtime.scheduling.state.request import Request, RequestStatus
from tests.runtime.scheduling.scheduler_progress import PREEMPTION_THRESHOLD, Progress
from tests.runtime.scheduling.simulated_model import (
    EOS,
    Part,
    ScriptedConstraint,
    expected_constrained_output,
    expected_output,
    next_token,
    proposals,
)

SMALL = 2  # requests


@dataclasses.dataclass
class Simulation:
    """Runs a Scheduler `lag` steps ahead of the simulated device (1 is what EngineCore does).

    The device keeps, for each row of each page, the salt and all tokens up to the one that was written there. Before it
    samples it checks that every position of the request holds just that: a page that two requests write to, or a prefix
    that is not the request's own, is found at once. It does so in each block table, of a group with a window for the
    positions that the step's first token sees and those after them; in the others nothing is looked up.

    With snapshots, layers keep a state for each slot too: all tokens that it is of. A row that begins behind others
    needs just theirs, whichever slot it was copied from.
    """

    num_pages: int = 20
    page_size: int = 4
    max_running: int = 4
    max_step_tokens: int = 16
    max_queued: int | None = None
    lag: int = 1
    splits_prompts: bool = True
    mixes: bool = False
    num_decode_steps: int = 1
    check_interval: int = 1  # steps between two looks at all that the host believes
    joined_passes: int = 1  # of steps of SMALL requests or fewer
    num_drafts: int = 0
    shares_prefixes: bool = True
    eviction_policy: str = "lru"
    policy: str = "fcfs"
    one_shape: bool = False
    windows: tuple[tuple[int, int], ...] = ()  # of each group with one: its window, and how many tables it has
    keeps_all: bool = True  # whether there is a group without a window
    num_snapshots: int = 0  # layers keep states, if it is over 0
    snapshot_interval: int = 8
    background_slowdown: float = 0.15
    seconds_of: Callable[[ScheduledBatch], float] | None = None  # what each step is said to take
    share: BatchShare | None = None

    def __post_init__(self) -> None:
        self.groups = page_groups(self.page_size, self.windows, keeps_all=self.keeps_all)
        if self.num_snapshots:
            interval = -(-self.snapshot_interval // self.page_size) * self.page_size
            slots = SnapshotSlots(self.max_running + 1, self.num_snapshots, interval, self.page_size)
            self.groups = dataclasses.replace(self.groups, has_states=True, snapshots=slots)
        self.cache = CacheManager(
            self.num_pages * self.groups.num_tables,
            self.groups,
            shares_prefixes=self.shares_prefixes,
            eviction_policy=self.eviction_policy,  # type: ignore[arg-type]
        )
        if self.one_shape:
            self.buckets = Buckets.create_one(max_running=self.max_running, max_step_tokens=self.max_step_tokens)
        else:
            self.buckets = Buckets.create(max_running=self.max_running, max_step_tokens=self.max_step_tokens, growth=2)
        if self.num_drafts:
            self.buckets = self.buckets.with_drafts(self.num_drafts)
        if self.joined_passes > 1:
            self.buckets = self.buckets.with_several(SMALL)
        limits = SchedulerLimits(
            max_running=self.max_running,
            max_queued=self.max_queued,
            max_step_tokens=self.max_step_tokens,
            splits_prompts=self.splits_prompts,
            mixes=self.mixes,
            num_decode_steps=self.num_decode_steps,
            joined_passes=self.joined_passes,
            num_drafts=self.num_drafts,
            preemption_threshold=PREEMPTION_THRESHOLD if self.policy == "priority" else None,
        )
        waiting = WaitingQueue.create(self.policy, self.cache.tree, self.page_size)  # type: ignore[arg-type]
        share = self.share or BatchShare(self.background_slowdown)
        self.scheduler = Scheduler(limits, self.buckets, self.cache, waiting, share)
        self.tables: dict[int, dict[int, int]] = {}
        self.windows_of_tables: list[int | None] = [None] * self.keeps_all
        for group in self.groups.windows:
            self.windows_of_tables += [group.window] * len(group.tables)
        self.written: dict[tuple[int, int], tuple[str | None, tuple[object, ...]]] = {}
        self.device_tokens: dict[int, list[int]] = {}
        self.states: dict[int, tuple[str | None, tuple[object, ...]]] = {}
        self.in_flight: deque[tuple[ScheduledBatch, list[list[int]]]] = deque()
        self.outputs: dict[str, list[int]] = {}
        self.scored: dict[str, list[int]] = {}
        self.finished: dict[str, TokenOutput] = {}
        self.batches: list[ScheduledBatch] = []
        self.progress = Progress(self.scheduler)

    def add(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        *,
        received: float = 0.0,
        options=None,
        is_constrained: bool = False,
        media: tuple[Media, ...] = (),
        **params,
    ) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, seed=0, **params)
        stop_ids = [] if sampling.ignore_eos else [EOS]
        options = options or RequestOptions()
        message = GenerationRequest(request_id, prompt, sampling, stop_ids, received, options, media=media)
        request = Request.of(message, rows=tuple(np.zeros((part.length, 0), np.float32) for part in media))
        self.scheduler.check(request)
        if is_constrained:
            request.constraint = ScriptedConstraint()  # type: ignore[assignment]
        self.scheduler.add(request)
        self.progress.begin()
        self.outputs[request_id] = []

    def abort(self, request_id: str) -> bool:
        """False if it has ended."""
        self.progress.begin()
        return self.scheduler.abort(request_id)

    def flush(self) -> None:
        """Drops the prefix cache, at any time."""
        self.progress.begin()
        self.cache.flush()

    def lose(self) -> None:
        """The device fails: what is in flight has not run, and it has lost all that it kept."""
        lost = {row.request for batch, _ in self.in_flight for row in batch.rows}
        self.in_flight.clear()
        self.scheduler.start_over()
        for request in lost:
            if self.scheduler.find(request.given.request_id) is not None:
                self._take([self.scheduler.fail(request, FinishReason("abort"))])
        self.tables, self.written, self.states = {}, {}, {}
        self.progress.begin()

    def step(self) -> bool:
        """One engine step; False when there was nothing to do."""
        for output in self.scheduler.expire():
            self.finished[output.request_id] = output
        batch = self.scheduler.schedule()
        self.progress.check_plan(batch)
        if batch is not None:
            self.batches.append(batch)
            self.in_flight.append((batch, self._run(batch)))
        elif not self.in_flight:
            return False
        self._process(keep=self.lag if batch is not None else 0)
        if len(self.batches) % self.check_interval == 0:
            self.scheduler.check_integrity()
            self._check_bounds()
            self.progress.check_step(sum(map(len, self.outputs.values())) + len(self.finished))
        return True

    def _check_bounds(self) -> None:
        """What the host believes of requests that decode."""
        for request in self.scheduler.running:
            if request.is_prefilling or request.constraint is not None or request.max_tokens == 0:
                continue
            length = len(self.device_tokens[request.slot]) - 1
            assert request.num_computed <= length <= request.most_computed
            assert request.most_computed <= len(request.pages) * self.page_size

    def _process(self, keep: int) -> None:
        while len(self.in_flight) > keep:
            done, tokens = self.in_flight.popleft()
            if self.seconds_of is not None and self.scheduler.share.num_background:  # as EngineCore does
                self.scheduler.share.note(done, self.seconds_of(done), self.buckets)
            self._take(by_request(self.scheduler.process(done, [self._read(done, tokens)])))

    def run(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.step():
                assert not self.scheduler.has_requests, "stalled: requests are left but no step can run"
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def _read(self, batch: ScheduledBatch, tokens: list[list[int]]) -> SampledRows:
        scored = ((number, row, self._scores(row)) for number, row in enumerate(batch.rows))
        outputs = {n: row.request.output(tokens[n], prompt_logprobs=of) for n, row, of in scored if of is not None}
        return sampled_rows(tokens[: batch.num_sampled_rows], outputs)

    def _take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            self.outputs[output.request_id] += output.token_ids
            if output.prompt_logprobs is not None:
                self.scored[output.request_id] = [entry.token_id for entry in output.prompt_logprobs]
            if output.finish is not None:
                self.finished[output.request_id] = output

    def _run(self, batch: ScheduledBatch) -> list[list[int]]:
        """Of each row, a token for each time that the step samples."""
        places = [update[:2] for update in batch.table_updates]
        assert len(set(places)) == len(places), "an entry is written twice in one scatter, which has no order on a GPU"
        for slot, column, page in batch.table_updates:
            self.tables.setdefault(slot, {})[column] = page
        assert batch.num_decodes == sum(row.decodes for row in batch.rows)
        assert [row.decodes for row in batch.rows] == sorted((row.decodes for row in batch.rows), reverse=True)
        samples = [row.samples for row in batch.rows]
        assert samples == sorted(samples, reverse=True), "rows that sample come first"
        if batch.kind == "decode" and self.buckets.decode:
            most = self.num_decode_steps
            if self.buckets.pick_decode(len(batch.rows)) in self.buckets.several and batch.num_waiting == 0:
                most = self.joined_passes
            assert all(1 <= row.num_tokens <= most for row in batch.rows)
        elif batch.kind == "verify":
            bucket = self.buckets.pick_verify(len(batch.rows))
            assert bucket is not None
            assert batch.num_tokens <= bucket.forward.num_tokens
        else:
            assert batch.num_tokens <= self.max_step_tokens
            self.buckets.pick_prefill(batch.num_tokens, len(batch.rows))
        times = max(row.num_tokens for row in batch.rows) if batch.kind == "decode" else 1
        for source, target in batch.copies.before if batch.copies is not None else ():
            assert source > self.max_running >= target > 0
            self.states[target] = self.states[source]
        sampled = [self._run_once(batch, number, times) for number in range(times)]
        return [list(itertools.chain(*of_row)) for of_row in zip(*sampled, strict=True)]

    def _run_once(self, batch: ScheduledBatch, number: int, times: int) -> list[list[int]]:
        """The forward pass, then sampling. As in EngineCore, the step before is read in between where the host has to
        know its tokens; requests that end there are part of the forward pass still, and sample for nobody."""
        slots = [row.request.slot for row in batch.rows]
        parts = [self._part(row, slot, number) for row, slot in zip(batch.rows, slots, strict=True)]
        for row, slot, part in zip(batch.rows, slots, parts, strict=True):
            for position in part.positions:  # all rows are written before any token attends
                for table in range(self.groups.num_tables):
                    self.written[self._place(slot, position, table)] = part.content(row, position)
        for row, slot, part in zip(batch.rows, slots, parts, strict=True):
            for table, window in enumerate(self.windows_of_tables):
                first = 0 if window is None else max(0, part.positions.start - window + 1)
                for position in range(first, part.positions.stop if part.positions else 0):
                    found = self.written[self._place(slot, position, table)]
                    assert found == part.content(row, position), "this page holds something else"
        if self.num_snapshots:
            self._advance_states(batch, slots, parts)
            for copy in batch.copies.after if number == times - 1 else ():
                assert copy.slot > self.max_running
                self.states[copy.slot] = self.states[copy.source]
        if batch.is_constrained:
            self._process(keep=0)
        return [
            self._sample_row(row, slot, part) if row.samples else []
            for row, slot, part in zip(batch.rows, slots, parts, strict=True)
        ]

    def _advance_states(self, batch: ScheduledBatch, slots: list[int], parts: list[Part]) -> None:
        for row, slot, part in zip(batch.rows, slots, parts, strict=True):
            if part.positions:
                if part.positions.start:
                    before = part.content(row, part.positions.start - 1)
                    assert self.states.get(slot) == before, "this state is of other tokens"
                self.states[slot] = part.content(row, part.positions.stop - 1)

    def _part(self, row: ScheduledRow, slot: int, number: int) -> Part:
        """What a row computes. The device alone knows where it starts, how many drafts it has, and whether it is at its
        end already."""
        if not row.decodes:
            end = row.start + row.num_tokens
            for media in row.request.given.media:
                is_cut = media.start < row.start < media.stop or media.start < end < media.stop
                assert not (media.is_whole and is_cut), f"a step is {row.start} … {end}: within {media}"
            self.device_tokens[slot] = row.request.token_ids[:end]
            return Part(self.device_tokens[slot], range(row.start, end))
        tokens = self.device_tokens[slot]
        begin = len(tokens) - 1
        if self.num_drafts == 0:
            assert begin == row.start + min(number, row.num_tokens), "the device does not know a token of this step"
        if begin >= row.end or number >= row.num_tokens:
            return Part(tokens, range(0))
        count = min(row.num_drafts, row.end - 1 - begin)
        drafts = list(itertools.islice(proposals(tokens), count))
        return Part([*tokens, *drafts], range(begin, begin + 1 + count), drafts)

    def _sample_row(self, row: ScheduledRow, slot: int, part: Part) -> list[int]:
        if not part.positions:
            return []
        sampled = [self._sample(row, slot)]
        for draft in part.drafts:
            if draft != sampled[-1]:
                break
            sampled.append(self._sample(row, slot))
        return sampled

    def _sample(self, row: ScheduledRow, slot: int) -> int:
        if row.request.max_tokens == 0:
            return 0
        constraint = row.request.constraint
        is_forced = constraint is not None and constraint.forced and row.request.status is not RequestStatus.FINISHED
        tokens = self.device_tokens[slot]
        token = constraint.forced[0] if constraint is not None and is_forced else next_token(tokens)
        self.device_tokens[slot] = [*tokens, token]
        return token

    def _scores(self, row: ScheduledRow) -> list[TokenLogprob] | None:
        request = row.request
        count = num_scored(request, row.start, row.num_tokens)
        if request.prompt_logprobs is None:
            return None
        return [TokenLogprob(token, -1.0) for token in request.given.prompt_ids[row.start + 1 : row.start + 1 + count]]

    def _place(self, slot: int, position: int, table: int) -> tuple[int, int]:
        page = self.tables[slot][table * self.groups.num_columns + position // self.page_size]
        assert page != 0
        return page, position % self.page_size


def sampled_rows(tokens: list[list[int]], alone: Mapping[int, TokenOutput] = {}) -> SampledRows:
    """What the device gave: of each row as many tokens as any has, and how many are its own."""
    counts = np.array(list(map(len, tokens)), np.int64)
    token_ids = np.full((len(tokens), max([1, *counts])), 555, np.int32)
    for row, own in zip(token_ids, tokens, strict=True):
        row[: len(own)] = own
    is_one_each = bool((counts == 1).all())  # then the device does not count
    return SampledRows(token_ids, None if is_one_each else counts, alone)


def page_groups(page_size: int, windows: Collection[tuple[int, int]], *, keeps_all: bool = True) -> PageGroups:
    """Args: windows: of each group with one: its window, and how many tables it has."""
    groups, number = [], int(keeps_all)
    for window, num_tables in windows:
        groups.append(WindowGroup(window, page_size, tuple(range(number, number + num_tables))))
        number += num_tables
    return PageGroups(page_size, 1000, keeps_all, tuple(groups))


STOP = frozenset({EOS})


def check(
    sim: Simulation, prompts: dict[str, tuple[list[int], int]], constrained: Collection[str] = frozenset()
) -> None:
    for name, (prompt, max_tokens) in prompts.items():
        expected = expected_constrained_output if name in constrained else expected_output
        assert sim.outputs[name] == expected(prompt, max_tokens, STOP), name
        assert sim.finished[name].finish is not None
        assert sim.scored.get(name, prompt) == prompt, "prompt logprobs are whole"
    assert sim.cache.num_used_tokens == 0
