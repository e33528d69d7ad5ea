"""Real servers for all tests of this folder that a pytest process runs, each started when it is first asked for.

tests/work_order.py lets one worker run all files that share one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests import compile_cache
from tests.integration.serving import (
    EMBEDDED_LIMITS,
    LIMITS,
    MODEL,
    OTHER_NAME,
    Server,
    build_checkpoint,
    launch_command,
)

Launch = Callable[[str], Server]


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The folder of compiled programs of all tests."""
    return compile_cache.folder()


@pytest.fixture(scope="session")
def environment(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set the environment that servers inherit."""
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


@pytest.fixture(scope="session")
def embedded_model_server(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`palladio serve` without a model."""
    server = Server(
        f"python3 -m palladio serve --host 127.0.0.1 {EMBEDDED_LIMITS}", tmp_path_factory.mktemp("embedded") / "log"
    )
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
