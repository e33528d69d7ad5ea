"""`palladio chat` where there is no terminal: one message, its answer on standard output, and the exit code."""

import io
from collections.abc import Iterator

import pytest

from palladio.__main__ import main
from tests.fake_openai import FakeServer, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


def test_one_message(server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Why?\nSay it."))
    words = ["chat", "--base-url", server.url, "--system", "Be short.", "--set", "temperature=0", "--api-key", "KEY"]
    assert main(words) == 0
    assert capsys.readouterr() == ("Hello\n", "")
    assert main([*words, "--model", "other", "--prompt", "And?"]) == 0
    first, second = server.asked
    assert (first["model"], second["model"], first["temperature"]) == ("fake-model", "other", 0)
    assert [message["content"] for message in first["messages"]] == ["Be short.", "Why?\nSay it."]
    assert server.keys == {"Bearer KEY"}


def test_exit_codes(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.status, server.body = 401, {"error": {"message": "wrong or missing API key"}}
    usual = ["chat", "--base-url", server.url, "--prompt", "Hi"]
    assert main(usual) == 1
    assert capsys.readouterr().err == "error: HTTP 401: wrong or missing API key\n"
    assert main(["chat", "--base-url", "http://127.0.0.1:9", "--prompt", "Hi"]) == 1
    assert "http://127.0.0.1:9/v1 does not answer" in capsys.readouterr().err
    for words, message in (
        (["--set", "temperature"], "--set temperature: write NAME=VALUE"),
        (["--set", "heat=1"], "--set heat=1: there is no setting heat"),
        (["--prompt", " "], "there is no message: give --prompt TEXT"),
        (["--base-url", "nonsense://"], "--base-url nonsense:// must be an address"),
    ):
        assert main([*usual, *words]) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
