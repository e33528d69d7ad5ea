"""`palladio replay`: dumps of the fake core, the same and not; and files that are no dumps."""

import asyncio
import contextlib
import json

import msgspec
import pytest

from palladio import __main__ as cli
from palladio.commands import replay as replay_module
from palladio.commands.replay import TOKENS_BEYOND, read_dump
from palladio.runtime.front.requests.crash_dump import FORMAT, CrashDump
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.process.process_transport import ProcessTransport
from tests.runtime.fake_core import FACTORY
from tests.runtime.process.crashes import QUEUED, kill, running, serve_and_queue, tokens, until


async def crash(folder, **flags):
    """Leaves a dump of a request that had finished, one that had not, and one that waited."""
    async with running(folder, QUEUED, crash_dump_folder=str(folder), **flags) as engine:
        await tokens(engine, "finished")
        served, waiting = await serve_and_queue(engine, 1, timeout=100.0)
        kill(engine)
        with contextlib.suppress(EngineDeadError):
            async for _ in served:
                pass
        await asyncio.gather(*waiting)
        await until(lambda: list(folder.glob("crash-*")))


@pytest.fixture(autouse=True)
def _logging(monkeypatch):
    """The command would set up the log of the whole process."""
    monkeypatch.setattr(replay_module, "configure_logging", lambda level, log_format: None)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    asyncio.run(crash(folder, max_queued_requests=2, request_timeout=90.0))
    (path,) = folder.glob("crash-*")
    return path


@pytest.fixture
def content(crashed):
    return json.loads(crashed.read_text())


@pytest.fixture
def replayed(monkeypatch, tmp_path):
    """Replays this content (with the fake core) and these flags; returns the exit status."""
    monkeypatch.setattr(replay_module, "ProcessTransport", lambda environment: ProcessTransport(FACTORY))

    def run(content, *flags):
        path = tmp_path / "dump.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return cli.main(["replay", str(path), *flags])

    return run


def test_the_same_tokens(replayed, content, capsys):
    count = len(content["requests"][1]["token_ids"])
    assert replayed(content) == 0
    assert capsys.readouterr().out == (
        f"replaying 3 requests\n3 requests, {20 + count} tokens compared: 3 equal, 0 different; "
        "2 were unfinished and compared up to the tokens recorded\n"
    )


def test_each_difference_is_named(replayed, content, capsys):
    finished, served, waiting = content["requests"]
    finished["token_ids"][4] = 383
    served["token_ids"] = served["token_ids"][:2]
    served["token_ids"][1] += 1
    waiting["token_ids"] = [token + 1 for token in finished["token_ids"][:1]]
    waiting["request"]["request_id"] = "w\n\x1b[2J~2"
    assert replayed(content) == 1
    out = capsys.readouterr().out
    assert "request 0 (finished~0): token 4: expected 383, got " in out
    assert "request 1 (served~1): token 1: expected " in out
    assert r"request 2 (w\n\x1b[2J~2): token 0: expected " in out
    assert "3 requests, 23 tokens compared: 0 equal, 3 different" in out
    assert "Without --deterministic" in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sample: sample["token_ids"].append(9), "token 20: expected 9, got end of output (length)"),
        pytest.param(
            lambda sample: sample["token_ids"].pop(),
            "token 19: expected end of output (length), got ",
            marks=pytest.mark.slow,
        ),
        (lambda sample: sample["finish"].update(type="stop", matched=7), "end of output: expected stop 7, got length"),
        pytest.param(
            lambda sample: sample["request"].update(prompt_ids=[9999]),
            "ended with an error after 0 tokens: prompt",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ends_differ_too(replayed, content, capsys, change, message):
    change(content["requests"][0])
    assert replayed(content) == 1
    assert f"request 0 (finished~0): {message}" in capsys.readouterr().out.replace("the prompt", "prompt")


def test_what_had_not_ended_runs_a_little_further_and_no_more(replayed, content):
    """So the engine fails again if the next token is what made it fail; and the rest costs nothing."""
    served = content["requests"][1]
    content["requests"] = [served]
    count = len(served["token_ids"])
    for step, status in ((count + TOKENS_BEYOND, 1), (count + TOKENS_BEYOND + 20, 0)):
        knobs = json.dumps({"die_at_step": step, "step_delay": 0.01})
        assert replayed(content, "--json-model-override-args", knobs) == status


def test_flags_replace_those_of_the_dump(replayed, content, capsys):
    content["flags"]["model_path"] = "/nowhere/at/all"
    assert replayed(content) == 2
    assert "/nowhere/at/all" in capsys.readouterr().err
    content["flags"]["trust_remote_code"] = True
    config = replay_module._configure(
        msgspec.convert(content, CrashDump, str_keys=True),
        ["--model-path", "elsewhere", "--deterministic", "--log-level", "error"],
    )
    assert (config.source.model_path, config.source.trust_remote_code) == ("elsewhere", True)
    assert (config.execution.deterministic, config.survival.crash_dump_folder) == (True, None)
    assert (config.scheduler.max_queued_requests, config.scheduler.request_timeout) == (None, None)
    assert config.survival.max_engine_restarts == 0
    assert content["flags"]["max_queued_requests"] == 2


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (lambda content: "not json", (), "is not a crash dump: not valid JSON"),
        (lambda content: "[1]", (), "is not a crash dump: `format` or `requests` is missing"),
        (lambda content: {"requests": []}, (), "is not a crash dump: `format` or"),
        (lambda content: content | {"format": FORMAT + 1}, (), f"has format {FORMAT + 1}, but this version"),
        (lambda content: content | {"requests": [{}]}, (), "is corrupt or from another version (palladio "),
        (lambda content: content | {"flags": {"no_such": 1}}, (), "unknown flag --no-such"),
        (lambda content: content, ("--port", "80", "--api-key", "x"), "--api-key, --port: `palladio replay`"),
        (lambda content: content, ("--page-sise", "8"), "unknown flag --page-sise; did you mean --page-size"),
    ],
)
def test_mistakes_are_named(replayed, content, capsys, change, flags, message):
    assert replayed(change(content), *flags) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_file_that_is_not_there(capsys, tmp_path):
    assert cli.main(["replay", str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file or directory" in capsys.readouterr().err


def test_help(capsys):
    assert cli.main(["replay", "--help"]) == 0
    assert "palladio replay DUMP" in capsys.readouterr().out
    assert cli.main(["replay"]) == 2


def test_everything_survives_the_file(crashed, content):
    dump = read_dump(crashed)
    assert [sample.token_ids for sample in dump.requests] == [sample["token_ids"] for sample in content["requests"]]
    assert dump.requests[2].request.options.timeout == 100.0
    assert dump.flags == content["flags"]
