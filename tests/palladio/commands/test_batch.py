"""`palladio batch` with an engine that says what it is told: order, failures, and what a kill leaves to do."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palladio.__main__ import main
from palladio.commands import batch
from palladio.commands.batch import run_batch
from palladio.flags.server_args import parse_server_args
from palladio.http.batches.offline_file import Requests
from palladio.runtime.interface.errors import ConfigError, EngineDeadError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl
from tests.source_tree import ROOT
from tests.tiny_tokenizer import build_tiny_tokenizer

ARGS = parse_server_args([MODEL]).args


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> batch._Work:
    monkeypatch.setattr(batch, "_POLL", 0.01)
    found = batch._Work(*(tmp_path / name for name in ("in.jsonl", "out.jsonl", "out.jsonl.errors", "out.jsonl.state")))
    found.file.write_bytes(jsonl(chat_line(number) for number in range(20)))
    return found


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


async def test_answers_come_in_the_lines_order(work: batch._Work, tokenizer: Tokenizer) -> None:
    ended = await run_batch(work, Requests.read(work.file), ARGS, FakeEngine(tokenizer))
    assert (ended.status, ended.completed, ended.failed) == ("completed", 20, 0)
    assert ids(work.output) == [f"line-{number}" for number in range(20)]
    assert not work.errors.exists()
    assert not work.state.exists()


async def test_what_a_kill_has_left_is_done_and_nothing_twice(
    work: batch._Work, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (chat_line(number, max_tokens=1 if number < 6 else 400) for number in range(20))
    work.file.write_bytes(jsonl(lines))
    requests, first = Requests.read(work.file), FakeEngine(tokenizer, reply="word " * 500)
    first.delay = 0.05
    task = asyncio.create_task(run_batch(work, requests, ARGS, first))
    while sum(call.finished for call in first.calls) < 6:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.2)  # what has an answer is kept within 30 ms
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not work.output.exists()
    done = {call.request_id for call in first.calls if call.finished}
    second = FakeEngine(tokenizer, reply="word")
    capsys.readouterr()
    ended = await run_batch(work, requests, ARGS, second)
    assert "Going on: 6 of 20 lines are done" in capsys.readouterr().err
    assert ended.completed == 20
    assert ids(work.output) == [f"line-{number}" for number in range(20)]
    assert len(done) == 6
    assert not done & {call.request_id for call in second.calls}
    assert len(second.calls) == 20 - len(done)


async def test_another_file_or_model_is_not_gone_on_with(work: batch._Work, tokenizer: Tokenizer) -> None:
    engine = FakeEngine(tokenizer)
    engine.start_error = EngineDeadError("no device")
    with pytest.raises(EngineDeadError):
        await run_batch(work, Requests.read(work.file), ARGS, engine)
    other = parse_server_args(["other/model"]).args
    with pytest.raises(ConfigError, match=r"begun with the model .*, not other/model: remove the --state folder"):
        await run_batch(work, Requests.read(work.file), other, FakeEngine(tokenizer))
    work.file.write_bytes(jsonl([chat_line(0)]))
    with pytest.raises(ConfigError, match="is not the one that this was begun with"):
        await run_batch(work, Requests.read(work.file), ARGS, FakeEngine(tokenizer))


def test_exit_codes(
    work: batch._Work, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(tokenizer)
    monkeypatch.setattr(batch, "_engine", lambda args, environment: engine)
    command = ["batch", str(work.file), "-o", str(work.output), f"--model-path={MODEL}"]
    work.file.write_bytes(jsonl([chat_line(0), chat_line(1, max_tokens=-1), "no json", chat_line(2)]))
    assert main(command) == 1
    told = capsys.readouterr()
    assert told.out.startswith("2 of 4 lines answered (")
    assert f"2 failed: {work.errors}" in told.err
    assert "Going on" not in told.err, "it is a new batch"
    assert ids(work.output) == ["line-0", "line-2"]
    assert len(work.errors.read_text().splitlines()) == 2
    assert main(command) == 2
    assert "is there already: give another name, or --overwrite" in capsys.readouterr().err
    engine = FakeEngine(tokenizer)
    work.file.write_bytes(jsonl([chat_line(0)]))
    assert main([*command, "--overwrite"]) == 0
    engine = FakeEngine(tokenizer)
    engine.start_error = EngineDeadError("no device")
    assert main([*command, "--overwrite"]) == 1
    for content, message in (
        (b"", "its first line is no request"),
        (b"{}\n", "its first line is no request"),
        (jsonl([chat_line(0, url="/v1/dance")]), "its first line is no request"),
    ):
        work.file.write_bytes(content)
        assert main([*command, "--overwrite"]) == 2
        assert message in capsys.readouterr().err
    assert main(["batch", "nowhere.jsonl", "-o", str(work.output), "--overwrite"]) == 2
    assert "FILE nowhere.jsonl: no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kill_of_the_process_loses_and_repeats_nothing(work: batch._Work) -> None:
    """With the embedded model: answers that were kept before the kill are those of the output."""
    bodies = ({"messages": [{"role": "user", "content": f"What is {number} plus 2?"}]} for number in range(150))
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": b} for n, b in enumerate(bodies)
    ]
    work.file.write_bytes(jsonl(lines))
    flags = ["--max-running-requests=4", "--context-length=512"]
    command = [sys.executable, "-m", "palladio", "batch", str(work.file), "-o", str(work.output), *flags]
    child = subprocess.Popen(command, cwd=ROOT)
    kept: dict[int, bytes] = {}
    deadline = time.monotonic() + 200
    while len(kept) < 20:
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.05)
        if (work.state / "palladio.db").exists():
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(sqlite3.connect(work.state / "palladio.db")) as db,
            ):
                kept = dict(db.execute("SELECT line, record FROM batch_results"))
    child.kill()
    child.wait()
    assert len(kept) < 150
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert result.returncode == 0, result.stderr
    assert ids(work.output) == [str(number) for number in range(150)]
    written = work.output.read_bytes().splitlines()
    assert {line: written[line - 1] for line in kept} == {line: record.strip() for line, record in kept.items()}
