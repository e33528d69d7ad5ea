"""The commands as a whole: their help, exit codes that the help tells, and the shells' completion."""

import importlib
import inspect
import shutil
import subprocess
import sys

import pytest

from palladio.__main__ import main
from palladio.cli.completion import _flags_of
from palladio.cli.table import COMMANDS, OTHERS
from palladio.flags.server_args import own_flags
from tests.source_tree import ROOT


def test_help_lists_all_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n  {name} ") for name in (*COMMANDS, *OTHERS)]
    assert places == sorted(places)
    assert max(map(len, text.splitlines())) <= 120
    assert main([]) == 0
    assert capsys.readouterr().out == text


NEED_A_DEVICE = ("batch", "compile")  # and wait for none that another process has


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"serve"}))
def test_each_help_has_examples_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    module = importlib.import_module(COMMANDS[name].module)
    assert list(inspect.signature(vars(module)[COMMANDS[name].function]).parameters) == ["argv", "environment"]
    try:
        status = main(["help", name])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 0
    text = capsys.readouterr().out
    examples = text.split("examples:\n")[1].split("\n\n")[0]
    assert f"palladio {name}" in examples
    codes = [line.split()[0] for line in text.split("exit codes:\n")[1].splitlines() if line.strip()]
    assert codes == ["0", "1", "2", *(["75"] if name in NEED_A_DEVICE else []), "130"]
    assert max(map(len, text.splitlines())) <= 120


def test_a_misspelt_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown command 'sevre'; did you mean serve?")
    assert main(["help", "sevre"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown command 'sevre'; did you mean serve?")
    assert main(["help", "version"]) == 0
    assert main(["--model-path", "m"]) == 2
    assert capsys.readouterr().err.startswith("error: --model-path: a command comes first, such as `palladio serve --m")


def test_completion_knows_the_flags_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    serve = {flag.name: flag for flag in _flags_of("serve")}
    assert {f"--{name.replace('_', '-')}" for name in own_flags()} <= serve.keys()
    assert "float16" in serve["--dtype"].values
    assert {"--prompt", "--model-path"} <= {flag.name for flag in _flags_of("run")}
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        text = capsys.readouterr().out
        assert all(name in text for name in (*COMMANDS, *OTHERS))
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["s"], "serve"),
        (["serve", "--tp-s"], "--tp-size"),
        (["serve", "--dtype", "float1"], "float16"),
        (["bench", "--sweep", ""], "rate concurrency"),
        (["completion", ""], "bash zsh fish"),
        (["help", "comp"], "compile completion"),
        (["run", "--verb"], "--verbose"),
        (["serve", "--quantization", "w8"], "w8a8_int8 w8a8_fp8"),
    ],
)
def test_bash_completes(typed: list[str], expected: str, bash_completion: str) -> None:
    words = " ".join(f"'{word}'" for word in ("palladio", *typed))
    script = f'{bash_completion}\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _palladio; echo "${{COMPREPLY[@]}}"'
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == expected


@pytest.fixture(scope="module")
def bash_completion(request: pytest.FixtureRequest) -> str:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled(), pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("builtins.print", lambda text, end="\n": written.append(text))
        assert main(["completion", "bash"]) == 0
    return written[0]


WORKER = """from palladio.server.launch import run_worker
raise SystemExit(run_worker(lambda: print("x" * 100000)))"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("-m palladio list --json", marks=pytest.mark.slow, id="command"),
        pytest.param(f"-c '{WORKER}'", id="worker"),
    ],
)
def test_a_reader_that_goes_away_is_no_error(words: str) -> None:
    command = f"{sys.executable} {words} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("141\n", "")
