"""A scheduler driven without a device: tokens are arithmetic, and a simulated cache checks every page that is read."""

import dataclasses
from collections import deque

from palladio.runtime.batch_builder import num_scored
from palladio.runtime.buckets import Buckets
from palladio.runtime.cache_manager import CacheManager
from palladio.runtime.messages import AddRequest
from palladio.runtime.outputs import TokenLogprob, TokenOutput
from palladio.runtime.request import Request
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.scheduler import ScheduledBatch, ScheduledRow, Scheduler, SchedulerLimits, StepTokens

EOS = 7


def next_token(tokens: list[int]) -> int:
    """The simulated model: depends on the last token and the position."""
    return (tokens[-1] * 31 + len(tokens) * 17) % 101


def expected_output(prompt: list[int], max_tokens: int, stop_ids: frozenset[int], min_tokens: int = 0) -> list[int]:
    tokens = list(prompt)
    for i in range(max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids and i + 1 >= min_tokens:
            break
    return tokens[len(prompt) :]


@dataclasses.dataclass
class Simulation:
    """Runs a Scheduler `lag` steps ahead of the simulated device (1 is what EngineCore does).

    The device keeps what was written to each page row, as (request, position), and checks before it samples that every
    earlier position of the request is still there: a page that two requests write to is found at once.
    """

    num_pages: int = 20
    page_size: int = 4
    max_running: int = 4
    max_step_tokens: int = 16
    max_queued: int | None = None
    lag: int = 1
    splits_prompts: bool = True

    def __post_init__(self) -> None:
        self.cache = CacheManager(self.num_pages, self.page_size)
        self.buckets = Buckets.create(max_running=self.max_running, max_step_tokens=self.max_step_tokens, growth=2)
        limits = SchedulerLimits(
            max_running=self.max_running,
            max_queued=self.max_queued,
            max_step_tokens=self.max_step_tokens,
            splits_prompts=self.splits_prompts,
        )
        self.scheduler = Scheduler(limits, self.buckets, self.cache)
        self.tables: dict[int, dict[int, int]] = {}
        self.written: dict[tuple[int, int], tuple[str, int]] = {}
        self.device_tokens: dict[int, list[int]] = {}
        self.in_flight: deque[tuple[ScheduledBatch, list[int]]] = deque()
        self.outputs: dict[str, list[int]] = {}
        self.scored: dict[str, list[int]] = {}
        self.finished: dict[str, TokenOutput] = {}
        self.batches: list[ScheduledBatch] = []

    def add(self, request_id: str, prompt: list[int], max_tokens: int, **params) -> None:
        message = AddRequest(request_id, prompt, SamplingParams(max_tokens=max_tokens, seed=0, **params), [EOS], 0.0)
        self.scheduler.add(Request.from_message(message))
        self.outputs[request_id] = []

    def step(self) -> bool:
        """One engine step; False when there was nothing to do."""
        batch = self.scheduler.schedule()
        if batch is not None:
            self.batches.append(batch)
            self.in_flight.append((batch, self._run(batch)))
        elif not self.in_flight:
            return False
        while len(self.in_flight) > (self.lag if batch is not None else 0):
            done, tokens = self.in_flight.popleft()
            scores = [self._scores(row) for row in done.rows]
            for output in self.scheduler.process(
                done, StepTokens(tokens, [True] * len(tokens), prompt_logprobs=scores)
            ):
                self.outputs[output.request_id] += output.token_ids
                if output.prompt_logprobs is not None:
                    self.scored[output.request_id] = [entry.token_id for entry in output.prompt_logprobs]
                if output.finish is not None:
                    self.finished[output.request_id] = output
        self.scheduler.check_integrity()
        return True

    def run(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.step():
                assert not self.scheduler.has_requests, "stalled: requests are left but no step can run"
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def _run(self, batch: ScheduledBatch) -> list[int]:
        for slot, column, page in batch.table_updates:
            self.tables.setdefault(slot, {})[column] = page
        if batch.kind == "decode":
            assert len(batch.rows) <= self.max_running
        else:
            assert batch.num_tokens <= self.max_step_tokens
            self.buckets.pick_prefill(batch.num_tokens, len(batch.rows))
        return [self._run_row(batch, i) for i in range(len(batch.rows))]

    def _scores(self, row: ScheduledRow) -> list[TokenLogprob] | None:
        request = row.request
        count = num_scored(request, row.start, row.num_tokens)
        if request.prompt_logprobs is None:
            return None
        return [TokenLogprob(token, -1.0) for token in request.prompt_ids[row.start + 1 : row.start + 1 + count]]

    def _run_row(self, batch: ScheduledBatch, i: int) -> int:
        row = batch.rows[i]
        slot, name = row.request.slot, row.request.request_id
        if batch.kind == "prefill":
            self.device_tokens[slot] = row.request.token_ids[: row.start + row.num_tokens]
        tokens = self.device_tokens[slot]
        assert len(tokens) == row.start + row.num_tokens, "the device does not know a token of this step"
        for position in range(row.start, row.start + row.num_tokens):
            self.written[self._place(slot, position)] = (name, position)
        for position in range(len(tokens)):
            assert self.written[self._place(slot, position)] == (name, position), "someone else wrote to this page"
        if not row.samples or row.request.max_tokens == 0:
            return 0
        self.device_tokens[slot] = [*tokens, next_token(tokens)]
        return self.device_tokens[slot][-1]

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        page = self.tables[slot][position // self.page_size]
        assert page != 0
        return page, position % self.page_size
