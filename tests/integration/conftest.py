"""One real server for all tests of this folder that a pytest process runs: a tiny checkpoint, small limits, CPU."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.integration.serving import LIMITS, MODEL, Server, build_checkpoint

Launch = Callable[..., Server]


@pytest.fixture(scope="session")
def cache_dir(request: pytest.FixtureRequest) -> Path:
    """Compiled programs, kept from one run of the tests to the next (`pytest --cache-clear` empties it)."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("palladio"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def shared_server(
    checkpoint: Path, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    server = Server(checkpoint, log, cache_dir, (*LIMITS, "--served-model-name", MODEL, "second-name"))
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The server, which every test has to leave as it found it."""
    yield shared_server
    shared_server.check_clean()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


@pytest.fixture
def launch(checkpoint: Path, cache_dir: Path, tmp_path: Path) -> Iterator[Launch]:
    """Starts a server for one test alone."""
    servers: list[Server] = []

    def start(*flags: str) -> Server:
        servers.append(Server(checkpoint, tmp_path / f"{len(servers)}.log", cache_dir, (*LIMITS, *flags)))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
