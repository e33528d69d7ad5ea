"""Keys, prefixes, errors in words, and a server that goes away."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.runtime.interface.errors import ContextLengthError, EngineDeadError, OverloadedError
from tests.integration.serving import Server
from tests.ui.browser import Chat
from tests.ui.conftest import Actor, Open

pytestmark = pytest.mark.browser


def test_the_key_is_asked_once_and_kept_for_the_tab(open_chat: Open, context: Any) -> None:
    chat = open_chat(api_key="wörd-secret".encode().decode("latin-1"))
    chat.page.wait_for_selector("#dialog[open]")
    chat.page.keyboard.press("Escape")
    assert chat.page.locator(".notice").count() == 1
    chat.page.reload()
    chat.page.wait_for_selector("#dialog[open]")


def test_a_wrong_key_is_asked_again(open_chat: Open, context: Any) -> None:
    chat = open_chat(api_key="secret")
    page = chat.page
    for key, hint in (("wrong", "asks for a key"), ("secret", "does not take this key")):
        page.wait_for_selector("#dialog[open]")
        chat.wait(f"document.querySelector('#dialog').innerText.includes('{hint}')")
        page.keyboard.type(key)
        page.keyboard.press("Enter")
    chat.wait_ready()
    chat.say("hi")
    page.reload()
    chat.wait_ready()
    assert page.locator("#dialog[open]").count() == 0
    assert page.evaluate("localStorage.length ? JSON.stringify(localStorage) : ''").count("secret") == 0
    other = Chat.open(context, chat.url)
    other.page.wait_for_selector("#dialog[open]")
    page.click("#open-settings")
    page.get_by_role("button", name="Forget the API key").click()
    page.reload()
    page.wait_for_selector("#dialog[open]")
    chat.check_harmless()


@contextlib.contextmanager
def proxy(port: int, prefix: str) -> Iterator[str]:
    """A reverse proxy that strips a prefix, as nginx does; it answers everything else with a 404."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(prefix.encode() + b"/"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            else:
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
                lines = [line for line in rest.split(b"\r\n") if not line.lower().startswith(b"connection:")]
                first = b"%s %s " % (method, path[len(prefix) :])
                up_writer.write(first + b"\r\n".join([lines[0], b"connection: close", *lines[1:]]))
                body = asyncio.create_task(_pipe(reader, up_writer))
                await _pipe(up_reader, writer)
                body.cancel()
                up_writer.close()
        writer.close()

    async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(serve, "127.0.0.1", 0), loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{prefix}/"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)


@pytest.mark.parametrize("root_path", ["/llm/one", ""])
def test_under_a_prefix_that_a_proxy_strips(open_chat: Open, context: Any, root_path: str) -> None:
    """With --root-path, and without: relative addresses do, as long as the address ends with a slash."""
    direct = open_chat(root_path=root_path)
    with proxy(httpx.URL(direct.url).port or 0, "/llm/one") as url:
        chat = Chat.open(context, url).wait_ready()
        chat.say("hi")
        assert chat.texts() == ["Hello, wörld 🎉!"]
        chat.check_harmless()
        assert all("/llm/one/" in address for address in chat.addresses)
    if root_path:
        direct.wait_ready()  # and without the proxy
        assert direct.page.goto(direct.url.rstrip("/") + root_path + "/").status == 200
        direct.wait_ready()


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (
            ContextLengthError("The input (9 tokens) is too long (8)", param="prompt"),
            "The input (9 tokens) is too long (8).",
        ),
        (OverloadedError("64 requests wait already (--max-queued-requests)"), "64 requests wait already"),
    ],
)
def test_errors_are_told_in_the_servers_words(chat: Chat, actor: Actor, refusal: Exception, words: str) -> None:
    actor.refuse = refusal
    chat.say("hi")
    assert words in chat.page.locator("article .error").inner_text()
    actor.refuse = None
    chat.act("retry")
    chat.shows(["Hello, wörld 🎉!"])


def test_an_answer_that_breaks_off_says_so_and_can_be_had_again(chat: Chat, actor: Actor) -> None:
    actor.fail, actor.fail_after = EngineDeadError("the engine process ended with exit code -9"), 3
    chat.say("hi")
    assert "exit code -9" in chat.page.locator("article .error").inner_text()
    assert chat.texts()[-1].startswith("H")
    actor.fail = None
    chat.act("retry")
    chat.shows(["Hello, wörld 🎉!"])


def test_a_message_waits_until_the_engine_is_back(chat: Chat, actor: Actor) -> None:
    actor.state = "restarting"
    chat.say("hi", waits=False)
    chat.wait("document.querySelector('.waiting')?.innerText.includes('as soon as the server is ready')")
    chat.wait("document.getElementById('state').innerText.includes('restarting')")
    actor.state = "ready"
    chat.wait_answered()
    assert chat.texts() == ["Hello, wörld 🎉!"]
    chat.wait("document.getElementById('state').innerText === ''")


def test_the_page_loads_while_the_engine_starts(open_chat: Open, actor: Actor) -> None:
    actor.state = "starting"
    chat = open_chat()
    chat.wait("document.getElementById('state').innerText.includes('starting')")
    actor.state = "ready"
    chat.wait_ready()
    chat.say("hi")


def _engine_of(server: Server) -> int:
    """The child process with the most memory."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return max(map(int, children), key=lambda child: int(Path(f"/proc/{child}/statm").read_text().split()[1]))


def test_the_engine_of_a_real_server_dies(embedded_model_server: Server, context: Any) -> None:
    chat = Chat.open(context, embedded_model_server.url + "/").wait_ready()
    chat.say("Tell me a story.")
    os.kill(_engine_of(embedded_model_server), signal.SIGKILL)
    time.sleep(0.3)
    chat.say("Tell me another story.", waits=False)
    chat.wait("!document.querySelector('.streaming')", 120)
    if chat.page.locator("article .error").count():  # it was told of the death; the next one waits
        chat.act("retry")
        chat.wait("!document.querySelector('.streaming')", 120)
    assert len(chat.texts()[-1]) > 20
    assert chat.page.locator("article .error").count() == 0
    chat.check_harmless()


@pytest.mark.parametrize("path", ["/llm", "/llm/", "/llm/dashboard"])
def test_behind_a_prefix_the_skip_link_stays_on_the_page(open_chat: Open, path: str) -> None:
    chat = open_chat(path, root_path="/llm")
    chat.page.wait_for_selector(".skip", state="attached")
    chat.wait("document.getElementById('model').textContent.includes('actor')")
    chat.page.evaluate("window.isSame = true")
    chat.page.focus(".skip")
    chat.page.keyboard.press("Enter")
    time.sleep(0.2)
    assert chat.page.evaluate("window.isSame")
    assert chat.page.evaluate("document.activeElement.id") == ("main" if path.endswith("dashboard") else "prompt")


def test_a_browser_that_stores_nothing_has_a_page_too(open_chat: Open, context: Any) -> None:
    refuse = "{ get() { throw new DOMException('denied', 'SecurityError'); } }"
    names = ("sessionStorage", "localStorage", "indexedDB")
    context.add_init_script(";".join(f"Object.defineProperty(window, '{name}', {refuse})" for name in names))
    chat = open_chat().wait_ready()
    assert "does not let the page store" in chat.page.locator(".notice").inner_text()
    chat.say("hi")
    assert chat.texts() == ["Hello, wörld 🎉!"]
    chat.page.click("#new-chat")
    chat.page.get_by_role("button", name="hi", exact=True).click()
    chat.shows(["Hello, wörld 🎉!"])
    chat.check_harmless()
