"""Servers for the documents' cells: the first cell starts one, the last one ends it."""

from collections.abc import Callable, Iterator

import openai
import pytest

from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.integration.serving import LIMITS, MODEL, Server, launch_command
from tests.scripted_model import build_scripted_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

REASONING, ANSWER = "Okay", "Paris!"
_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{{- '<|im_start|>assistant\\n' }}"
)
TEMPLATES = {
    "qwen3": _TEMPLATE
    + "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think></think>' }}{%- endif %}",
    "deepseek-v3": _TEMPLATE + "{%- if thinking is defined and thinking %}{{- '<think>' }}{%- else %}"
    "{{- '</think>' }}{%- endif %}",
}


@pytest.fixture
def port(server: Server) -> str:
    return server.url.rpartition(":")[2]


@pytest.fixture
def client(port: str) -> Iterator[openai.Client]:
    """Make a client as the documents do."""
    with openai.Client(base_url=f"http://127.0.0.1:{port}/v1", api_key="None") as client:
        yield client


@pytest.fixture(scope="session")
def thinking_server(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Start servers of a reasoning parser, with a model that thinks `REASONING`, then answers `ANSWER`, as its template
    lets it."""
    folder = tmp_path_factory.mktemp("thinking")
    tokenizer = Tokenizer.load(build_tiny_tokenizer(folder / "tokenizer"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, False)

    end = ids("</think>")
    script = [*ids("\n"), *ids("<think>"), *ids(REASONING), *end]
    model = build_scripted_checkpoint(folder / "model", [script, [*end, *ids(ANSWER), *ids("<|im_end|>")]])
    servers: dict[str, Server] = {}

    def start(name: str) -> Server:
        if name not in servers:
            file = folder / f"{name}.jinja"
            file.write_text(TEMPLATES[name], encoding="utf-8")
            flags = f"{LIMITS} --compile lazy --served-model-name {MODEL}"
            flags += f" --reasoning-parser {name} --chat-template {file}"
            servers[name] = Server(launch_command(model, flags), folder / f"{name}.log")
        return servers[name]

    yield start
    for server in servers.values():
        server.stop()


@pytest.fixture
def qwen3_port(thinking_server: Callable[[str], Server]) -> str:
    return thinking_server("qwen3").url.rpartition(":")[2]


@pytest.fixture
def deepseek_v3_port(thinking_server: Callable[[str], Server]) -> str:
    return thinking_server("deepseek-v3").url.rpartition(":")[2]
