"""The pages in headless Chromium, in front of a fake engine or of a real server. `scripts/ui` runs these tests."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server
from tests.integration.conftest import cache_dir, embedded_model_server, environment
from tests.tiny_tokenizer import CHATML_TEMPLATE, build_tiny_tokenizer
from tests.ui.browser import Chat, launch

__all__ = ["cache_dir", "embedded_model_server", "environment"]

Open = Callable[..., Chat]


class Actor(FakeEngine):
    """Says what a test writes into `reply`, at any length."""

    context = 1 << 20

    @property
    def info(self) -> EngineReady:
        return dataclasses.replace(super().info, context_length=self.context, max_total_tokens=self.context)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (scripts/ui installs it)")
    with api.sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A browser without any state of the page."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, locale="en-US")
    yield context
    context.close()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def actor(tokenizer: Tokenizer) -> Actor:
    return Actor(tokenizer, reply="Hello, wörld 🎉!")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ChatML that also writes the tool calls of earlier messages."""
    file = tmp_path_factory.mktemp("template") / "chat.jinja"
    calls = "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    macro = "{%- macro calls(message) %}" + calls + "{% endmacro %}"
    file.write_text(
        macro + CHATML_TEMPLATE.replace("(message.content or '')", "(message.content or '') + calls(message)")
    )
    return str(file)


@pytest.fixture
def open_chat(actor: Actor, context: Any, template: str) -> Iterator[Open]:
    """Opens the page of a server of the actor; the arguments are HttpConfig's."""
    flags = {
        "reasoning_parser": "qwen3",
        "tool_call_parser": "qwen25",
        "served_model_name": ("actor",),
        "chat_template": template,
    }
    servers = []

    def start(path: str = "/", **config: Any) -> Chat:
        server = running_server(actor, HttpConfig(**{**flags, **config}))
        servers.append(server)
        return Chat.open(context, server.__enter__() + path)

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def chat(open_chat: Open) -> Chat:
    return open_chat().wait_ready()
