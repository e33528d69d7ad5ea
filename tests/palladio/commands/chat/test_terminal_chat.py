"""`palladio run` and `palladio chat` as people use them: in a terminal, which tmux gives."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_openai import fake_server
from tests.source_tree import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt-get install tmux)"),
]


class Terminal:
    """One tmux session, with a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"
        self.folder = folder

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    def start(self, *words: str) -> None:
        kept = {"PYTHONPATH": str(ROOT), "PALLADIO_DATA_DIR": str(self.folder / "data"), "PATH": os.environ["PATH"]}
        kept |= {"PALLADIO_CACHE_DIR": os.environ.get("PALLADIO_CACHE_DIR", str(self.folder / "cache"))}
        variables = [f"{name}={value}" for name, value in kept.items()]
        line = shlex.join(["env", *variables, sys.executable, "-m", "palladio", *words])
        self.tmux("new-session", "-d", "-x", "100", "-y", "50", f"{line}; echo ended with $?; exec cat")

    def type(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-S", "-200")

    def wait(self, condition: Callable[[str], bool] | str, seconds: float = 60.0) -> str:
        """Until the screen has a text, or is as it is to be."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.screen()
            if condition in shown if isinstance(condition, str) else condition(shown):
                return shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    yield found
    subprocess.run(["tmux", "-S", str(tmp_path / "tmux"), "kill-server"], capture_output=True, check=False)


def test_a_chat_with_a_server(terminal: Terminal) -> None:
    with fake_server() as server:
        server.deltas = [
            {"reasoning_content": "Let me think."},
            *({"content": f"w{number} "} for number in range(2000)),
        ]
        server.delay = 0.01
        terminal.start("chat", "--base-url", server.url)
        terminal.wait("Chat with fake-model.")
        terminal.type("Talk", "Enter")
        terminal.wait("w20")
        terminal.type("C-c")
        shown = terminal.wait("(stopped)")
        assert "Let me think." in shown
        assert server.left.wait(10)
        assert "\033[2m" in terminal.tmux("capture-pane", "-p", "-e", "-S", "-200"), "thoughts are dim"
        terminal.wait(lambda text: text.rstrip().endswith(">>>"))  # the program goes on
        server.deltas, server.delay = [{"content": "Done."}], 0.0
        terminal.type("/set temperature 0", "Enter", '"""one', "Enter", 'two"""', "Enter")
        terminal.wait("Done.")
        assert server.asked[-1]["messages"][-1]["content"] == "one\ntwo"
        assert server.asked[-1]["temperature"] == 0
        assert server.asked[-1]["messages"][1]["content"].startswith("w0 w1 ")
        terminal.type("C-c")
        terminal.wait("(/bye or Ctrl-D ends)")
        for _ in range(3):
            terminal.type("Up")  # the history: the message's last line, its first, the command
        terminal.type("Enter")
        terminal.wait(lambda text: text.count("temperature is 0") == 2)
        server.status, server.body = 400, {"error": {"message": "the context is full"}}
        terminal.type("More", "Enter")
        terminal.wait("error: HTTP 400: the context is full")
        terminal.type("C-d")
        terminal.wait("ended with 0")
    history = terminal.folder / "data" / "chat_history"
    assert "/set temperature 0" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_run_starts_a_server_and_ends_it(terminal: Terminal) -> None:
    terminal.start("run", "default", "--context-length=512", "--max-running-requests=1")
    terminal.wait("Chat with palladio-default-v3.", 300)
    (server,) = _servers(terminal)
    terminal.type("List 3 countries.", "Enter")
    terminal.wait(lambda text: "1." in text.split("List 3 countries.")[-1], 120)
    terminal.type("/bye", "Enter")
    terminal.wait("ended with 0", 60)
    assert not Path(f"/proc/{server}").exists()


def test_a_server_that_dies_ends_the_chat_with_words(terminal: Terminal) -> None:
    terminal.start("run", "--context-length=512", "--max-running-requests=1")
    terminal.wait("Chat with", 300)
    (server,) = _servers(terminal)
    os.kill(server, signal.SIGKILL)
    terminal.type("Hello", "Enter")
    shown = terminal.wait("ended with 1", 60)
    assert "does not answer" in shown
    assert "error: the server ended" in shown
    assert "Traceback" not in shown


def test_a_run_that_is_killed_leaves_no_server(terminal: Terminal) -> None:
    terminal.start("run", "--context-length=512", "--max-running-requests=1")
    terminal.wait("Chat with", 300)
    (server,) = _servers(terminal)
    parent = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_wrong_flag_is_told_in_words(terminal: Terminal) -> None:
    terminal.start("run", "--page-size=0")
    shown = terminal.wait("ended with 2", 60)
    assert "error: --page-size must be at least 1" in shown
    assert "Traceback" not in shown


def _servers(terminal: Terminal) -> list[int]:
    """Processes that this terminal's command has started."""
    mark = f"PALLADIO_DATA_DIR={terminal.folder / 'data'}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = mark in (process / "environ").read_bytes().split(b"\0")
            if ours and b"palladio.commands.chat.run_worker" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found
