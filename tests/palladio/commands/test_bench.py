"""`palladio bench` as a user types it, against a server that says what it is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palladio.__main__ import main
from palladio.commands import bench
from palladio.load.runner import run_asks
from tests.fake_openai import FakeServer, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


def test_levels_become_a_table_json_and_a_plot(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "KEY")
    files = [f"--json={tmp_path / 'out.json'}", f"--plot={tmp_path / 'out.svg'}"]
    words = ["bench", "--base-url", server.url, "--concurrency", "1", "4", "--requests", "8", *files]
    assert main([*words, "--slo", "ttft:p99<60s"]) == 0
    told = capsys.readouterr()
    assert f"{server.url}/v1 fake-model: sharegpt" in told.out
    assert "within ttft:p99<60000ms: up to concurrency 4 (" in told.out
    report = json.loads((tmp_path / "out.json").read_text())
    assert [level["load"] for level in report["levels"]] == [1.0, 4.0]
    assert {level["completion_tokens"] for level in report["levels"]} == {16}
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    assert server.keys == {"Bearer KEY"}
    assert "KEY" not in (tmp_path / "out.json").read_text()


def test_exit_codes(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ["bench", "--base-url", server.url, "--requests", "2"]
    for words, message in (
        (["--sweep", "rate"], "--sweep needs a promise to break"),
        (["--slo", "fast"], "--slo fast: give a time"),
        (["--rate", "0"], "--rate must be over 0"),
        (["--output-tokens", "0"], "--output-tokens 0 must be over 0"),
        (["--plot", "x.pdf"], "--plot x.pdf: the name must end with"),
        (["--extra", "[1]"], "--extra must be a JSON object"),
        (["--rate", "nan"], "--rate must be over 0 and finite"),
        (["--rate", "1", "inf"], "--rate must be over 0 and finite"),
        (["--limit", "nan"], "--limit nan must be over 0 and finite"),
        (["--refine", "-1"], "--refine -1 must be at least 0"),
        (["--shared-tokens", "-5"], "--shared-tokens -5 must be at least 0"),
        (["--workload=prefix", "--prompt-tokens=8", "--shared-tokens=8"], "--shared-tokens 8 must be at least 0, and"),
        (["--dataset", "/nowhere.json"], "--dataset /nowhere.json: no such file"),
        (["--plot", "/nowhere/x.svg"], "--plot /nowhere/x.svg: there is no directory /nowhere"),
        (["--json", str(tmp_path)], f"--json {tmp_path} is a directory"),
    ):
        assert main([*usual, *words]) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not server.keys, "wrong flags are told before the server is asked"
    with pytest.raises(SystemExit, match="2"):
        main([*usual, "--extra", "{"])
    assert "argument --extra: '{' is not JSON: " in capsys.readouterr().err
    assert main([*usual, "--concurrency", "1", "--slo", "ttft:p50<0.0001ms"]) == 1
    assert "none of these loads is within" in capsys.readouterr().out
    server.status, server.body = 500, "broken"
    assert main([*usual, "--concurrency", "1"]) == 1
    assert "HTTP 500: broken" in capsys.readouterr().err
    assert main(["bench", "--base-url", "http://127.0.0.1:9"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    async def interrupted(*words: Any, **named: Any) -> dict[str, Any]:
        if measured:
            raise KeyboardInterrupt
        measured.append(await run_asks(*words, **named))
        return measured[0]

    monkeypatch.setattr(bench, "run_asks", interrupted)
    file = tmp_path / "out.json"
    assert (
        main(["bench", "--base-url", server.url, "--concurrency", "2", "12", "--requests", "4", f"--json={file}"])
        == 130
    )
    assert "stopped; what was measured so far" in capsys.readouterr().err
    (level,) = json.loads(file.read_text())["levels"]
    assert (level["load"], level["requests"]) == (2.0, 4)
    file.write_text("of an earlier run")
    assert main(["bench", "--base-url", server.url, "--concurrency", "2", "--requests", "4", f"--json={file}"]) == 130
    assert "stopped; nothing was measured yet" in capsys.readouterr().err
    assert file.read_text() == "of an earlier run"
