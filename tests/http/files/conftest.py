"""A server on a storage that the test knows."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from tests.fake_engine import FakeEngine
from tests.http.conftest import OpenStorage, running_server


@pytest.fixture
def storage(tmp_path: Path, open_storage: OpenStorage) -> Storage:
    """Closed by the server that has it."""
    return open_storage(tmp_path / "storage")


@pytest.fixture
def start(engine: FakeEngine) -> Iterator[Callable[..., httpx.Client]]:
    """Starts a server on a storage, and gives a client of it; the other arguments are HttpConfig's."""
    with contextlib.ExitStack() as stack:

        def run(storage: Storage, **config: Any) -> httpx.Client:
            url = stack.enter_context(running_server(engine, HttpConfig(**config), storage=storage))
            return stack.enter_context(httpx.Client(base_url=url, timeout=20))

        yield run
