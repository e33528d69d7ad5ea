"""The last requests of an engine, kept so that a crash can be looked into, and the file that they go to."""

import asyncio
import base64
import collections
import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palladio.runtime.folders.private_folder import keep_newest, make_folder, warn_of_others
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.version import __version__

FORMAT = 1  # of the file; to be raised when older readers would misunderstand it

MAX_AGE = 300.0  # seconds that a finished request is kept
MAX_FINISHED = 1000
MAX_TOKENS = 1_000_000  # of all finished requests, prompts and outputs

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class RecordedSample:
    """One sample: its request, and what came of it.

    Attributes:
        token_ids: as the caller got them (up to and including the token that completed a stop string).
        finish: None: it had not ended.
        first_token, finished: seconds since the epoch; None: not reached.
    """

    request: GenerationRequest
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish: FinishReason | None = None
    first_token: float | None = None
    finished: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.token_ids)

    def add_tokens(self, token_ids: list[int], clock: Callable[[], float]) -> None:
        """Add output tokens.

        Args:
            clock: seconds since the epoch; called once only.
        """
        if self.first_token is None and token_ids:
            self.first_token = clock()
        self.token_ids += token_ids

    def end(self, finish: FinishReason, now: float) -> None:
        """Note the end of the sample.

        Args:
            now: seconds since the epoch.
        """
        self.finish, self.finished = finish, now


@dataclasses.dataclass(frozen=True, slots=True)
class CrashDump:
    """What a dump's file holds.

    Attributes:
        format: FORMAT.
        versions: of Palladio, Python, jax and jaxlib.
        written: seconds since the epoch.
        failure: why the engine ended.
        flags: EngineConfig.flags(), with the model's local directory.
        ready: the limits of the engine that failed.
        requests: in the order in which they came.
    """

    format: int
    versions: dict[str, str]
    written: float
    failure: str
    flags: dict[str, Any]
    ready: EngineReady
    requests: list[RecordedSample]


class CrashRecorder:
    """Remembers the samples that run, and the last ones that ended. Takes references: nothing is copied per token.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._running: dict[str, RecordedSample] = {}
        self._finished: collections.deque[RecordedSample] = collections.deque()
        self._num_finished_tokens = 0

    def begin(self, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            self._running[request.request_id] = RecordedSample(request)

    def add_tokens(self, engine_id: str, token_ids: list[int]) -> None:
        self._running[engine_id].add_tokens(token_ids, self._clock)

    def end(self, engine_id: str, finish: FinishReason) -> None:
        """The sample ended; ids that have ended already are ignored."""
        sample = self._running.pop(engine_id, None)
        if sample is None:
            return
        sample.end(finish, self._clock())
        self._finished.append(sample)
        self._num_finished_tokens += sample.num_tokens
        self._forget()

    def samples(self) -> list[RecordedSample]:
        """Copies of all that is remembered, by arrival."""
        self._forget()
        samples = [*self._finished, *self._running.values()]
        samples.sort(key=lambda sample: sample.request.received)
        return [dataclasses.replace(sample, token_ids=list(sample.token_ids)) for sample in samples]

    def _forget(self) -> None:
        finished = self._finished
        oldest = self._clock() - MAX_AGE
        while finished and (
            len(finished) > MAX_FINISHED
            or self._num_finished_tokens > MAX_TOKENS
            or (finished[0].finished or 0.0) < oldest
        ):
            self._num_finished_tokens -= finished.popleft().num_tokens


class CrashDumper:
    """Writes what its recorder remembers, in a thread.

    Attributes:
        recorder: records the samples.
    """

    def __init__(self) -> None:
        self.recorder = CrashRecorder()
        self._tasks: set[asyncio.Task[None]] = set()

    def dump(self, failure: str, config: EngineConfig, ready: EngineReady) -> None:
        """Begins to write a dump.

        Args:
            config: `survival.crash_dump_folder` is set, and there is such a folder.
        """
        folder = Path(config.survival.crash_dump_folder or "")
        write = asyncio.to_thread(write_dump, folder, failure, config.flags(), ready, self.recorder.samples())
        task = asyncio.create_task(write)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Returns when all that was begun is written."""
        await asyncio.gather(*self._tasks)


def prepare_folder(folder: str) -> Path:
    """The folder for dumps, made if there is none.

    Raises:
        ConfigError: nothing can be written there.
    """
    path = Path(folder).expanduser()
    try:
        make_folder(path)
        warn_of_others(path, "--crash-dump-folder")
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write to --crash-dump-folder {folder}: {error.strerror}; use another folder, or omit the flag"
        ) from error
    return path


def write_dump(
    folder: Path, failure: str, flags: Mapping[str, Any], ready: EngineReady, samples: Sequence[RecordedSample]
) -> None:
    """Writes a dump, for its owner alone to read. A disk that does not take it costs a warning and nothing else."""
    now = time.time()
    content = {
        "format": FORMAT,
        "versions": _versions(),
        "written": now,
        "failure": failure,
        "flags": dict(flags),
        "ready": dataclasses.asdict(ready),
        "requests": [_as_dict(sample) for sample in samples],
    }
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    path = folder / f"crash-{stamp}-{int(now % 1 * 1000):03}-{os.getpid()}.json"
    try:
        _write_atomically(path, json.dumps(content))
    except OSError as error:
        logger.warning("Cannot write the crash dump to %s: %s", folder, error)
    else:
        logger.error("Wrote the last %d requests to %s; run them again with `palladio replay`", len(samples), path)
        keep_newest(folder, "crash-*.json")


def _as_dict(sample: RecordedSample) -> dict[str, Any]:
    """The fields of a sample by name. dataclasses.asdict would walk over every token."""
    request = dataclasses.asdict(dataclasses.replace(sample.request, prompt_ids=[], media=()))
    request["pooling"]["token_types"] = base64.b64encode(sample.request.pooling.token_types).decode()
    media = [dataclasses.asdict(part) | {"content": ""} for part in sample.request.media]
    return {
        "request": request | {"prompt_ids": sample.request.prompt_ids, "media": media},
        "token_ids": sample.token_ids,
        "finish": None if sample.finish is None else dataclasses.asdict(sample.finish),
        "first_token": sample.first_token,
        "finished": sample.finished,
    }


def _versions() -> dict[str, str]:
    versions = {"palladio": __version__, "python": platform.python_version()}
    for package in ("jax", "jaxlib"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _write_atomically(path: Path, text: str) -> None:
    """
    Raises:
        OSError: it could not be written; nothing is left behind.
    """
    descriptor, name = tempfile.mkstemp(prefix=".crash-", dir=path.parent)  # for its owner alone
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.rename(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
