"""The batch parts of a server, without HTTP, for tests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from palladio.http.batches.batch import Batch
from palladio.http.batches.batch_store import BatchStore
from palladio.http.batches.batch_worker import BatchWorker
from palladio.http.files.file_store import INPUT_PREFIX, FileStore
from palladio.http.generation.context import Context
from palladio.http.observability.observer import Observer
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import TextEncoder
from palladio.http.security.callers import SERVER, Callers
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.records.object_lists import new_id
from palladio.http.storage.storage import Storage
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import ENDED
from tests.http.storage.blobs.pieces import one_piece


class Server:
    """The batch parts of a server, on a storage."""

    def __init__(
        self,
        folder: Path,
        engine: FakeEngine,
        config: HttpConfig | None = None,
        open_storage: Callable[[Path], Storage] = Storage,
    ) -> None:
        config, told = config or HttpConfig(), ObservabilityConfig()
        self.engine = engine
        self.storage = open_storage(folder)
        encoder = TextEncoder(engine, bounded=True)
        parts = (engine, config, ChatTemplate(config), encoder, told, Observer(told), self.storage)
        context = Context(*parts, Callers.of(config))
        self.files = FileStore(self.storage.database, self.storage.blobs)
        self.store = BatchStore(self.storage.database)
        self.worker = BatchWorker(context, self.files, self.store)

    async def submit(self, content: bytes, endpoint: str = "/v1/chat/completions") -> str:
        new = await self.files.put(INPUT_PREFIX, one_piece(content))
        told = {"purpose": "batch", "filename": "in.jsonl", "expires_after": None, "owner": ""}
        await self.files.add(self.files.describe(new, **told))
        batch = Batch(
            id=new_id("batch_"),
            endpoint=endpoint,
            input_file_id=new.id,
            completion_window="24h",
            status="validating",
            created_at=1,
            expires_at=2**40,
        )
        await self.store.create(batch, SERVER)
        self.worker.run(batch.id)
        return batch.id

    async def wait_for(self, batch_id: str, condition: Callable[[Batch], bool], seconds: float = 30.0) -> Batch:
        async with asyncio.timeout(seconds):
            while not condition(batch := await self.store.get(batch_id, SERVER)):
                await asyncio.sleep(0.01)
        return batch

    async def ended(self, batch_id: str) -> Batch:
        return await self.wait_for(batch_id, lambda batch: batch.status in ENDED)

    def results(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        return [json.loads(line) for line in (self.storage.files / file_id).read_text().splitlines()]


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    engine: FakeEngine,
    config: HttpConfig | None = None,
    open_storage: Callable[[Path], Storage] = Storage,
) -> AsyncIterator[Server]:
    server = Server(folder, engine, config, open_storage)
    try:
        await server.worker.start()
        yield server
    finally:
        await server.worker.stop()
        server.storage.close()
