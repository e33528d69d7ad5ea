"""FairThreads: whose turn it is, what becomes of failures, and the end."""

import threading

import pytest

from palladio.runtime.grammar.fair_threads import FairThreads


def test_owners_take_turns() -> None:
    threads, release, done = FairThreads(1, "test"), threading.Event(), []
    blocker = threads.submit("a", lambda: release.wait(30))
    while not blocker.running():
        pass
    jobs = [threads.submit("a", lambda number=number: done.append(f"a{number}")) for number in range(100)]
    jobs += [threads.submit("b", lambda number=number: done.append(f"b{number}")) for number in range(2)]
    jobs.append(threads.submit("c", lambda: done.append("c")))
    release.set()
    for job in [blocker, *jobs]:
        job.result(30)
    assert done[:6] == ["a0", "b0", "c", "a1", "b1", "a2"]
    threads.close()


def test_as_many_run_at_once_as_there_are_threads() -> None:
    threads, barrier = FairThreads(3, "test"), threading.Barrier(3)
    jobs = [threads.submit("", lambda: barrier.wait(30)) for _ in range(3)]
    assert sorted(job.result(30) for job in jobs) == [0, 1, 2]
    threads.close()


def test_a_failure_is_its_own() -> None:
    threads = FairThreads(1, "test")
    with pytest.raises(ZeroDivisionError):
        threads.submit("", lambda: 1 // 0).result(30)
    assert threads.submit("", lambda: 5).result(30) == 5
    threads.close()


def test_the_end() -> None:
    threads, release = FairThreads(1, "test"), threading.Event()
    running = threads.submit("", lambda: release.wait(30))
    while not running.running():
        pass
    waiting = threads.submit("", lambda: 5)
    threads.close()
    release.set()
    assert running.result(30)
    assert waiting.cancelled()
    assert threads.submit("", lambda: 5).cancelled()
