"""`palladio run` without a terminal; in one: test_terminal_chat.py."""

import itertools
import json
from types import SimpleNamespace

from palladio.commands import run


async def test_run_says_how_far_the_start_is_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    server = run._Server(SimpleNamespace(poll=lambda: None), tmp_path / "log", "key")
    server._url = "http://127.0.0.1:1"
    states = iter([(503, {"phase": "load", "done": 1, "total": 9}), (200, {})])
    monkeypatch.setattr(run, "_POLL", 0.0)

    class Client:
        root = ""

        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            pass

        async def ask(self, method, url):
            status, state = next(states)
            return status, json.dumps(state).encode()

    async def model_of(client):
        return "m"

    clock = itertools.count(0, 6)
    monkeypatch.setattr(run, "first_model", model_of)
    monkeypatch.setattr(run.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(server, "client", Client)
    assert await server.wait_ready() == "m"
    assert capsys.readouterr().err == "Loading weights: 1/9 tensors, 12 s\n"
