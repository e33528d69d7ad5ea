"""Every block of code on the pages for users is run, parsed, or known with the reason why no test runs it."""

import importlib
import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from palladio.cli.table import COMMANDS
from palladio.flags.server_args import names_model, own_flags, parse_server_args
from palladio.utils import launch_server_cmd, terminate_process, wait_for_server
from tests import compile_cache
from tests.docs.doc_blocks import LANGUAGES, NOT_RUN, SOURCES, Block, blocks, palladio_words, reason_not_run
from tests.docs.stand_ins import DEVICES, files, run_here
from tests.integration.test_blocks_of_the_docs import CURL, OF_RAY, PRINTED

BLOCKS = blocks()
COMMAND_LINES = [(block, command) for block in BLOCKS if block.language == "bash" for command in block.commands]
OF_PALLADIO = [block for block in BLOCKS if block.language == "bash" and any(map(palladio_words, block.commands))]
# How many commands no test runs, by reason. A new one needs a better reason than that it is hard.
COUNTS = {
    NOT_RUN[r"make "]: 32,
    NOT_RUN[r"(.venv/bin/python -m )?pip install|python3 -m venv"]: 8,
    NOT_RUN[r"\.venv/bin/python -m pytest"]: 2,
    NOT_RUN[r"\.venv/bin/python benchmarks/"]: 10,
    NOT_RUN[r"\.venv/bin/python examples/"]: 1,
    NOT_RUN[r"(python )?benchmarks/(gpu/)?h200"]: 3,
    NOT_RUN[r"palladio serve .*--nnodes"]: 1,
    NOT_RUN[r"palladio plan .*--compile"]: 1,
    NOT_RUN[r"palladio pull"]: 3,
    NOT_RUN[r"palladio chat --base-url"]: 1,
    NOT_RUN[r"palladio bench"]: 3,
    NOT_RUN[r"palladio eval --tasks"]: 1,
    NOT_RUN[r"palladio replay"]: 1,
    NOT_RUN[r"palladio tune$"]: 2,
    NOT_RUN[r"serve run"]: 1,
    NOT_RUN[r"aws s3api"]: 1,
    NOT_RUN[r"export RAY_SERVE_"]: 3,
    NOT_RUN[r"palladio (serve|migrate-storage) .*--database-url"]: 2,
}
SMALL = ["--max-total-tokens", "2048", "--max-running-requests", "8", "--chunked-prefill-size", "64"]


def test_every_block_has_a_language() -> None:
    assert len(BLOCKS) > 60
    assert [block.name for block in BLOCKS if block.language not in LANGUAGES] == []


def test_every_command_is_run_or_has_a_reason() -> None:
    others = [
        f"{block.name}: {command}"
        for block, command in COMMAND_LINES
        if palladio_words(command) is None and not command.startswith("curl ") and reason_not_run(command) is None
    ]
    assert others == []
    assert Counter(reason for _, command in COMMAND_LINES if (reason := reason_not_run(command))) == COUNTS


def test_every_block_of_python_and_every_call_of_curl_is_run() -> None:
    assert {(block.page, block.heading) for block in BLOCKS if block.language == "python"} == {*PRINTED, *OF_RAY}
    called = {(block.page, block.heading) for block, command in COMMAND_LINES if command.startswith("curl ")}
    assert called == CURL.keys()


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=lambda block: block.name)
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


def test_commands_are_understood() -> None:
    """Quick: no command is run, also none that can not be run by a test."""
    seen = set()
    for block, command in COMMAND_LINES:
        if not command.startswith("palladio "):
            continue
        _, name, *words = shlex.split(command.partition(" > ")[0])
        assert name in COMMANDS, f"{block.name}: {command}"
        seen.add(name)
        module = vars(importlib.import_module(COMMANDS[name].module))
        left = module["parser"]().parse_known_args(words)[1] if "parser" in module else words
        assert COMMANDS[name].takes_serve_flags or not left, f"{block.name}: {command}"
        if left:
            assert parse_server_args(left if names_model(left) else ["m", *left]).args, f"{block.name}: {command}"
    assert seen == COMMANDS.keys(), "a command that no page shows"


def test_commands_in_the_text_exist() -> None:
    """Such as `palladio serve --device cuda`."""
    for source in SOURCES:
        prose = re.sub(r"^```.*?^```", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for command, rest in re.findall(r"`palladio (?!help|version)([a-z][\w-]*)([^`]*)`", prose):
            assert command in COMMANDS, f"{source.name}: palladio {command}"
            if command == "serve":
                named = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z-]+)", rest)} - {"help"}
                aliases = {"max_model_len", "tensor_parallel_size"}  # of another server
                assert named <= own_flags().keys() | aliases, f"{source.name}: palladio {command}{rest}"


@pytest.mark.slow
@pytest.mark.parametrize("block", OF_PALLADIO, ids=lambda block: block.name)
def test_commands_of_palladio(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiny models and simulated devices: a server is started and asked, the other commands have to succeed."""
    devices = f"--xla_force_host_platform_device_count={DEVICES}"
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} {devices}")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PALLADIO_CACHE_DIR", str(compile_cache.folder()))
    monkeypatch.setenv("PALLADIO_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    for command in block.commands:
        words = palladio_words(command)
        if words is None:
            continue
        taken = run_here(words, tmp_path)
        if words[0] == "serve":
            asked(taken)
        else:
            small = SMALL if words[0] == "compile" else []
            done = subprocess.run(
                [sys.executable, "-m", "palladio", *taken, *small],
                input="Hello\n",  # for a chat
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
            # `doctor` says by 1 that something of this machine is broken.
            assert done.returncode in ((0, 1) if words[0] == "doctor" else (0,)), (
                f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
            assert (done.stdout + done.stderr).strip(), command


def asked(words: list[str]) -> None:
    """Starts a server and asks it for an answer, an embedding or a class."""
    compiled = ["--compile", "full" if "--compiled-dir" in words else "lazy"]
    # A flag that is given twice under one name has its last value.
    words = ["--max-running-requests" if word == "--max-num-seqs" else word for word in words]
    command = shlex.join(["python3", "-m", "palladio", *words, "--host", "127.0.0.1", *SMALL, *compiled])
    process, port = launch_server_cmd(command, host="127.0.0.1")
    scheme = "https" if "--ssl-certfile" in words else "http"
    try:
        if scheme == "http":
            wait_for_server(f"http://127.0.0.1:{port}", timeout=200, process=process)
        else:
            wait_with_tls(port)
        assert answer(f"{scheme}://127.0.0.1:{port}", words)
    finally:
        terminate_process(process)


def wait_with_tls(port: int) -> None:
    """As `wait_for_server`, which trusts no certificate that it does not know."""
    loop = f"until curl --silent --fail --insecure https://127.0.0.1:{port}/health; do sleep 0.5; done"
    subprocess.run(["bash", "-c", loop], check=True, timeout=200, stdout=subprocess.DEVNULL)


def answer(url: str, words: list[str]) -> object:
    """What the server says to one request."""
    path, body = "/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    if "--is-embedding" in words:
        path, body = "/v1/classify", {"input": "Hello"}
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    if "--api-key-file" in words:
        request.add_header("Authorization", "Bearer key-of-anna")
    with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=120) as response:
        return json.load(response)
