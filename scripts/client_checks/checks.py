"""Shared parts of the check_….py files: the server's address, and a report of each check on a line of its own.

These files run in the environment of their client, which has neither Palladio nor pytest.
"""

import asyncio
import contextlib
import inspect
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

URL = os.environ["PALLADIO_URL"]  # without /v1
KEY = os.environ["PALLADIO_KEY"]
MODEL = os.environ["PALLADIO_MODEL"]  # the served name
MODEL_DIR = os.environ["PALLADIO_MODEL_DIR"]  # its directory, for clients that tokenize
JSON_PROMPT = "Write a JSON object with the keys name and age."  # the embedded model can
OK, FAILED = "check ok: ", "check FAILED: "  # what scripts/clients.py reads


def run_checks(module: str = "__main__") -> None:
    """Runs the functions of a module that are named check_…, in order, and ends the process: 1 if one failed."""
    failed = False
    for name, function in list(vars(sys.modules[module]).items()):
        if name.startswith("check_") and inspect.isfunction(function):
            failed |= not _passes(name.removeprefix("check_").replace("_", " "), function)
    sys.exit(int(failed))


def _passes(name: str, function: Callable[[], Any]) -> bool:
    try:
        result = function()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except Exception as error:  # noqa: BLE001 - a failed check is told, and the others go on
        traceback.print_exc()
        print(f"{FAILED}{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        return False
    print(f"{OK}{name}", flush=True)
    return True


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """The block has to raise this, with these words in its message or in its attributes, such as `code`."""
    try:
        yield
    except kind as error:
        text = f"{error} {vars(error)}"
        missing = [word for word in words if word not in text]
        if missing:
            raise AssertionError(f"{missing} not in {text}") from error
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def get_json(path: str, body: object = None, url: str = URL) -> Any:
    """Return the server's answer to a GET, or with a body to a POST."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", data, headers)) as answer:
        return json.load(answer)


def bias_to(*tokens: str, against: tuple[str, ...] = ()) -> dict[str, int]:
    """A logit_bias to some tokens, and against others.

    Args:
        tokens: `}` ends an object where it may end, `<|im_end|>` the output.
        against: such as `{"`, after which an object is not empty.
    """

    def token_id(token: str) -> str:
        (found,) = get_json("/tokenize", {"prompt": token, "add_special_tokens": False})["tokens"]
        return str(found)

    return {**{token_id(token): 100 for token in tokens}, **{token_id(token): -100 for token in against}}


@contextlib.contextmanager
def own_server(*flags: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Another server of Palladio's, for as long as the block: its address, and its process, which the block may end."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [
            *shlex.split(os.environ["PALLADIO_SERVE"]),
            "--port",
            str(port),
            "--file-storage-path",
            folder,
            *flags,
        ]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}", process
        finally:
            end(process)


def wait_for(address: str, process: "subprocess.Popen[bytes]", seconds: float = 300) -> None:
    """Wait until the server answers 200.

    Args:
        seconds: time limit: a first start builds the native library, on a busy machine slowly.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"{address} does not answer")


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its children."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def true(condition: object, what: object = "") -> None:
    if not condition:
        raise AssertionError(f"not so: {what!r}")
