"""A fake engine, and a real uvicorn in a thread in front of it."""

import asyncio
import contextlib
import inspect
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn

from palladio.http.app import create_app
from palladio.http.observability.observer import Observer
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.postgres_server import PostgresServer, missing
from tests.tiny_tokenizer import build_tiny_tokenizer

Serve = Callable[..., str]
OpenStorage = Callable[[Path], Storage]

# httpx waits 5 s for an answer unless told otherwise: too short while other workers have both cores.
patience: httpx.Timeout = inspect.signature(httpx.get).parameters["timeout"].default
patience.connect = patience.read = patience.write = patience.pool = 60.0


class QuickServer(uvicorn.Server):
    """Looks every few milliseconds whether it should exit; uvicorn's own looks ten times a second."""

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Without the tenth of a second that uvicorn's waits for connections: a thousand tests end a server each."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()


@contextlib.contextmanager
def running_server(
    engine: EngineClient,
    config: HttpConfig,
    observability: ObservabilityConfig = ObservabilityConfig(),
    observer: Observer | None = None,
    storage: Storage | None = None,
) -> Iterator[str]:
    """Run a server, and yield its address.

    Args:
        storage: its storage; default: a temporary one; closed at the end, in any case.
    """
    storage = storage or Storage.temporary()
    app = create_app(engine, config, observability, observer, storage)
    # log_config=None: configuring logging closes handlers that exist, and absl's would close pytest's captured stderr.
    server = QuickServer(uvicorn.Config(app, port=0, log_config=None, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        app.state.template_readers.close()
        storage.close()


# Building an app and starting it takes 60 ms of CPU time, and most tests look at one answer. Tests of these folders
# share the newest servers of their worker, one a configuration; each finds the engine as new. What a server remembers
# (files, metrics, callers) is tested in the other folders, and by tests that take `own_server`.
SHARING = frozenset(("anthropic", "chat", "generation", "ollama", "prompts", "responses", "routes", "wire"))
REPLY = "Hello, wörld 🎉!"


class SharedServers:
    """Servers on one engine, by configuration."""

    def __init__(self, tokenizer: Tokenizer, most: int = 4) -> None:
        self.engine = FakeEngine(tokenizer, reply=REPLY)
        self._most = most
        self._servers: list[tuple[HttpConfig, str, contextlib.ExitStack]] = []

    def url(self, config: HttpConfig) -> str:
        for number, (other, url, _) in enumerate(self._servers):
            if other == config:
                self._servers.append(self._servers.pop(number))  # those that were asked for last stay
                return url
        if len(self._servers) == self._most:
            self._servers.pop(0)[2].close()
        stack = contextlib.ExitStack()
        url = stack.enter_context(running_server(self.engine, config))
        self._servers.append((config, url, stack))
        return url

    def end_test(self) -> None:
        """Servers that still answer a request of this test would do so in the next one."""
        if self.engine.num_running:
            time.sleep(0.05)
        if self.engine.num_running:
            self.close()

    def close(self) -> None:
        while self._servers:
            self._servers.pop()[2].close()


@pytest.fixture(scope="session")
def shared_servers(tokenizer: Tokenizer) -> Iterator[SharedServers]:
    with contextlib.closing(SharedServers(tokenizer)) as servers:
        yield servers


@pytest.fixture
def own_server() -> None:
    """For tests that see what a server remembers of earlier requests: they get a new one."""


def shares(request: pytest.FixtureRequest) -> bool:
    return request.path.parent.name in SHARING and "own_server" not in request.fixturenames


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """It is left running: who stops it starts it again."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    server = PostgresServer.create()
    server.start()
    yield server
    server.remove()


_SCHEMAS = itertools.count(1)


@pytest.fixture
def database_url(postgres: PostgresServer) -> SecretUrl:
    """The URL of an empty database."""
    return SecretUrl(postgres.schema_url(f"test_{next(_SCHEMAS)}"))


# What differs between the two has quick tests of its own; `make postgres` runs the rest on both.
DATABASES = ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])]


@pytest.fixture(params=DATABASES)
def open_storage(request: pytest.FixtureRequest) -> OpenStorage:
    """Opens a storage in a folder: with its own database, or with a shared one, which is the same each time."""
    if request.param == "sqlite":
        return Storage
    shared = SharedDatabase(request.getfixturevalue("database_url"), num_connections=2)
    return lambda folder: Storage(folder, shared=shared)


@pytest.fixture
def engine(request: pytest.FixtureRequest, tokenizer: Tokenizer, shared_servers: SharedServers) -> Iterator[FakeEngine]:
    if not shares(request):
        yield FakeEngine(tokenizer, reply=REPLY)
        return
    shared_servers.engine.reset(tokenizer, REPLY)
    yield shared_servers.engine
    shared_servers.end_test()


@pytest.fixture
def serve(request: pytest.FixtureRequest, engine: FakeEngine, shared_servers: SharedServers) -> Iterator[Serve]:
    """Starts a server on the engine; the arguments are HttpConfig's."""
    if shares(request):
        yield lambda **config: shared_servers.url(HttpConfig(**config))
        return
    with contextlib.ExitStack() as stack:
        yield lambda **config: stack.enter_context(running_server(engine, HttpConfig(**config)))


@pytest.fixture
def observe(engine: FakeEngine) -> Iterator[Callable[..., httpx.Client]]:
    """Starts a server on the engine, and gives a client of it; the arguments are ObservabilityConfig's."""
    with contextlib.ExitStack() as stack:

        def start(observer: Observer | None = None, **config: object) -> httpx.Client:
            told = ObservabilityConfig(**config)
            url = stack.enter_context(running_server(engine, HttpConfig(), told, observer))
            return stack.enter_context(httpx.Client(base_url=url, timeout=20))

        yield start


@pytest.fixture
def http(serve: Serve) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serve(), timeout=20) as client:
        yield client


@pytest.fixture
def client(serve: Serve) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=serve() + "/v1", api_key="None", max_retries=0, timeout=20) as client:
        yield client


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)
