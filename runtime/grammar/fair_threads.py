"""FairThreads: threads that serve owners in rotation, so that one owner's many jobs do not delay the others."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

_Job = tuple[Callable[[], Any], "concurrent.futures.Future[Any]"]  # work, and where its result goes


class FairThreads:
    """
    Args:
        num_threads: that run at most; each is started when a job first needs it.
        name: of the threads.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self._changed = threading.Condition()
        self._jobs: collections.OrderedDict[str, collections.deque[_Job]] = collections.OrderedDict()
        self._num_started = 0
        self._num_idle = 0
        self._is_closed = False

    def submit(self, owner: str, work: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        """Run `work` when a thread is free, in rotation over the owners; after `close`, never."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._changed:
            if self._is_closed:
                future.cancel()
                return future
            self._jobs.setdefault(owner, collections.deque()).append((work, future))
            if self._num_idle < sum(map(len, self._jobs.values())) and self._num_started < self._num_threads:
                self._num_started += 1
                threading.Thread(target=self._run, name=f"{self._name}_{self._num_started}", daemon=True).start()
            self._changed.notify()
        return future

    def close(self) -> None:
        """Begins nothing more."""
        with self._changed:
            self._is_closed = True
            for jobs in self._jobs.values():
                for _, future in jobs:
                    future.cancel()
            self._jobs.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            _run_job(job)
            del job  # the thread keeps nothing of it while it waits

    def _next(self) -> _Job | None:
        """Waits for a job; the owner whose job it is goes to the end of the row."""
        with self._changed:
            self._num_idle += 1
            while not self._jobs and not self._is_closed:
                self._changed.wait()
            self._num_idle -= 1
            if self._is_closed:
                return None
            owner, jobs = self._jobs.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._jobs[owner] = jobs
            return job


def _run_job(job: _Job) -> None:
    """Does the work, unless it is cancelled; what it raises is its future's."""
    work, future = job
    if future.set_running_or_notify_cancel():
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (its future carries it on)
            future.set_exception(error)
        else:
            future.set_result(result)
