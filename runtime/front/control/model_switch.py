"""ModelSwitch: a front's handle on the running model. Generation, weights and device memory, as RL trainers use them.

It remembers its orders, so an engine that is started again gets the same weights, pause and memory.
"""

import asyncio
import functools
import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from palladio.runtime.front.control.control_calls import Ask, order
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.model_messages import (
    MEMORY_TAGS,
    PAUSE_MODES,
    MemoryTag,
    PauseMode,
    SetPause,
    SetReleased,
    UpdateOptions,
    UpdateWeights,
)

_LOAD_SECONDS: Final = 3600.0  # that loading weights may take
_PAUSE_SECONDS: Final = 60.0  # a step may be under way
_FILE = "model.safetensors"

logger = logging.getLogger(__name__)

Abort = Callable[[str | None], Awaitable[int]]


class ModelSwitch:
    """One call after the other. Methods run in the engine's event loop.

    Args:
        ask: the engine; raises if it is not ready.
        abort: ends a request, None: all.
        version: of the weights that the engine starts with.
        num_hosts: that run the model.

    Attributes:
        version: name of the present weights.
        path: of the present weights; None: the model's own, or sent in a request.
        paused: how generation is paused; None: it is not.
        released: the device memory that the engine does without.
    """

    def __init__(self, ask: Ask, abort: Abort, version: str, num_hosts: int = 1) -> None:
        self._ask = ask
        self._abort = abort
        self._first_version = version
        self._num_hosts = num_hosts
        self._source: Path | None = None  # the directory that the present weights come from; None: the model's own
        self._sent: Path | None = None  # a temporary directory, for weights sent in a request
        self._num_updates = 0
        self._lock = asyncio.Lock()
        self.version = version
        self.path: str | None = None
        self.paused: PauseMode | None = None
        self.released: frozenset[MemoryTag] = frozenset()

    async def pause(self, mode: str = "abort") -> None:
        """Stops generation: nothing is computed until `go_on`; new requests wait.

        Args:
            mode: "abort": all requests end; "retract": they wait, without their pages; "in_place": they keep them.

        Raises:
            InvalidRequestError: there is no such mode.
            EngineNotReadyError, EngineDeadError: no engine runs.
        """
        known = next((one for one in PAUSE_MODES if one == mode), None)
        if known is None:
            raise InvalidRequestError(f"mode must be one of {', '.join(PAUSE_MODES)}, got {mode!r}", param="mode")
        async with self._lock:
            await self._pause(known)

    async def go_on(self) -> None:
        """Ends a pause; without one it does nothing.

        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
        """
        async with self._lock:
            await self._go_on()

    async def update(self, folder: Path, options: UpdateOptions) -> int:
        """Exchanges the weights for those in a directory of safetensors. Returns how many requests had begun.

        Raises:
            InvalidRequestError: they are not of this model, or do not fit; nothing has changed.
            EngineNotReadyError, EngineDeadError: no engine runs.
        """
        async with self._lock:
            count = await self._update(folder, options)
            self.path = str(folder)
            await asyncio.to_thread(self._drop_sent)
            return count

    async def update_sent(self, content: bytes, options: UpdateOptions) -> int:
        """Exchange the weights for the bytes of a safetensors file. They are kept in a temporary directory, which an
        engine that is started again reads. Returns how many requests had begun.

        Raises:
            InvalidRequestError: as `update`; or the temporary directory cannot be written, or there are other hosts,
                which cannot read it.
            EngineNotReadyError, EngineDeadError: no engine runs.
        """
        if self._num_hosts > 1:
            raise InvalidRequestError(
                "with several hosts (--nnodes), weights cannot be sent in a request: write them to a directory that "
                "all hosts have, and use /update_weights_from_disk"
            )
        async with self._lock:
            folder = await asyncio.to_thread(_write, content)
            try:
                count = await self._update(folder, options)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, InvalidRequestError):
                    raise _without_folder(error, folder) from None
                raise
            self.path = None
            await asyncio.to_thread(self._drop_sent)
            self._sent = folder
            return count

    async def release(self, tags: Collection[str] | None = None) -> None:
        """Frees device memory; requests are refused until all of it is restored.

        Args:
            tags: "weights", "kv_cache"; None: both.

        Raises:
            InvalidRequestError: there is no such tag, or requests run.
            EngineNotReadyError, EngineDeadError: no engine runs.
        """
        async with self._lock:
            before = self.released
            self.released = before | _tags(tags)  # first: no request is to come between
            try:
                await order(self._ask, functools.partial(SetReleased, tags=sorted(self.released)), _LOAD_SECONDS)
            except BaseException:
                self.released = before
                raise

    async def resume(self, tags: Collection[str] | None = None) -> None:
        """Restores device memory: the weights from where they came, the KV cache empty.

        Raises:
            InvalidRequestError: there is no such tag, or what is to be restored does not fit, or cannot be read.
            EngineNotReadyError, EngineDeadError: no engine runs.
        """
        async with self._lock:
            left = self.released - _tags(tags)
            await order(self._ask, functools.partial(SetReleased, tags=sorted(left)), _LOAD_SECONDS)
            self.released = left

    async def restore(self, ask: Ask) -> None:
        """Brings an engine that was started again to where its predecessor was. If the last weights cannot be loaded,
        the log says so and the version is that of the start.

        Args:
            ask: the new engine.
        """
        if self._source is not None:
            reply = await ask(functools.partial(UpdateWeights, path=str(self._source)), _LOAD_SECONDS)
            if not reply.ok:
                logger.error(
                    "The engine was restarted with the weights of the start (version %s), not with those of version %s:"
                    " %s",
                    *(self._first_version, self.version, reply.message),
                )
                self.version, self.path, self._source = self._first_version, None, None
        if self.paused is not None:
            await ask(functools.partial(SetPause, mode=self.paused), _PAUSE_SECONDS)
        if self.released:
            await ask(functools.partial(SetReleased, tags=sorted(self.released)), _LOAD_SECONDS)

    def close(self) -> None:
        """Removes what was kept of weights sent in a request."""
        self._drop_sent()

    async def _pause(self, mode: PauseMode) -> None:
        await order(self._ask, functools.partial(SetPause, mode=mode), _PAUSE_SECONDS)
        self.paused = mode
        if mode == "abort":
            await self._abort(None)

    async def _update(self, folder: Path, options: UpdateOptions) -> int:
        if options.abort_all_requests:
            await self._abort(None)
        before = self.paused
        if options.keep_pause and before is None:
            await self._pause("retract")
        try:
            reply = await order(self._ask, functools.partial(UpdateWeights, path=str(folder)), _LOAD_SECONDS)
        except InvalidRequestError:
            if self.paused != before:
                await self._go_on()
            raise
        self._num_updates += 1
        self._source = folder
        self.version = options.weight_version or f"update-{self._num_updates}"
        self.released -= {"weights"}
        return reply.count

    async def _go_on(self) -> None:
        await order(self._ask, functools.partial(SetPause, mode=None), _PAUSE_SECONDS)
        self.paused = None

    def _drop_sent(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            shutil.rmtree(sent, ignore_errors=True)


def _tags(given: Collection[str] | None) -> frozenset[MemoryTag]:
    if given is None:
        return frozenset(MEMORY_TAGS)
    unknown = sorted(set(given) - set(MEMORY_TAGS))
    if unknown:
        raise InvalidRequestError(
            f"unknown tag {unknown[0]!r}; tags are {', '.join(MEMORY_TAGS)}; leave tags out for all", param="tags"
        )
    return frozenset(tag for tag in MEMORY_TAGS if tag in given)


def _without_folder(error: InvalidRequestError, folder: Path) -> InvalidRequestError:
    """The same error for weights that were sent: it does not name the folder, which the client does not know."""
    text = str(error)
    for place in (f"the weights in {folder}", f"checkpoint {folder}", str(folder / _FILE), str(folder)):
        text = text.replace(place, "the weights that were sent")
    return InvalidRequestError(text, param=error.param, code=error.code)


def _write(content: bytes) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="palladio-weights-"))  # for its owner alone
        (folder / _FILE).write_bytes(content)
    except OSError as error:
        raise InvalidRequestError(
            f"the weights cannot be written to the temporary directory ({error.strerror}): set TMPDIR"
        ) from error
    return folder
