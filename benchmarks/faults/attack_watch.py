"""What other clients see of a server while it is attacked: for attacks.py."""

import contextlib
import http.client
import json
import threading
import time
from urllib.parse import urlsplit

from benchmarks.support.server_process import RunningServer, usage_of_tree

HEALTH_EVERY = 0.05  # seconds
RSS_EVERY = 0.3
PROBE_TIMEOUT = 60.0  # seconds that one question may wait, so that a long stall is measured
STREAM_TOKENS = 400

FAILURES = (OSError, http.client.HTTPException, ValueError)


class Longest:
    """The longest of some waits, open ones included. Safe to use from several threads."""

    def __init__(self) -> None:
        self._longest = 0.0
        self._begun: float | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A wait begins; the one before it, if any, ends."""
        now = time.perf_counter()
        with self._lock:
            if self._begun is not None:
                self._longest = max(self._longest, now - self._begun)
            self._begun = now

    def end(self) -> None:
        """The wait ends, and none begins."""
        self.begin()
        with self._lock:
            self._begun = None

    def forget(self) -> None:
        """Forget earlier waits; an open wait begins now."""
        with self._lock:
            self._longest = 0.0
            self._begun = None if self._begun is None else time.perf_counter()

    @property
    def seconds(self) -> float:
        with self._lock:
            open_wait = 0.0 if self._begun is None else time.perf_counter() - self._begun
            return max(self._longest, open_wait)


class Bystanders:
    """Two streams of tokens, and a probe of /health; the clients that an attack must not disturb.

    Attributes:
        health: waits for an answer of /health.
        streams: waits between two pieces of each stream, from one stream to the next included.
        errors: what failed, with how often.

    Args:
        key: the API key to send; None: the server wants none.
    """

    def __init__(self, server: RunningServer, *, key: str | None = None, num_streams: int = 2) -> None:
        self.health = Longest()
        self.streams = [Longest() for _ in range(num_streams)]
        self.errors: dict[str, int] = {}
        self._address = urlsplit(server.url).netloc
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._over = threading.Event()
        threads = [threading.Thread(target=self._ask_health, daemon=True)]
        threads += [threading.Thread(target=self._read_streams, args=(waits,), daemon=True) for waits in self.streams]
        for thread in threads:
            thread.start()

    @property
    def longest_gap(self) -> float:
        """Seconds."""
        return max((waits.seconds for waits in self.streams), default=0.0)

    def stop(self) -> None:
        """Does not wait for what still waits."""
        self._over.set()

    def _failed(self, what: str, error: Exception | str) -> None:
        name = f"{what}: {error if isinstance(error, str) else type(error).__name__}"
        self.errors[name] = self.errors.get(name, 0) + 1

    def _ask_health(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=PROBE_TIMEOUT)
        while not self._over.wait(HEALTH_EVERY):
            self.health.begin()
            try:
                connection.request("GET", "/health")
                status = _drained(connection)
                if status != 200:
                    self._failed("/health", str(status))
            except FAILURES as error:
                self._failed("/health", error)
                connection.close()
            self.health.end()

    def _read_streams(self, waits: Longest) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": STREAM_TOKENS, "stream": True, "ignore_eos": True}
        while not self._over.is_set():
            connection = http.client.HTTPConnection(self._address, timeout=PROBE_TIMEOUT)
            try:
                waits.begin()
                connection.request("POST", "/v1/completions", json.dumps(body), self._headers)
                response = connection.getresponse()
                if response.status != 200:
                    self._failed("stream", str(response.status))
                while not self._over.is_set() and (line := response.readline()):
                    if line.strip():
                        waits.begin()
            except FAILURES as error:
                self._failed("stream", error)
                self._over.wait(0.05)
            finally:
                connection.close()
        waits.end()


class MemoryWatch:
    """Looks at the server's resident memory, and kills the server when it takes too much.

    Attributes:
        before, most, last: bytes of the server's processes together.
        was_killed: it took more than `limit`.

    Args:
        limit: bytes.
    """

    def __init__(self, server: RunningServer, limit: int) -> None:
        assert server.process is not None
        self._process = server.process
        self._limit = limit
        self.before = self.most = self.last = usage_of_tree(self._process.pid).rss
        self.was_killed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._over.wait(RSS_EVERY):
            self._look()

    def _look(self) -> None:
        rss = usage_of_tree(self._process.pid).rss
        if rss:
            self.last, self.most = rss, max(self.most, rss)
        if rss > self._limit and not self.was_killed:
            self.was_killed = True
            with contextlib.suppress(OSError):
                self._process.kill()


def _drained(connection: http.client.HTTPConnection) -> int:
    response = connection.getresponse()
    response.read()
    return response.status
