"""A server as `serve` sets it up, connection limits and TLS included, in a thread."""

import contextlib
import threading
import time
from collections.abc import Iterator

import uvicorn

from palladio.http.app import create_app
from palladio.http.security.tls import make_tls_context
from palladio.http.server import make_settings
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.storage import Storage
from palladio.runtime.front.requests.engine_protocol import EngineClient


@contextlib.contextmanager
def limited_server(engine: EngineClient, **flags: object) -> Iterator[tuple[str, int]]:
    """Run a server, and yield its address.

    Args:
        flags: HttpConfig's.
    """
    config = HttpConfig(port=0, **flags)
    storage = Storage.temporary()
    app = create_app(engine, config, storage=storage)
    settings = make_settings(app, config, "text", make_tls_context(config))
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        storage.close()
