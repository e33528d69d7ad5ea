"""Runs a file of requests as a batch, without HTTP: reads it from the disk and writes the results to files."""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import orjson

from palladio.http.batches.batch import LIVE, Batch
from palladio.http.batches.batch_store import BatchStore
from palladio.http.batches.endpoints import find_endpoint
from palladio.http.batches.routes_batches import BatchRequest, new_batch
from palladio.http.files.file_store import INPUT_PREFIX, FileStore
from palladio.http.security.callers import SERVER
from palladio.runtime.folders.private_folder import sync_folder
from palladio.runtime.interface.errors import ConfigError

WINDOW = "30d"  # the longest window that batches have

_COPY = 1 << 20  # bytes at a time
_DIGEST, _MODEL = "sha256", "model_path"  # of the batch's metadata


@dataclasses.dataclass(frozen=True, slots=True)
class Requests:
    """What a file asks for.

    Attributes:
        url: of its first line. num_lines: that are not empty. digest: of all of it.
    """

    path: Path
    url: str
    num_lines: int
    digest: str

    @classmethod
    def read(cls, path: Path) -> "Requests":
        """
        Raises:
            ConfigError: it cannot be read, or its first line is no request.
        """
        digest, first, count = hashlib.sha256(), b"", 0
        try:
            with path.open("rb") as file:
                for line in file:
                    digest.update(line)
                    count += bool(line.strip())
                    first = first or line.strip()
        except OSError as error:
            raise ConfigError(f"FILE {path}: {error.strerror}") from error
        try:
            url = json.loads(first)["url"]
        except (ValueError, KeyError, TypeError):
            url = None
        if not isinstance(url, str) or find_endpoint(url) is None:
            raise ConfigError(
                f"FILE {path}: its first line is no request of a batch: "
                '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {…}}'
            )
        return cls(path, url, count, digest.hexdigest())


class OfflineFile:
    """
    Args:
        model: that answers; a batch that another one has begun is not gone on with.
    """

    def __init__(self, files: FileStore, store: BatchStore, requests: Requests, model: str) -> None:
        self._files = files
        self._store = store
        self._requests = requests
        self._model = model

    async def find_or_create(self) -> Batch:
        """The batch of this file: the one that an earlier call has begun, or a new one.

        Raises:
            ConfigError: what was begun is of another file or model.
            OSError: such as a full disk.
        """
        begun = await self._store.page(SERVER, after=None, limit=1)
        if begun:
            self._check(begun[0])
            return begun[0]
        requests = self._requests
        contents = await self._files.put(INPUT_PREFIX, _pieces(requests.path))
        file = self._files.describe(
            contents, purpose="batch", filename=requests.path.name, expires_after=None, owner=SERVER.owner
        )
        await self._files.add(file)
        metadata = {_DIGEST: requests.digest, _MODEL: self._model[:512]}
        endpoint = find_endpoint(requests.url)
        assert endpoint is not None, "Requests.read has looked"
        asked = BatchRequest(
            input_file_id=contents.id, endpoint=endpoint.path, completion_window=WINDOW, metadata=metadata
        )
        batch = new_batch(asked, SERVER, self._store.now())
        await self._store.create(batch, SERVER)
        return batch

    async def get(self, batch_id: str) -> Batch:
        return await self._store.get(batch_id, SERVER)

    async def write_results(self, batch: Batch, output: Path, errors: Path) -> None:
        """Puts the result files of a batch that has ended in their places, whole or not at all. Without failed lines
        there is no error file.

        Raises:
            OSError: such as a full disk.
        """
        assert batch.status not in LIVE
        for file_id, path in ((batch.output_file_id, output), (batch.error_file_id, errors)):
            if file_id is not None or path == output:
                await self._copy_out(file_id, path)

    def _check(self, batch: Batch) -> None:
        metadata = orjson.loads(batch.metadata or "{}")
        if metadata.get(_DIGEST) != self._requests.digest:
            raise ConfigError(
                f"FILE {self._requests.path} is not the one that this was begun with: remove the --state folder to "
                "begin again, or give the same file to go on"
            )
        if metadata.get(_MODEL) != self._model[:512]:
            raise ConfigError(
                f"this was begun with the model {metadata.get(_MODEL)}, not {self._model}: remove the --state folder "
                "to begin again"
            )

    async def _copy_out(self, file_id: str | None, path: Path) -> None:
        part = path.with_name(f"{path.name}.part")
        with await asyncio.to_thread(part.open, "wb") as target:
            if file_id is not None:
                async with contextlib.aclosing(self._files.read(file_id)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(target.write, piece)
            target.flush()
            os.fsync(target.fileno())
        part.replace(path)
        sync_folder(path.parent)


async def _pieces(path: Path) -> AsyncGenerator[bytes, None]:
    with await asyncio.to_thread(path.open, "rb") as source:
        while piece := await asyncio.to_thread(source.read, _COPY):
            yield piece
