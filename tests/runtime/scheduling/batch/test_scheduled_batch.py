"""Rows of requests that go on decoding: planned without a look at each of them, while nothing else happens to one."""

import numpy as np
import pytest

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.scheduled_batch import DecodeRows
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.running import RunningRequests
from tests.runtime.scheduling.scheduler_sim import page_groups

PAGE = 4


def decoding(running: RunningRequests, name: str, num_pages: int) -> Request:
    """A request whose prompt of three tokens is computed."""
    params = SamplingParams(max_tokens=40, seed=0)
    request = Request.of(GenerationRequest(name, [1, 2, 3], params, (), 0.0))
    running.add(request)
    request.pages = list(range(1, num_pages + 1))
    request.note_computed(3)
    return request


def plan(running: RunningRequests) -> DecodeRows:
    return DecodeRows.plan_one_each(running, running.slots, has_drafts=False)


def num_free(running: RunningRequests) -> list[int]:
    """Tokens for which each has pages."""
    return running.columns.room(running.slots).tolist()


def test_rows_that_go_on_begin_one_token_later_and_are_to_be_read_once_more():
    running = RunningRequests(2, PAGE)
    requests = [decoding(running, "a", 9), decoding(running, "b", 9)]
    for number in range(3):
        rows = plan(running)
        assert (rows.starts.tolist(), rows.ends.tolist()) == ([3 + number] * 2, [4 + number] * 2)
    assert [request.num_unread for request in requests] == [3, 3]


def test_what_a_row_samples_after_its_request_went_on_without_it_is_not_for_it():
    running = RunningRequests(1, PAGE)
    request = decoding(running, "a", 9)
    first = plan(running)
    request.void()
    second = plan(running)
    assert (first.row(0).is_void, second.row(0).is_void) == (True, False)


def test_rows_need_masks_as_long_as_a_grammar_goes_on():
    """Of a request whose tokens are looked at one by one in any case, too: there no column tells of the end."""
    running = RunningRequests(2, PAGE)
    decoding(running, "a", 9)
    request = decoding(running, "b", 9)
    request.constraint = Constraint(None, None, (2,), allowed=(5,))
    first = plan(running)
    second = plan(running)
    request.drop_constraint()
    third = plan(running)
    assert [rows.is_constrained for rows in (first, second, third)] == [True, True, False]
    assert third.starts.tolist() == [5, 5]


@pytest.mark.parametrize("num_pages", [1, 2, 3])
def test_a_request_is_looked_at_when_its_pages_are_full_however_many_steps_had_room(num_pages):
    running = RunningRequests(2, PAGE)
    decoding(running, "a", 9)
    request = decoding(running, "b", num_pages)
    for step in range(num_pages * PAGE - 3):
        assert num_free(running) == [9 * PAGE - 3 - step, num_pages * PAGE - 3 - step]
        plan(running)
    assert num_free(running)[1] == 0
    request.pages.append(10)
    request.note_pages()
    assert num_free(running)[1] == PAGE


def test_a_request_that_gives_up_pages_is_looked_at_before_the_steps_that_it_had_room_for():
    running = RunningRequests(1, PAGE)
    request = decoding(running, "a", 9)
    plan(running)
    assert num_free(running) == [9 * PAGE - 4]
    request.pages = []
    request.note_pages()
    assert num_free(running)[0] < 0


def test_tokens_that_a_request_may_have_take_room():
    running = RunningRequests(1, PAGE)
    decoding(running, "a", 2)
    DecodeRows.plan(running.columns, running.slots, np.array([4]), np.array([3]))
    assert num_free(running) == [2 * PAGE - 3 - 4]


def test_steps_of_several_tokens_use_up_the_room_of_as_many():
    running = RunningRequests(1, PAGE)
    decoding(running, "a", 2)
    DecodeRows.plan(running.columns, running.slots, np.array([5]))
    assert num_free(running) == [0]


def test_who_has_reached_its_room_goes_on_with_a_page_unless_it_prefills_or_is_complete():
    running = RunningRequests(4, PAGE)
    fits = decoding(running, "fits", 9)
    full = decoding(running, "full", 1)
    complete = decoding(running, "complete", 9)
    prefills = decoding(running, "prefills", 9)
    full.note_computed(PAGE)
    complete.note_computed(complete.max_computed)
    prefills.prefill_end = 8
    prefills.note_pages()
    columns, slots = running.columns, running.slots
    unfree = columns.room(slots) <= 0
    assert unfree.tolist() == [False, True, True, True]
    ready, growing = columns.growing(slots[unfree])
    assert (ready.tolist(), growing.tolist()) == ([True, False, False], [full.slot])
    columns.add_page(growing)
    assert columns.free_until[[fits.slot, full.slot]].tolist() == [9 * PAGE, 2 * PAGE]


def test_who_needs_a_page_soon_gets_it_with_those_that_need_one_now():
    size = 16
    running = RunningRequests(5, size)
    now, soon, later, complete, prefills = (decoding(running, name, 1) for name in "abcde")
    for request, computed in ((now, size), (soon, size - size // 4), (later, size - size // 4 - 1)):
        request.note_computed(computed)
    complete.pages = [1, 2, 3]
    complete.note_computed(complete.max_computed - 1)
    prefills.prefill_end = size
    prefills.note_computed(size - 1)
    assert running.columns.soon_full(running.slots).tolist() == [now.slot, soon.slot]


@pytest.mark.parametrize("windows", [(), ((8, 1),)])
def test_pages_that_are_missing_do_not_go_unnoticed(windows: tuple[tuple[int, int], ...]):
    running, groups = RunningRequests(3, PAGE), page_groups(PAGE, windows, keeps_all=True)
    cache = CacheManager(1 + 2 * groups.num_tables, groups)
    for name in "abc":
        request = Request.of(GenerationRequest(name, [1], SamplingParams(max_tokens=40, seed=0), (), 0.0))
        running.add(request)
        cache.admit(request, cache.find_prefix(request))
    cache.add_pages(running.columns, running.slots[:2])
    assert [len(request.pages) for request in running] == [1, 1, 0]
    with pytest.raises(AssertionError, match="too few pages"):
        cache.add_pages(running.columns, running.slots[2:])
