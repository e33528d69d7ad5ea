"""A server before the fake engine, as processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.source_tree import ROOT
from tests.tiny_tokenizer import build_tiny_tokenizer

SCRIPT = """
import sys
from palladio.http.server import serve
from palladio.server.launch import report_error
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.errors import PalladioError
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.telemetry.logs import configure_logging
from palladio.flags.server_args import parse_server_args

args = parse_server_args(sys.argv[1:]).args
configure_logging("info", "text")
try:
    engine = AsyncEngine(args.engine_config(), ProcessTransport("tests.runtime.fake_core:FakeEngineCore.create"))
    sys.exit(serve(engine, args.http, args.observability))
except PalladioError as error:
    sys.exit(report_error(error))
"""


class ServerProcess:
    """Attributes:
    url: base address.
    popen: the front.
    """

    def __init__(self, folder: Path, knobs, *flags: str, wait: bool = True) -> None:
        model = build_tiny_tokenizer(folder / "model")
        self._log = folder / "log"
        command = [sys.executable, "-c", SCRIPT, "--model-path", str(model), "--port", "0"]
        command += ["--json-model-override-args", json.dumps(knobs), *flags]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self._log.open("w") as file:
            self.popen = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
        if wait:
            self.wait_for("fired up")
            self.url = self.log().split("running on ")[1].split()[0]

    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log():
            assert time.monotonic() < deadline, self.log()
            assert self.popen.poll() is None, self.log()
            time.sleep(0.02)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.popen.pid}/task").glob("*/children")
        pids = [pid for path in children for pid in path.read_text().split()]
        (pid,) = [pid for pid in pids if "palladio.runtime.process.engine_main" in _command(pid)]
        return int(pid)

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(30)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
