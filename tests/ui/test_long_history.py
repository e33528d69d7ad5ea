"""A conversation of ten thousand messages stays a page that answers. How fast: benchmarks/serving/ui.py."""

import json
import time

import pytest

from tests.ui.browser import Chat
from tests.ui.conftest import Actor

pytestmark = pytest.mark.browser
NUMBER = 10_000
FAR_TOO_LONG = 3.0  # seconds: drawing all of them takes longer than that by far


def test_ten_thousand_messages(chat: Chat, actor: Actor) -> None:
    page = chat.page
    text = "A paragraph with **bold** text.\n\n- one\n- two\n\n```py\nx = 1\n```\n\n$x^2$"
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"Message {n}. {text}"} for n in range(NUMBER)]
    page.click("#open-settings")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    content = json.dumps(messages).encode()
    chooser.value.set_files({"name": "history.json", "mimeType": "application/json", "buffer": content})
    chat.wait(f"document.querySelectorAll('article').length === {NUMBER}", 60)
    page.reload()
    chat.wait(f"document.querySelectorAll('article').length === {NUMBER}", 60)
    chat.wait("!document.querySelector('.span:last-child > article:last-child').classList.contains('sketch')")
    assert page.evaluate("document.querySelectorAll('article:not(.sketch)').length") < 200, "only those near are drawn"
    assert f"Message {NUMBER - 1}." in chat.texts()[-1]
    longest = 0.0
    for place in (0.0, 0.5, 0.25, 0.99):
        begun = time.monotonic()
        page.evaluate(f"const t = document.getElementById('thread'); t.scrollTop = t.scrollHeight * {place}; undefined")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        longest = max(longest, time.monotonic() - begun)
    assert longest < FAR_TOO_LONG
    chat.wait("document.querySelectorAll('article:not(.sketch)').length < 1000")
    begun = time.monotonic()
    page.keyboard.type("quick")
    assert time.monotonic() - begun < FAR_TOO_LONG
    page.fill("#prompt", "")
    page.click("#new-chat")
    page.locator(".entry").first.click()
    chat.wait(f"document.querySelectorAll('article').length === {NUMBER}")
    actor.reply = "short"
    page.fill("#prompt", "And now?")
    page.press("#prompt", "Enter")
    chat.wait(f"document.querySelectorAll('article').length === {NUMBER + 2}")
    chat.wait_answered()
    assert page.locator("article").last.locator(".content").inner_text() == "short"
    assert (
        page.evaluate("const t = document.getElementById('thread'); t.scrollHeight - t.scrollTop - t.clientHeight") < 5
    )
    chat.check_harmless()
