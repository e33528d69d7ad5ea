"""`palladio run` without a terminal; in one: test_terminal_chat.py."""

import functools
import itertools
import json
import re
from types import SimpleNamespace

from palladio.commands import run
from palladio.runtime.front.progress import ProgressDisplay


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

    times = itertools.count(0.0, 6.0)

    monkeypatch.setattr(run, "first_model", model_of)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=times.__next__))
    monkeypatch.setattr(run, "ProgressDisplay", functools.partial(ProgressDisplay, bar=False, clock=times.__next__))
    monkeypatch.setattr(server, "client", Client)
    assert await server.wait_ready() == "m"
    assert re.fullmatch(r"Loading weights: 1/9 tensors, \d+ s\n", capsys.readouterr().err)
