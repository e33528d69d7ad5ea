"""The tutorial helpers, against small servers and processes of the standard library."""

import shlex
import subprocess
import sys
import textwrap
import time
import types

import pytest

from palladio import utils
from palladio.test.test_utils import is_in_ci

MODELS_SERVER = textwrap.dedent("""
    import argparse, http.server, sys, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--host"); parser.add_argument("--port", type=int); parser.add_argument("--delay", type=float)
    parser.add_argument("--api-key")
    args = parser.parse_args()
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/v1/models" and self.headers["Authorization"] != f"Bearer {args.api_key}":
                self.send_response(401)
            else:
                good = self.path in ("/v1/models", "/health")
                self.send_response(200 if good and time.time() > start + args.delay else 503)
            self.end_headers()
        def log_message(self, *args): pass
    start = time.time()
    http.server.HTTPServer((args.host, args.port), Handler).serve_forever()
""")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "a server.py"
    path.write_text(MODELS_SERVER)
    return f"python3 {shlex.quote(str(path))}"


IMPORTS = [  # of SGLang's tutorials, with the module's name changed
    "from palladio.test.test_utils import is_in_ci",
    "from palladio.test.doc_patch import launch_server_cmd",
    "from palladio.utils import launch_server_cmd",
    "from palladio.utils import wait_for_server, print_highlight, terminate_process",
    "from palladio.utils import execute_shell_command, wait_for_server, terminate_process, print_highlight",
]


def test_the_imports_of_the_tutorials():
    for line in IMPORTS:
        names = {}
        exec(line, names)
        wanted = line.partition(" import ")[2].split(", ")
        assert {name: names[name] for name in wanted} == {name: getattr(utils, name, is_in_ci) for name in wanted}


@pytest.mark.parametrize(
    ("value", "expected"), [(None, False), ("", False), ("false", False), ("true", True), ("1", True)]
)
def test_the_tutorials_switch(value, expected, monkeypatch):
    monkeypatch.delenv("SGLANG_IS_IN_CI", raising=False)
    if value is not None:
        monkeypatch.setenv("SGLANG_IS_IN_CI", value)
    assert is_in_ci() is expected


def test_launch_wait_and_terminate(script, capsys):
    process, port = utils.launch_server_cmd(f"{script} --host 0.0.0.0 \\\n --delay 0.6")
    try:
        utils.wait_for_server(f"http://localhost:{port}", timeout=30, process=process)
        assert "NOTE: Typically, the server runs in a separate terminal." in capsys.readouterr().out
        words = list(process.args)
        assert words[-2:] == ["--port", str(port)]
        assert words[0] == sys.executable
    finally:
        utils.terminate_process(process)
    assert process.returncode is not None


def test_waiting_for_a_server_with_an_api_key(script):
    begun = time.monotonic()
    process, port = utils.launch_server_cmd(f"{script} --host 127.0.0.1 --delay 0.6 --api-key secret", "127.0.0.1")
    try:
        utils.wait_for_server(f"http://127.0.0.1:{port}", timeout=30, process=process)
        assert time.monotonic() - begun > 0.6  # not before it is healthy
    finally:
        utils.terminate_process(process)


def test_waiting_ends_when_the_process_does():
    process = utils.execute_shell_command("python -c 'raise SystemExit(7)'")
    with pytest.raises(RuntimeError, match="exited with code 7"):
        utils.wait_for_server("http://127.0.0.1:9", process=process)


def test_waiting_ends_in_time():
    with pytest.raises(TimeoutError, match=r"within 0\.1 seconds"):
        utils.wait_for_server("http://127.0.0.1:9", timeout=0.1)


def test_sglangs_launch_command_starts_ours(monkeypatch):
    seen = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **kwargs: seen.append(words))
    utils.launch_server_cmd("python3 -m sglang.launch_server --model-path 'a b' --host 0.0.0.0", port=1234)
    assert seen == [
        [
            sys.executable,
            *["-m", "palladio.launch_server", "--model-path"],
            "a b",
            *["--host", "0.0.0.0", "--port", "1234"],
        ]
    ]


def test_terminate_ends_grandchildren_in_other_sessions(tmp_path):
    grandchild = "import time; time.sleep(60)"
    child = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"p = subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(60)"
    )
    process = utils.execute_shell_command(f"python -c {shlex.quote(child)}")
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    utils.terminate_process(process, timeout=0.3)
    assert process.returncode == -9
    assert not utils._is_alive(int((tmp_path / "pid").read_text()))


def test_terminating_an_ended_process_is_quiet():
    process = utils.execute_shell_command("python -c pass")
    process.wait()
    utils.terminate_process(process)


def test_highlight_is_plain_off_a_terminal_and_blue_on_one(capsys, monkeypatch):
    utils.print_highlight("plain")
    assert capsys.readouterr().out == "plain\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    utils.print_highlight("blue")
    assert capsys.readouterr().out == "\033[34mblue\033[0m\n"


def test_highlight_is_escaped_html_in_a_notebook(monkeypatch):
    shown = []
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    display = types.SimpleNamespace(display=shown.append, HTML=lambda text: text)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    utils.print_highlight("a <b>\nc")
    assert shown == ["<strong style='color: #00008B;'>a &lt;b&gt;<br>c</strong>"]
