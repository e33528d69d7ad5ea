"""LoopThread: an event loop in a thread of its own, for an object whose methods are called from any other thread."""

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from palladio.runtime.interface.errors import EngineDeadError

T = TypeVar("T")


class LoopThread:
    """The part of `Engine` that brings calls to its loop. A subclass opens and closes the loop."""

    def _open_loop(self) -> None:
        """
        Raises:
            EngineDeadError: this process was made by fork, of one that has had such a loop.
        """
        if _process_with_engines() != os.getpid():
            raise _forked("an Engine cannot be made here", _process_with_engines())
        self._process = os.getpid()
        self._closed = False
        self._executor = concurrent.futures.ThreadPoolExecutor(max_workers=4, thread_name_prefix="palladio-worker")
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._loop.run_forever, name="palladio-front", daemon=True)
        self._thread.start()

    def _close_loop(self) -> None:
        """Nothing runs in it any more."""
        self._run(self._loop.shutdown_asyncgens())
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._executor.shutdown()

    @property
    def _is_gone(self) -> bool:
        """Nothing runs in it any more, or never has: a process made by fork has the object, but not its threads."""
        return self._closed or self._process != os.getpid()

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._is_gone:
            work.close()
            if self._closed:
                raise EngineDeadError("the engine was shut down")
            raise _forked("this Engine cannot be used here", self._process)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: what it began must not go on
            future.cancel()
            raise

    def _iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while (result := self._run(_next(source))) is not None:
                yield result
        finally:
            if not self._is_gone:
                self._run(_close(source))

    async def _iterate_async(self, source: AsyncGenerator[T, None]) -> AsyncIterator[T]:
        try:
            while (result := await asyncio.wrap_future(self._submit(_next(source)))) is not None:
                yield result
        finally:
            if not self._is_gone:
                await asyncio.wrap_future(self._submit(_close(source)))


@functools.cache
def _process_with_engines() -> int:
    """The process that first had one. A fork remembers it as well."""
    return os.getpid()


def _forked(what: str, process: int) -> EngineDeadError:
    return EngineDeadError(
        f"{what}: process {os.getpid()} was made by fork, and has none of the threads that the Engine and jax started "
        f"in process {process}, so it would wait forever. Start processes with "
        'multiprocessing.get_context("spawn"), and make an Engine in each'
    )


async def _next(source: AsyncGenerator[T, None]) -> T | None:
    return await anext(source, None)


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


async def all_or_none(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits for all tasks; when one fails, or the caller is cancelled, cancels the others and waits for their end."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
