"""Servers in processes of their own, whose engine is a fake, on a bucket: to be killed."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import obstore
import openai

from tests.integration.swift import Swift

MIB = 1 << 20
_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = """
import json, sys
from pathlib import Path
from palladio.http.server import serve
from palladio.http.settings.http_config import HttpConfig
from tests.fake_engine import FakeEngine

engine = FakeEngine.create(Path(sys.argv[1]), reply="hello " * 30)
engine.first_delay = 0.05
sys.exit(serve(engine, HttpConfig(port=0, drain_timeout=5, **json.loads(sys.argv[2]))))
"""


class Host:
    """
    Args:
        config: of HttpConfig.

    Attributes:
        http: a client of it.
    """

    def __init__(self, tokenizer: Path, log: Path, config: dict[str, Any]) -> None:
        environment = os.environ | {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", _SCRIPT, str(tokenizer), json.dumps(config)]
        with log.open("w") as file:
            self._process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        deadline = time.monotonic() + 180
        while (found := re.search(r"running on (http://127.0.0.1:\d+)", log.read_text())) is None:
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        self.http = httpx.Client(base_url=found[1], timeout=60)
        while self.http.get("/v1/models").status_code != 200:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.http.base_url}/v1", api_key="None", max_retries=0, timeout=60)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Returns its exit status."""
        self.http.close()
        self._process.send_signal(how)
        return self._process.wait(30)


@contextmanager
def begun_upload(host: Host, swift: Swift) -> Iterator[None]:
    """Some parts of it are in the bucket; the rest does not come."""
    before = swift.num_stored()
    with socket.create_connection((host.http.base_url.host, host.http.base_url.port)) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n"
            b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + random.randbytes(17 * MIB)
        )
        deadline = time.monotonic() + 180
        while swift.num_stored() < before + 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield


def objects(swift: Swift, url: str) -> set[str]:
    """The names below the prefix."""
    name, _, prefix = url.removeprefix("s3://").partition("/")
    return {one["path"].removeprefix(f"{prefix}/") for some in obstore.list(swift.store(name), prefix) for one in some}
