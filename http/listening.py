"""Where a server listens, and the signals that end it."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError

FIRED_UP = "The server is fired up and ready to roll!"
FLUSH_TIMEOUT = 5  # seconds for the last bytes to reach slow clients after the engine has stopped

logger = logging.getLogger(__name__)


def listen(config: HttpConfig) -> socket.socket:
    """The listening socket. Raises ConfigError: the address is taken, or is none of this machine."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on --host {config.host} --port {config.port}: {error.strerror}; "
            "choose another --port (0: any free port)"
        ) from error


def log_address(listener: socket.socket, config: HttpConfig) -> None:
    """Says where the server listens, with the port that --port 0 left to the system."""
    host = f"[{config.host}]" if listener.family == socket.AF_INET6 else config.host
    uvicorn_logger = logging.getLogger("uvicorn.error")
    scheme = "http" if config.ssl_certfile is None else "https"
    port = listener.getsockname()[1]
    uvicorn_logger.info("Uvicorn running on %s://%s:%d (Press CTRL+C to quit)", scheme, host, port)
    if config.ui:
        shown = "localhost" if config.host in ("0.0.0.0", "::") else host
        uvicorn_logger.info("Chat page: %s://%s:%d%s/", scheme, shown, port, config.root_path.rstrip("/"))


class Stop:
    """Counts SIGINT and SIGTERM: the first ends the server in an orderly way, the second at once."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.count = 0

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            loop.add_signal_handler(number, self._hit)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                if handler is not None:
                    signal.signal(number, handler)

    async def wait(self, count: int) -> None:
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()

    def _hit(self) -> None:
        self.count += 1
        logger.info("Gracefully exiting..." if self.count == 1 else "Exiting now.")
        self._changed.set()
