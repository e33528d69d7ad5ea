"""The schedulers of several groups as one, without a device."""

import dataclasses
from typing import Any

from palladio.runtime.core.watch.step_logger import StepLogger
from palladio.runtime.interface.messages.engine_stats import EngineStats
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.scheduled_batch import JointStep, ScheduledRow
from palladio.runtime.scheduling.dp_router import DataParallelRouter
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.scheduling.policy.batch_share import BatchShare
from palladio.runtime.scheduling.state.request import Request
from tests.runtime.scheduling.scheduler_sim import Simulation, sampled_rows


class Driver:
    """Two groups whose requests all sample token 7.

    Attributes:
        finished: how many tokens each request had when it ended.
        steps: kinds, and for each group the ids and tokens of its rows.
    """

    def __init__(self, method: str = "round_robin", **limits: Any) -> None:
        limits = {"num_pages": 60, "page_size": 4, "max_running": 4, "share": BatchShare(0.15), **limits}
        sims = [Simulation(**limits) for _ in range(2)]
        slack = sims[0].cache.num_total_tokens // 4
        self.scheduler = DataParallelScheduler([sim.scheduler for sim in sims], DataParallelRouter(method, 2, slack))  # type: ignore[arg-type]
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, int] = {}
        self.steps: list[tuple[str, list[list[tuple[str, int]]]]] = []
        self._in_flight: list[JointStep] = []

    def add(self, name: str, length: int = 8, max_tokens: int = 4, *, salt: int = 0, **options: Any) -> int:
        """Returns the request's group."""
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, ignore_eos=True)
        prompt = [100 + salt] * length
        self.scheduler.add(Request.of(GenerationRequest(name, prompt, params, (), 0.0, RequestOptions(**options))))
        self.tokens[name] = []
        rank = self.scheduler.rank_of(name)
        assert rank is not None
        return rank

    def step(self) -> None:
        step = self.scheduler.schedule()
        if step is not None:
            rows = [
                [] if b is None else [(r.request.given.request_id, r.num_tokens) for r in b.rows] for b in step.batches
            ]
            self.steps.append((step.kind, rows))
            self._in_flight.append(step)
        while len(self._in_flight) > (0 if step is None else 1):
            self._read(self._in_flight.pop(0))
        self.scheduler.check_integrity()

    def run(self) -> None:
        for _ in range(500):
            if not self.scheduler.has_requests and not self._in_flight:
                return
            self.step()
        raise AssertionError("stalled")

    def _read(self, step: JointStep) -> None:
        if self.scheduler.share.num_background:
            self.scheduler.share.note(step, 0.01, self.scheduler.buckets)
        read = [sampled_rows([[7] * num_read(row) for row in batch.rows if row.samples]) for _, batch in step.parts]
        for output in by_request(self.scheduler.process(step, read)):
            self.tokens[output.request_id] += output.token_ids
            if output.finish is not None:
                self.finished[output.request_id] = len(self.tokens[output.request_id])


def test_decode_steps_of_several_tokens_beside_a_group_that_prefills() -> None:
    driver = Driver(num_decode_steps=4)
    assert driver.add("a", max_tokens=12) == 0
    driver.step()
    driver.step()
    assert driver.steps[-1] == ("decode", [[("a", 4)], []])
    assert driver.add("b", max_tokens=5) == 1
    driver.step()
    assert driver.steps[-1] == ("prefill", [[("a", 1)], [("b", 8)]])
    driver.run()
    assert driver.finished == {"a": 12, "b": 5}


def num_read(row: ScheduledRow) -> int:
    """Tokens of a row if all of its drafts are right."""
    return min(row.num_sampled, max(1, row.request.max_tokens - row.request.num_output_tokens))


def test_drafts_beside_a_group_that_prefills() -> None:
    """There a row has its newest token alone, and what was planned beyond is taken back."""
    driver = Driver(num_drafts=3)
    assert driver.add("a", max_tokens=40) == 0
    driver.step()
    driver.step()
    assert driver.steps[-1] == ("verify", [[("a", 4)], []])
    assert driver.add("b", max_tokens=9) == 1
    driver.step()
    assert driver.steps[-1] == ("prefill", [[("a", 1)], [("b", 8)]])
    driver.run()
    assert driver.finished == {"a": 40, "b": 9}
    assert ("verify", [[("a", 4)], [("b", 4)]]) in driver.steps


def test_a_group_of_too_many_requests_for_drafts_decodes_with_the_others() -> None:
    driver = Driver(num_drafts=3, max_running=8, max_step_tokens=8, num_pages=100)
    for number in range(5):
        driver.add(f"r{number}", 4, 20, salt=number, dp_rank=0)
    driver.add("other", 4, 20, salt=9, dp_rank=1)
    driver.run()
    assert set(driver.finished.values()) == {20}
    together = [(kind, {count for _, count in rows[1]}) for kind, rows in driver.steps if len(rows[0]) == 5 and rows[1]]
    assert ("decode", {1}) in together


def test_decode_rows_for_which_a_prefill_step_has_no_room_wait() -> None:
    driver = Driver(max_running=8, max_step_tokens=4, num_decode_steps=3, num_pages=100)
    for number in range(16):
        driver.add(f"r{number}", 4, 10, salt=number)
    driver.add("late", 12, 10, salt=99)
    driver.run()
    assert set(driver.finished.values()) == {10}
    joined = [rows for kind, rows in driver.steps if kind == "prefill" and all(rows)]
    assert any({count for _, count in group} == {1} for rows in joined for group in rows), "none decoded beside one"
    assert all(len(group) <= 4 for rows in joined for group in rows)


def test_prefill_and_decode_take_turns_together() -> None:
    driver = Driver()
    for number in range(4):
        driver.add(f"r{number}", 8, 6, salt=number)
    driver.run()
    assert all(len(rows[0]) == len(rows[1]) for _, rows in driver.steps)
    assert [kind for kind, _ in driver.steps].count("prefill") == 1


def test_whoever_waits_for_a_full_group_moves_to_an_idle_one() -> None:
    driver = Driver(max_running=1)
    driver.add("long", max_tokens=30)
    driver.add("short", max_tokens=2, salt=1)
    assert driver.add("next", max_tokens=2, salt=2) == 0, "behind the long one"
    while "next" not in driver.finished:
        driver.step()
    assert "long" not in driver.finished
    driver.run()
    assert driver.finished == {"long": 30, "short": 2, "next": 2}


def test_whoever_may_not_move_holds_up_nobody_behind() -> None:
    driver = Driver(max_running=1)
    driver.add("long", max_tokens=30)
    assert driver.add("chosen", max_tokens=2, salt=1, dp_rank=0) == 0
    assert driver.add("short", max_tokens=2, salt=2) == 1
    assert driver.add("next", max_tokens=2, salt=3) == 0, "behind the chosen one"
    while "next" not in driver.finished:
        driver.step()
    assert not {"long", "chosen"} & driver.finished.keys()
    driver.run()
    assert driver.finished == {"long": 30, "chosen": 2, "short": 2, "next": 2}


def test_a_request_that_has_moved_still_ends_in_time_and_only_once() -> None:
    driver = Driver(max_running=1)
    driver.add("long", max_tokens=30)
    driver.add("short", max_tokens=2, salt=1)
    params = SamplingParams(max_tokens=20, temperature=0.0, seed=0, ignore_eos=True)
    message = GenerationRequest("moved", [1, 2, 3], params, (), 0.0, RequestOptions(timeout=1e12))
    request = Request.of(message)
    driver.scheduler.add(request)
    driver.tokens["moved"] = []
    while not request.slot:
        driver.step()
    assert driver.scheduler.find("moved") is request
    assert driver.scheduler.rank_of("moved") == 1
    request.given = dataclasses.replace(request.given, received=-1e12)
    for scheduler in driver.scheduler.schedulers:
        assert scheduler._deadlines is not None
        scheduler._deadlines._heap = [(0.0, name, late) for _, name, late in scheduler._deadlines._heap]
    (output,) = driver.scheduler.expire()
    assert output.request_id == "moved"
    driver.run()
    assert driver.finished == {"long": 30, "short": 2}


def test_abort_finds_the_group() -> None:
    driver = Driver()
    driver.add("a", max_tokens=20)
    driver.add("b", max_tokens=20, salt=1)
    driver.step()
    assert driver.scheduler.abort("b")
    assert not driver.scheduler.abort("b")
    driver.run()
    assert driver.finished == {"a": 20}


def test_background_requests_of_one_group_give_way_to_those_of_another() -> None:
    driver = Driver()
    for number in range(8):
        driver.add(f"b{number}", 8, 40, background=True, salt=number)
    driver.step()
    driver.step()
    driver.add("a", 8, 10, salt=50)
    driver.step()
    assert driver.steps[-1][1] == [[("a", 8)], []]
    driver.run()
    assert set(driver.finished) == {"a", *(f"b{number}" for number in range(8))}


def test_prefix_goes_where_the_prompt_is_cached() -> None:
    driver = Driver("prefix")
    groups = [driver.add(str(number), 16, 2, salt=number % 2) for number in range(4)]
    assert groups == [0, 1, 0, 1], "the same prompts, before any of them is cached"
    driver.run()
    assert [driver.add(f"again {number}", 16, 2, salt=number) for number in (1, 0)] == [1, 0]
    driver.run()
    stats = EngineStats(driver.scheduler.stats()).total
    assert stats.num_hit_tokens > 0
    assert stats.num_prompt_tokens == 6 * 16


def test_the_shortest_queue_counts_what_has_just_come() -> None:
    driver = Driver("shortest_queue")
    assert [
        driver.add("a", 20),
        driver.add("b", 4, salt=1),
        driver.add("c", 8, salt=2),
        driver.add("d", 9, salt=3),
    ] == [*(0, 1, 1, 1)]


def test_each_group_tells_what_it_is_at() -> None:
    driver = Driver(max_running=1)
    driver.add("first", 8, 30)
    driver.add("second", 12, 30)
    driver.add("third", 8, 30)
    driver.step()
    driver.step()
    one, other = driver.scheduler.stats()
    assert [one.num_running, one.num_waiting] == [1, 1]
    assert [other.num_running, other.num_waiting] == [1, 0]
    assert 8 <= one.num_used_tokens < other.num_used_tokens < one.num_total_tokens == other.num_total_tokens
    assert [one.num_prompt_tokens, other.num_prompt_tokens] == [8, 12]
    assert [one.num_waiting_tokens, other.num_waiting_tokens] == [8, 0]
    driver.run()
    assert [rank.num_used_tokens for rank in driver.scheduler.stats()] == [0, 0]


def test_the_log_knows_the_throughput_of_each_group() -> None:
    driver = Driver()
    log = StepLogger(driver.scheduler, 1)
    for rank, rate in zip(log._ranks, (2.5, 1.5), strict=True):
        rank.last_gen_throughput = rate
    stats = log.add_to(EngineStats(driver.scheduler.stats()))
    assert stats.total.last_gen_throughput == 4.0
    assert [rank.last_gen_throughput for rank in stats.ranks] == [2.5, 1.5]


def test_background_requests_fill_the_rows_of_a_group_that_others_leave_empty() -> None:
    driver = Driver(num_pages=400)
    for number in range(2):
        assert driver.add(f"a{number}", 8, 200, salt=2 * number) == 0
        assert driver.add(f"b{number}", 8, 200, background=True, salt=2 * number + 1) == 1
    for _ in range(100):
        driver.step()
    assert min(len(driver.tokens[name]) for name in ("b0", "b1")) > 80


def test_a_request_stays_in_the_group_that_its_caller_chose() -> None:
    driver = Driver("shortest_queue")
    chosen = [driver.add(str(number), 8, 20, salt=number, dp_rank=1) for number in range(7)]
    assert chosen == [1] * 7
    driver.step()
    assert not driver.scheduler.schedulers[0].has_requests, "though it is idle, and the other one is full"
    assert driver.add("free", salt=9) == 0
    driver.run()
    assert set(driver.finished) == {"free", *map(str, range(7))}
