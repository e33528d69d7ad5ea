"""One real server for all tests of this folder that a pytest process runs: a tiny checkpoint, small limits, CPU."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.integration.serving import LIMITS, MODEL, OTHER_NAME, Server, build_checkpoint, launch_command

Launch = Callable[[str], Server]


@pytest.fixture(scope="session")
def cache_dir(request: pytest.FixtureRequest) -> Path:
    """Compiled programs, kept from one run of the tests to the next (`pytest --cache-clear` drops them)."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("palladio"))


@pytest.fixture(scope="session")
def environment(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the servers inherit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALLADIO_CACHE_DIR", str(cache_dir))
        patch.setenv("PALLADIO_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def shared_server(checkpoint: Path, environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = f"{LIMITS} --served-model-name {MODEL} {OTHER_NAME}"
    server = Server(launch_command(checkpoint, flags), tmp_path_factory.mktemp("server") / "log")
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
def launch(checkpoint: Path, environment: None, tmp_path: Path) -> Iterator[Launch]:
    """Starts a server for one test alone, with more flags."""
    servers: list[Server] = []

    def start(flags: str) -> Server:
        command = launch_command(checkpoint, f"{LIMITS} {flags}")
        servers.append(Server(command, tmp_path / f"server{len(servers)}.log"))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
