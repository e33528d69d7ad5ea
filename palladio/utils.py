"""Helpers for tutorials and notebooks: start a server from Python, wait for it, end it, print so that it stands out.

The names and the behaviour are those of SGLang's `sglang.utils`, so its documents run with the import line changed.
Standard library only.
"""

import contextlib
import html
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it takes seconds, and only those who have an Engine need it
    from palladio.runtime.front.offline.offline_engine import Engine

_BLUE, _PLAIN = "\033[34m", "\033[0m"
_NOTE = """
NOTE: Typically, the server runs in a separate terminal.
In this notebook, we run the server and notebook code together, so their outputs are combined.
To improve clarity, the server logs are displayed in the original black color, while the notebook outputs are \
highlighted in blue.
"""


def launch_server_cmd(
    command: str, host: str = "0.0.0.0", port: int | None = None
) -> tuple[subprocess.Popen[str], int]:
    """Starts a server on a free port.

    Args:
        command: such as `python3 -m palladio.launch_server --model-path …`; `--port` is appended.
        host: the address on which the port must be free. The command's own --host is left as it is.
        port: use this port instead of a free one.

    Returns:
        The server's process, and its port.
    """
    if port is None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
    return execute_shell_command(f"{command} --port {port}"), port


def execute_shell_command(command: str) -> subprocess.Popen[str]:
    """Runs a command, without a shell, in a process group of its own; its output joins this process's.

    `python` and `python3` mean the interpreter that runs this; `-m sglang.launch_server` means Palladio's.
    """
    words = shlex.split(command.replace("\\\n", " "))
    if words and words[0] in ("python", "python3"):
        words[0] = sys.executable
    words = ["palladio.launch_server" if word == "sglang.launch_server" else word for word in words]
    return subprocess.Popen(words, text=True, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for_server(base_url: str, timeout: float | None = None, process: subprocess.Popen[str] | None = None) -> None:
    """Blocks until the server serves its model; a server with an API key is asked for its health instead.

    Args:
        base_url: such as `http://localhost:30000`.
        timeout: seconds; None waits for ever.
        process: the server's process, to notice when it ends.

    Raises:
        TimeoutError: not ready in time.
        RuntimeError: `process` ended.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while not _is_ready(base_url):
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the server exited with code {process.returncode} before it was ready")
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"{base_url} was not ready within {timeout:g} seconds")
        time.sleep(0.5)
    print_highlight(_NOTE)


def terminate_process(process: subprocess.Popen[str], timeout: float = 10.0) -> None:
    """Ends a process and all of its descendants.

    Asks the process itself first, so that it may finish what it serves; what is left after `timeout` seconds is killed.
    """
    descendants = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        descendants = sorted({*descendants, *_descendants(process.pid)})
        process.kill()
        process.wait()
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(descendants, number)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and any(map(_is_alive, descendants)):
            time.sleep(0.02)


def print_highlight(text: object) -> None:
    """Prints in blue: as HTML in a notebook, with terminal colours on a terminal, plainly elsewhere."""
    # Inside a notebook IPython is always loaded; importing it elsewhere would be a dependency.
    display = sys.modules.get("IPython.display")
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if display is not None and type(shell).__name__ == "ZMQInteractiveShell":
        body = html.escape(str(text)).replace("\n", "<br>")
        display.display(display.HTML(f"<strong style='color: #00008B;'>{body}</strong>"))
    elif sys.stdout.isatty():
        print(f"{_BLUE}{text}{_PLAIN}")
    else:
        print(text)


def stream_and_merge(llm: "Engine", prompt: str, sampling_params: Any = None) -> str:
    """Streams the output of one prompt; returns its whole text."""
    text = ""
    for item in llm.generate(prompt, sampling_params, stream=True):
        text = _text(item)  # all of it so far
    return text


async def async_stream_and_merge(llm: "Engine", prompt: str, sampling_params: Any = None) -> AsyncGenerator[str, None]:
    """Streams the output of one prompt: an async generator of what is new in its text each time."""
    length = 0
    async for item in await llm.async_generate(prompt, sampling_params, stream=True):  # type: ignore[union-attr]
        text = _text(item)
        yield text[length:]
        length = len(text)


def _text(item: Any) -> str:
    text: str = item["text"]
    return text


def _is_ready(base_url: str) -> bool:
    status = _status(f"{base_url}/v1/models")
    return status == 200 or (status in (401, 403) and _status(f"{base_url}/health") == 200)  # /health needs no key


def _status(url: str) -> int | None:
    """The HTTP status of a GET; None: no answer."""
    request = urllib.request.Request(url, headers={"Authorization": "Bearer None"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # URLError too
        return None


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """Children, their children, and so on (through /proc; elsewhere through ps)."""
    parents = _parents()
    found = [pid]
    for ancestor in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == ancestor]
    return found[1:]


def _parents() -> dict[int, int]:
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return {int(pid): int(parent) for pid, parent in map(str.split, listing.splitlines())}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
    return parents


def _is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and waits for its parent does not."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
