"""`palladio run`: what it asks its server for, and what it says without a terminal; in one: test_terminal_chat.py."""

import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from palladio.commands.chat import run
from palladio.commands.chat.chat import read_settings
from palladio.commands.chat.run import _chat, _Server, parser
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server
from tests.tiny_tokenizer import build_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("of_model", "words", "config", "asked"),
    [
        ({}, [], {}, (0.7, 0.05)),
        ({"repetition_penalty": 1.1}, [], {}, (0.7, 0.05)),
        pytest.param({}, ["--set", "temperature=0.2"], {}, (0.2, 0.05), marks=pytest.mark.slow),
        ({"temperature": 0.3}, [], {}, (0.3, 0.0)),
        pytest.param({"top_k": 20}, [], {}, (1.0, 0.0), marks=pytest.mark.slow),
        pytest.param({}, [], {"sampling_defaults": "openai"}, (1.0, 0.0), marks=pytest.mark.slow),
        ({}, [], {"preferred_sampling_params": '{"temperature": 0.4}'}, (0.4, 0.0)),
    ],
)
def test_a_chat_samples_as_the_files_say_or_else_narrowly(
    tokenizer: Tokenizer,
    child: subprocess.Popen[bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    of_model: Mapping[str, Any],
    words: list[str],
    config: dict[str, Any],
    asked: tuple[float, float],
) -> None:
    engine = FakeEngine(tokenizer)
    engine.sampling_defaults = of_model
    args = parser().parse_args(["--prompt", "hi", *words])
    with running_server(engine, HttpConfig(**config)) as url:
        log = tmp_path / "log"
        log.write_text(f"Uvicorn running on {url} (Press CTRL+C to quit)\n")
        assert _chat(_Server(child, log, ""), args, read_settings(args), {}) == 0
    (call,) = engine.calls
    assert (call.params.temperature, call.params.min_p) == asked
    told = capsys.readouterr()
    assert told.out == "Hello\n"
    assert ("this chat begins with temperature 0.7, min_p 0.05" in told.err) is (asked[1] == 0.05)


async def test_run_says_how_far_the_start_is_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    server = run._Server(SimpleNamespace(poll=lambda: None), tmp_path / "log", "key")
    server._url = "http://127.0.0.1:1"
    states = iter(
        [
            (503, {"phase": "load", "done": 1, "total": 9}),
            (200, {}),
            (200, {"chat_sampling_params": {"temperature": 0.7}}),
        ]
    )
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
    assert await server.wait_ready() == ("m", {"temperature": 0.7})
    assert re.fullmatch(r"Loading weights: 1/9 tensors, \d+ s\n", capsys.readouterr().err)
