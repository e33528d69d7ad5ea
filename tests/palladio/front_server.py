"""A server of several fronts before the fake engine, as processes of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.source_tree import ROOT
from tests.tiny_tokenizer import build_tiny_tokenizer

SCRIPT = """
import os, sys
from palladio.front_parent import serve_fronts
from palladio.launch_server import report_error
from palladio.runtime.interface.errors import PalladioError
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.telemetry.logs import configure_logging
from palladio.server_args import parse_server_args

args = parse_server_args(sys.argv[1:]).args
configure_logging("info", "text")
try:
    transport = ProcessTransport("tests.runtime.fake_core:FakeEngineCore.create", has_fronts=True)
    sys.exit(serve_fronts(args, transport, os.environ))
except PalladioError as error:
    sys.exit(report_error(error))
"""
CHAT = "/v1/completions"


class FrontServer:
    """Attributes:
    url: base address.
    popen: the parent.
    """

    def __init__(self, folder: Path, knobs, *flags: str, fronts: int = 2, wait: bool = True) -> None:
        model = build_tiny_tokenizer(folder / "model")
        self._log = folder / "log"
        command = [sys.executable, "-c", SCRIPT, "--model-path", str(model), "--port", "0"]
        command += ["--api-server-count", str(fronts), "--json-model-override-args", json.dumps(knobs), *flags]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self._log.open("w") as file:
            self.popen = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
        if wait:
            self.wait_for("fired up")
            self.url = self.log().split("running on ")[1].split()[0]

    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str, count: int = 1, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.log().count(text) < count:
            assert time.monotonic() < deadline, self.log()
            assert self.popen.poll() is None, self.log()
            time.sleep(0.02)

    def client(self) -> httpx.Client:
        """One connection, so always the same front."""
        limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
        return httpx.Client(base_url=self.url, timeout=30, limits=limits)

    def clients(self, seconds: float = 20) -> dict[int, httpx.Client]:
        """A client for each front, by the front's pid. Args: seconds: for those that still start."""
        found: dict[int, httpx.Client] = {}
        deadline = time.monotonic() + seconds
        while len(found) < len(self.front_pids()):
            assert time.monotonic() < deadline
            client = self.client()
            with client.stream("GET", "/health") as response:
                response.read()
                port = response.extensions["network_stream"].get_extra_info("client_addr")[1]
                pid = self._front_of(port)
            if pid in found:
                client.close()
            else:
                found[pid] = client
        return found

    def children(self, module: str) -> list[int]:
        """pids of the parent's children that run a module."""
        pids = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        return [int(pid) for pid in pids if module in _command(pid)]

    def front_pids(self) -> list[int]:
        return self.children("palladio.front_process")

    def leader_pid(self) -> int:
        return int(re.findall(r"leads \(pid (\d+)\)", self.log())[-1])

    def engine_pid(self) -> int:
        (pid,) = self.children("palladio.runtime.process.engine_main")
        return pid

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(30)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise

    def _front_of(self, port: int) -> int:
        """The pid of the front that has the connection from a port."""
        own = f":{int(self.url.rpartition(':')[2]):04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # The list may name one twice if it changes meanwhile; 0 has no process any more.
        (inode,) = {line[9] for line in lines if line[1].endswith(own) and line[2].endswith(f":{port:04X}")} - {"0"}
        for pid in self.front_pids():
            for link in Path(f"/proc/{pid}/fd").iterdir():
                if os.path.exists(link) and os.readlink(link) == f"socket:[{inode}]":
                    return pid
        raise AssertionError("no front has the connection")


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
