"""--nnodes: two hosts with devices of their own, as two launch commands on this one, are one server."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.integration.serving import LIMITS, MODEL, Server, build_checkpoint, encoded_rows, launch_command

pytestmark = pytest.mark.timeout(400)

SAFETENSORS = "model.safetensors"
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": "Hello there", "max_tokens": 12, "temperature": 0, "logprobs": 3},
    "a prompt of several chunks": {"prompt": list(range(5, 155)), "max_tokens": 6, "temperature": 0},
    "sampled": {"prompt": "One", "max_tokens": 10, "temperature": 1, "seed": 11, "top_p": 0.9, "n": 2},
    "penalties": {"prompt": "Two", "max_tokens": 10, "temperature": 0.7, "seed": 5, "frequency_penalty": 1.0},
    "grammar": {"prompt": "Three", "max_tokens": 10, "temperature": 1, "seed": 5, "regex": "(yes|no) [0-9]{3}"},
    "the prefix of another": {"prompt": list(range(5, 140)), "max_tokens": 6, "temperature": 0},
}
FEW = ("a prompt of several chunks", "the prefix of another")  # of few programs


class TwoHosts:
    """Attributes:
    server: host 0. other: host 1's process. other_log: its log.
    """

    def __init__(self, checkpoint: Path, folder: Path, flags: str, other_flags: str | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        common = f"{LIMITS} --nnodes 2 --dist-init-addr 127.0.0.1:{port} --dist-coordinator-port 0"
        self.other_log = folder / "host1"
        other = f"{launch_command(checkpoint, common)} {flags if other_flags is None else other_flags} --node-rank 1"
        with self.other_log.open("w") as file:
            words = shlex.split(other)
            self.other = subprocess.Popen([sys.executable, *words[1:]], stdout=file, stderr=file)
        self.command = f"{launch_command(checkpoint, common)} {flags} --node-rank 0"
        self.log = folder / "host0"

    def start(self) -> Server:
        return Server(self.command, self.log)

    def start_in_vain(self) -> subprocess.CompletedProcess[str]:
        """Host 0, which ends by itself."""
        words = [sys.executable, *shlex.split(self.command)[1:], "--port", "0"]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    def stop(self) -> None:
        self.other.kill()
        self.other.wait()


def set_devices(number: int) -> contextlib.AbstractContextManager[None]:
    """So many of each host."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={number}"
    return mock.patch.dict(os.environ, {"XLA_FLAGS": flags})


@pytest.fixture
def four_devices(environment: None) -> Iterator[None]:
    with set_devices(4):
        yield


def run(server: Server, names: Sequence[str] = tuple(REQUESTS)) -> dict[str, Any]:
    answers = {}
    for name in names:
        choices = (
            server.post("/v1/completions", {"model": MODEL, **REQUESTS[name]}).raise_for_status().json()["choices"]
        )
        answers[name] = [(choice["text"], choice["finish_reason"]) for choice in choices]
    return answers


def check_embeds(server: Server, one: Server, checkpoint: Path) -> None:
    """Prompts of embeddings reach the other host: the tokens are those of the ids, on the server of one host."""
    ids = list(range(20, 120))
    sampling = {"sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    expected = server.post("/generate", {"input_ids": ids, **sampling}).raise_for_status().json()["output_ids"]
    answer = one.post("/generate", {"input_embeds": encoded_rows(checkpoint, ids), **sampling})
    assert answer.raise_for_status().json()["output_ids"] == expected


def exchange_weights(server: Server, checkpoint: Path, folder: Path) -> None:
    """Both hosts take other weights, or neither does; and both free and restore them."""
    asked = ("greedy", "sampled")
    expected = run(server, asked)
    tensors = load_file(checkpoint / "model.safetensors")
    folder.mkdir()
    save_file({name: np.ascontiguousarray(np.roll(a, 1, 0)) for name, a in tensors.items()}, folder / SAFETENSORS)
    assert server.post("/update_weights_from_disk", {"model_path": str(folder)}).json()["success"]
    others = run(server, asked)
    assert others != expected
    (folder / SAFETENSORS).write_bytes(b"nothing")
    refused = server.post("/update_weights_from_disk", {"model_path": str(folder)})
    assert (refused.status_code, "safetensors" in refused.text) == (400, True)
    assert run(server, asked) == others
    assert server.post("/update_weights_from_disk", {"model_path": str(checkpoint)}).json()["success"]
    assert server.post("/release_memory_occupation", {}).json()["released"] == ["kv_cache", "weights"]
    assert server.post("/v1/completions", {"model": MODEL, "prompt": "a"}).status_code == 503
    assert server.post("/resume_memory_occupation", {}).json() == {"released": []}
    assert run(server, asked) == expected


@pytest.mark.parametrize(
    ("num_devices", "mesh"),
    [
        (1, "--tp-size 2 --compile lazy"),  # two requests alone
        pytest.param(1, "--tp-size 2 --compile lazy --enable-input-embeds", marks=pytest.mark.slow),
        pytest.param(4, "--tp-size 8 --compile lazy", marks=pytest.mark.slow),
        pytest.param(4, "--tp-size 8 --compile background", marks=pytest.mark.slow),
        pytest.param(4, "--tp-size 4 --dp-size 2 --compile lazy", marks=pytest.mark.slow),
    ],
)
def test_two_hosts_answer_as_one_and_the_loss_of_one_is_told(server, checkpoint, tmp_path, num_devices, mesh):
    is_short = mesh == "--tp-size 2 --compile lazy"
    names = FEW if is_short else tuple(REQUESTS)
    expected = run(server, names)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.enter_context(set_devices(num_devices))
        hosts = TwoHosts(checkpoint, tmp_path, f"--served-model-name {MODEL} {mesh} --weight-update-folders /")
        stack.callback(hosts.stop)
        one = hosts.start()
        stack.callback(one.stop)
        assert run(one, names) == expected
        logs = [one.log(), hosts.other_log.read_text()]
        assert "Ready: host 1 of 2 waits for program calls from host 0" in logs[1]
        if "lazy" in mesh:
            made = [re.findall(r"Program (\S+) was built on first use", log) for log in logs]
            assert made[0] == made[1] != [], "the same on both, in the same order"
        if "embeds" in mesh:
            check_embeds(server, one, checkpoint)
        if not is_short:
            exchange_weights(one, checkpoint, tmp_path / "other")
            assert "This host keeps its weights: " in hosts.other_log.read_text()

        body = {"model": MODEL, "prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with one.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            hosts.other.kill()
            killed = time.monotonic()
            rest = "\n".join(lines)
        assert time.monotonic() - killed < 20
        assert re.search(r"connection to host 1 \(.*, 127\.0\.0\.1\) lost: it closed the connection", rest)
        assert one.http.get("/health").status_code == 503
        assert " lost: it closed the connection" in one.log()
        told = re.search(r"Sent (\d+) program calls to 1 hosts \((\d+) bytes each\)", one.log())
        assert told is not None
        assert int(told[2]) < 4096, "a step is told in ids"


@pytest.mark.slow
def test_the_other_host_ends_with_the_server(checkpoint, four_devices, tmp_path):
    hosts = TwoHosts(checkpoint, tmp_path, f"--served-model-name {MODEL} --tp-size 8 --compile background")
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(hosts.stop)
        one = hosts.start()
        stack.callback(one.stop)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(60) == 0
        assert hosts.other.wait(30) == 0
        assert "Host 0 has stopped; this host stops too" in hosts.other_log.read_text()


@pytest.mark.slow  # tests/runtime/multihost/test_coordinator.py has it without processes
@pytest.mark.parametrize("what", ["flags", "model"])
def test_hosts_that_were_started_differently_are_named(checkpoint, four_devices, tmp_path, what):
    other = build_checkpoint(tmp_path / "other", hidden_size=96) if what == "model" else checkpoint
    other_flags = "--page-size 16" if what == "flags" else f"--model-path {other}"
    hosts = TwoHosts(checkpoint, tmp_path, "--tp-size 8", f"--tp-size 8 {other_flags}")
    try:
        done = hosts.start_in_vain()
        assert hosts.other.wait(60) == done.returncode == 2
        for text in (done.stderr, hosts.other_log.read_text()):
            (error,) = [line for line in text.splitlines() if line.startswith("error:")]
            assert "host 0 and host 1 (" in error
            assert ("--page-size is 8 here and 16 there" if what == "flags" else "the model is ") in error
    finally:
        hosts.stop()


@pytest.mark.slow
def test_too_few_devices_are_named_on_both(checkpoint, four_devices, tmp_path):
    hosts = TwoHosts(checkpoint, tmp_path, "--tp-size 16")
    try:
        done = hosts.start_in_vain()
        assert done.returncode == 2
        assert "error: --tp-size 16 needs that many devices, but jax finds 8" in done.stderr
        assert hosts.other.wait(60) in (1, 2)
    finally:
        hosts.stop()
