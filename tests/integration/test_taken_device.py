"""A server whose device another process has: it waits, serves when the device is free, or ends with exit code 75."""

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.integration.serving import LIMITS, MODEL, Server, launch_command
from tests.integration.test_several_hosts import TwoHosts
from tests.runtime.devices.messages import VFIO_BUSY

pytestmark = pytest.mark.timeout(300)

DEVICE_TAKEN = 75
FREE_AFTER = 5.0  # seconds after the server has begun to wait
PLUGIN = """
import pathlib
from jax._src import xla_bridge

def initialize():
    start, taken = xla_bridge._backend_factories["cpu"].factory, pathlib.Path(__file__).with_name("taken")
    def client():
        if taken.exists():
            raise RuntimeError(taken.read_text())
        return start()
    xla_bridge.register_backend_factory("cpu", client, fail_quietly=False)
"""


class FakeChip:
    """A plugin of jax with which the CPU does not start while there is a file, which this process has open.

    Attributes:
        device: the file that the message names. taken: what says that it is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.device = folder / "dev" / "vfio" / "0"
        self.device.parent.mkdir(parents=True)
        self.device.touch()
        plugin = folder / "jax_plugins" / "taken_chip" / "__init__.py"
        plugin.parent.mkdir(parents=True)
        plugin.write_text(PLUGIN)
        self.taken = plugin.with_name("taken")
        words = VFIO_BUSY.removeprefix("Unable to initialize backend 'tpu': ")
        self.taken.write_text(words.replace("/dev/vfio/0", str(self.device)))
        before = os.environ.get("PYTHONPATH") or str(Path.cwd())
        self._path = os.pathsep.join((str(folder), *before.split(os.pathsep)))

    def used(self) -> "mock._patch_dict":
        """Processes that are started meanwhile use it."""
        return mock.patch.dict(os.environ, {"PYTHONPATH": self._path})


@pytest.fixture
def chip(tmp_path: Path, environment: None) -> Iterator[FakeChip]:
    chip = FakeChip(tmp_path / "chip")
    with chip.device.open():
        yield chip


def error_line(output: str) -> str:
    assert "Traceback" not in output, output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    return line


def test_a_device_that_stays_taken_ends_the_start_with_its_own_exit_code(chip: FakeChip, checkpoint: Path) -> None:
    words = shlex.split(launch_command(checkpoint, f"{LIMITS} --device-wait 1.5 --port 0"))
    with chip.used():
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == DEVICE_TAKEN, done.stderr
    line = error_line(done.stderr)
    assert f"process {os.getpid()} (" in line
    assert f"has {chip.device} open" in line
    assert "--device-wait" in line
    assert "Waiting up to 1.5 s for the device" in done.stderr


def free_once_waited_for(chip: FakeChip, log: Path) -> None:
    """After a few seconds in which the server has said that it waits."""
    deadline = time.monotonic() + 100.0
    while time.monotonic() < deadline and not (log.exists() and "Waiting up to" in log.read_text()):
        time.sleep(0.1)
    time.sleep(FREE_AFTER)
    chip.taken.unlink()


@pytest.mark.slow
def test_a_server_waits_for_a_device_that_becomes_free(chip: FakeChip, checkpoint: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    thread = threading.Thread(target=free_once_waited_for, args=(chip, log))
    thread.start()
    with chip.used():
        server = Server(launch_command(checkpoint, f"{LIMITS} --served-model-name {MODEL}"), log)
    try:
        thread.join()
        answer = server.post("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        assert f"process {os.getpid()} (" in server.log()
        assert "The device is free after" in server.log()
    finally:
        server.stop()


@pytest.mark.slow
def test_of_two_hosts_the_one_whose_chip_is_taken_is_named(chip: FakeChip, checkpoint: Path, tmp_path: Path) -> None:
    with chip.used():
        hosts = TwoHosts(checkpoint, tmp_path, "--tp-size 2 --device-wait 3")
    try:
        done = hosts.start_in_vain()
        assert done.returncode == 1, "the machine to replace is the other one"
        line = error_line(done.stderr)
        assert "host 1 (" in line
        assert f"has {chip.device} open" in line
        assert hosts.other.wait(30) == DEVICE_TAKEN, hosts.other_log.read_text()
        assert f"has {chip.device} open" in error_line(hosts.other_log.read_text())
    finally:
        hosts.stop()


@pytest.mark.slow
def test_the_first_of_two_hosts_names_itself(chip: FakeChip, checkpoint: Path, tmp_path: Path) -> None:
    hosts = TwoHosts(checkpoint, tmp_path, "--tp-size 2 --device-wait 3")
    try:
        with chip.used():
            done = hosts.start_in_vain()
        assert done.returncode == DEVICE_TAKEN
        assert f"has {chip.device} open" in error_line(done.stderr)
        assert hosts.other.wait(30) == 1
        assert "host 0 cannot use its device: " in hosts.other_log.read_text()
        assert f"has {chip.device} open" in hosts.other_log.read_text()
    finally:
        hosts.stop()
