"""Blocks of Python and calls of curl on the pages for users run against a server, and print what they promise.

tests/docs/test_blocks.py sees to it that these are all of them.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.flags.default_model import default_model_path
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.docs.doc_blocks import blocks
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server
from tests.integration.serving import Server
from tests.tiny_tokenizer import build_tiny_tokenizer

ADDRESS = "http://127.0.0.1:30000"
OFFLINE = ("docs/first-minutes.md", "Generate offline, without a server")
EMBEDDINGS = ("docs/clients.md", "Make embeddings")
RUN_BATCH = ("docs/batches.md", "Run a batch")
# Page and heading of each block of Python → what it prints, as a regular expression.
PRINTED = {
    ("docs/first-minutes.md", "Send a request"): r".+\n",
    OFFLINE: r"(.+\n){2}",
    RUN_BATCH: r"(story-\d .+\n+){3}",
    ("docs/clients.md", "Stream an answer"): r".*Paris.*",
    ("docs/clients.md", "Get JSON"): r"\{'city': '.*', 'is_capital': (True|False)\}\n",
    ("docs/clients.md", "Call tools"): r"get_weather \{'city': '.*'\}\n",
    EMBEDDINGS: r"2 vectors of 8 numbers\n",
    ("docs/clients.md", "Use Anthropic's SDK"): r".*Paris.*\n",
    ("docs/clients.md", "Set what SDKs do not know"): r"\d{3}\n",
}
# The same of those that need Ray; tests/integration/test_ray_serve.py runs them.
OF_RAY = {
    ("docs/ray.md", "Serve replicas"): r".*ready\n",
    ("docs/ray.md", "Bulk jobs through a server"): r"(What is \d+ \+ 1\? -> .+\n){20}",
    ("docs/ray.md", "Bulk jobs without a server"): r"(Story \d+: -> .*\n)(.*\n)*",
}
# The same for calls of curl; a page may have several under one heading.
UPDATE = ("docs/rl.md", "Reinforcement learning: change the weights of a running server")
CHAT = r'\{"id":.*"content":".+'
CURL = {
    ("README.md", "The first request"): CHAT,
    ("docs/first-minutes.md", "Send a request"): CHAT,
    UPDATE: r'\{"success":true,.*"message":"Succeeded to update model weights\.".*\}',
    ("docs/api/chat.md", "Chat completions"): CHAT,
    ("docs/api/chat.md", "Completions"): r'\{"id":.*"text":".+',
    ("docs/api/chat.md", "Several conversations"): r'\{"id":.*"index":1.*',
    ("docs/api/chat.md", "Progress of a prompt"): r'(?s)data: \{.*"prompt_progress":.*data: \[DONE\]\n\n',
    ("docs/api/chat.md", "Streams"): r"(?s)(data: \{.+\}\n\n){2,}data: \[DONE\]\n\n",
    ("docs/api/responses.md", "Responses"): r'\{"id":"resp_.*"output_text".*',
    ("docs/api/anthropic.md", "Anthropic's messages"): r'\{"id":"msg_.*"text":".+',
    ("docs/api/ollama.md", "Ollama"): r'\{"model":.*"content":".+',
    ("docs/api/generate.md", "Generate"): r'\{"text":".+',
    ("docs/api/generate.md", "Tokenize and detokenize"): r'\{.*"count":[1-9].*',
    (
        "docs/api/structured-output.md",
        "Structured output",
    ): r'.*"content":"\{\s*\\"is_capital\\"\s*:\s*(true|false)\s*\}".*',
    ("docs/api/reasoning-and-tools.md", "Tools"): r'.*"name":"get_weather","arguments":"\{\\"city\\": ?\\"Rome\\"\}".*',
    ("docs/api/server.md", "Models"): r'\{"object":"list","data":\[\{"id":"palladio-default-.*',
    ("docs/api/server.md", "Capabilities"): r'\{.*"routes":.*',
    ("docs/api/server.md", "The dashboard's data"): r"\{.*\}",
    ("docs/api/server.md", "The load, for routers"): r'\{.*"loads":\[.*',
    ("docs/api/server.md", "For clients of llama.cpp"): r'\{"prompt":".*What is Python\?.*"\}',
}
CODE = {(block.page, block.heading): block.text for block in blocks() if block.language == "python"}
CALLS = {
    (block.page, block.heading): command
    for block in blocks()
    if block.language == "bash"
    for command in block.commands
    if command.startswith("curl ")
}


@pytest.fixture
def server(embedded_model_server: Server) -> Iterator[Server]:
    yield embedded_model_server
    embedded_model_server.check_clean()


@pytest.mark.parametrize("place", [place for place in PRINTED if place != OFFLINE], ids=" ".join)
def test_python(
    server: Server,
    place: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # for files that a block writes
    code = CODE[place]
    assert code.count(ADDRESS) == 1
    if place == RUN_BATCH:  # shorter: three lines, asked for more often
        code = (
            code.replace("range(100)", "range(3)")
            .replace("sleep(3)", "sleep(0.2)")
            .replace('"max_tokens": 100', '"max_tokens": 16')
        )
        assert "range(3)" in code
    if place == EMBEDDINGS:
        engine = FakeEngine(Tokenizer.load(build_tiny_tokenizer(tmp_path)))
        engine.embedding = EmbeddingSpec(8, "last", normalized=True)
        with running_server(engine, HttpConfig()) as url:
            exec(code.replace(ADDRESS, url), {})
    else:
        exec(code.replace(ADDRESS, server.url), {})
    printed = capsys.readouterr().out
    assert re.fullmatch(PRINTED[place], printed, re.DOTALL), printed


@pytest.mark.parametrize("place", CURL, ids=" ".join)
def test_curl(server: Server, place: tuple[str, str]) -> None:
    """Each of them with `--fail`: an error's status is a failure."""
    assert CALLS[place].count(ADDRESS) == 1
    call = CALLS[place].replace(ADDRESS, server.url).replace("/checkpoints/step-100", str(default_model_path()))
    call = call.replace("curl ", "curl --fail-with-body --silent --show-error ", 1)
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(CURL[place], done.stdout), done.stdout


@pytest.mark.slow
def test_offline_python(environment: None) -> None:
    code = CODE[OFFLINE]
    assert code.count("/path/to/hf-dir") == 1
    code = code.replace("/path/to/hf-dir", str(default_model_path()))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert len(done.stdout.splitlines()) >= 2
