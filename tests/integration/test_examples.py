"""Every file of examples/ runs as its README says, and prints what it promises."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palladio.flags.default_model import DEFAULT_MODEL_NAME, default_model_path
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server
from tests.integration.serving import Server
from tests.tiny_tokenizer import build_tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MAX_LINES = 45
PYTHON = os.environ.get("PALLADIO_EXAMPLES_PYTHON")  # with Ray and LangChain
OF_A_SERVER = {  # what each prints, as a regular expression
    "chat.py": r"(?s)The capital of France is Paris\.\n\(\d+ prompt tokens, \d+ completion tokens\)\n"
    r".+\n1\. .+\n2\. .+\n3\. .+\n\(\d+ prompt tokens, \d+ completion tokens\)\n",
    "structured.py": r"Anna, born on 3 May 1990 in Vienna\n",
    "tools.py": r"call: get_weather\(\{\"city\": \"Rome\"\}\)\nanswer: .*sunny.*\n",
    "batch.py": r"status: completed\n(question-0 .*Paris.*\n|question-1 .*language.*\n|question-2 .*42.*\n){3}",
    "responses.py": r"first: .*Zorbalin.*\nsecond: .*Zorbalin.*\n",
    "anthropic_messages.py": r"The capital of France is Paris\.\nstop reason: end_turn\n",
    "metrics.py": r"sglang:generation_tokens_total: 8 more\n",
    "update_weights.py": r"before: \S+\nupdate: Succeeded to update model weights\.\nanswered by: step-1\n",
}
ARGUMENTS = {"update_weights.py": ["--checkpoint", str(default_model_path())]}  # beside --base-url
OF_PACKAGES = {  # which need packages that the tests' environment lacks
    "langchain_agent.py": r"human: .*\nai: get_weather\(\{'city': 'Rome'\}\)\ntool: .*\nai: .*sunny.*\n",
    "ray_data.py": r"(?s).*What is 2 \+ 3\? -> .*\n.*the capital of France\? -> The capital of France is Paris\..*",
}
OFFLINE = {
    "offline.py": r"(?s)Once upon a time\|.+\nPython is\|.+\n",
    "embeddings_search.py": r"0\.\d+ The cat .*\n(0\.\d+ .*\n){2}",
    "rl_rollouts.py": r"(step \d: reward 0\.\d+, best 0\.\d+\n){8}",
}


@pytest.fixture
def server(embedded_model_server: Server) -> Iterator[Server]:
    yield embedded_model_server
    embedded_model_server.check_clean()


def run(*command: str) -> str:
    """What a command prints; it has to succeed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example in this process, which has imported the SDKs already; returns what it prints."""

    def start(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return start


def test_every_example_is_tested_and_in_the_readme() -> None:
    names = {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".sh")}
    assert names == {*OF_A_SERVER, *OF_PACKAGES, *OFFLINE, "curl.sh"}
    assert set(re.findall(r"^\| \[(.+?)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)) == names


def test_examples_are_short() -> None:
    lengths = {file.name: len(file.read_text().splitlines()) for file in EXAMPLES.iterdir() if file.suffix != ".md"}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


@pytest.mark.parametrize("name", OF_A_SERVER)
def test_example_of_a_client(server: Server, run_here: Callable[..., str], name: str) -> None:
    printed = run_here(name, "--base-url", server.url, *ARGUMENTS.get(name, ()))
    assert re.fullmatch(OF_A_SERVER[name], printed), printed


def test_example_of_curl(server: Server) -> None:
    models, answer, stream = re.split(
        r"^# .*\n", run("bash", str(EXAMPLES / "curl.sh"), "--base-url", server.url), flags=re.M
    )[1:]
    assert json.loads(models)["data"][0]["id"] == DEFAULT_MODEL_NAME
    text = json.loads(answer)["choices"][0]["message"]["content"]
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events) == text


def test_example_of_embeddings_with_a_server(run_here: Callable[..., str], tmp_path: Path) -> None:
    engine = FakeEngine(Tokenizer.load(build_tiny_tokenizer(tmp_path)))
    engine.embedding = EmbeddingSpec(8, "last", normalized=True)
    with running_server(engine, HttpConfig()) as url:
        assert len(run_here("embeddings_search.py", "--base-url", url).splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFLINE)
def test_example_without_a_server(environment: None, name: str) -> None:
    printed = run(sys.executable, str(EXAMPLES / name), "--model-path", str(default_model_path()))
    assert re.fullmatch(OFFLINE[name], printed), printed
    best = [float(value) for value in re.findall(r"best (\S+)", printed)]
    assert best == sorted(best)
    assert name != "rl_rollouts.py" or best[-1] > best[0], "the loop learns nothing"


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="`make examples` installs what they need and sets PALLADIO_EXAMPLES_PYTHON")
@pytest.mark.parametrize("name", OF_PACKAGES)
def test_example_with_packages_of_its_own(server: Server, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    printed = run(str(PYTHON), str(EXAMPLES / name), "--base-url", server.url)
    assert re.fullmatch(OF_PACKAGES[name], printed), printed
