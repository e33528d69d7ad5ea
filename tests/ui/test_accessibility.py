"""Without a mouse, with a screen reader, on a phone, in both themes."""

import json
from typing import Any

import pytest

from tests.ui.browser import Chat
from tests.ui.conftest import Actor, Open

pytestmark = pytest.mark.browser
RICH = """<think>Hm.</think>

## A heading

Text with **bold**, `code`, $x^2$ and [a link](https://example.com/).

```python
def f(x):
    return x  # the same
```

| a | b |
|---|--:|
| 1 | 2 |

1. one
2. two

> quoted
"""


def focused(chat: Chat) -> str:
    names = "document.activeElement.id || document.activeElement.getAttribute('aria-label')"
    return chat.page.evaluate(f"{names} || document.activeElement.innerText")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1200, 800), (390, 780)])
def test_axe_finds_nothing(open_chat: Open, context: Any, actor: Actor, theme: str, size: tuple[int, int]) -> None:
    chat = open_chat().wait_ready()
    page = chat.page
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    assert chat.axe() == []
    page.click("#open-settings")
    page.check("[name=probabilities]")
    page.check("[name=timeline]")
    page.select_option("[name=format]", "schema")
    page.fill("[name=schema]", "{")
    page.fill("[name=tools]", '[{"name": "f", "parameters": {"type": "object"}}]')
    assert chat.axe() == []
    page.select_option("[name=format]", "text")
    page.keyboard.press("Escape")
    actor.reply = RICH
    page.set_input_files("#files", [{"name": "notes.md", "mimeType": "text/markdown", "buffer": b"text"}])
    chat.say("hi")
    actor.reply = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    chat.act("retry")
    page.wait_for_selector(".call-result textarea")
    chat.wait_answered()
    actor.reply = RICH
    chat.page.fill(".call-result textarea", "done")
    chat.page.click(".call-result button")
    chat.wait("document.querySelectorAll('article').length === 4")
    chat.wait_answered()
    page.locator(".tokens summary").last.click()
    page.locator(".thinking summary").last.click()
    page.wait_for_selector("math")
    assert chat.axe() == []
    if size[0] < 800:
        page.click("#open-sidebar")
        page.wait_for_timeout(300)
    page.get_by_role("button", name="More about").click()
    assert chat.axe() == []
    chat.check_harmless()


def test_the_page_fits_a_phone(open_chat: Open, context: Any, actor: Actor) -> None:
    actor.reply = RICH + "\n\n" + "unbreakable" * 40 + "\n\n| " + " | ".join(["wide"] * 30) + " |\n" + "|-" * 30 + "|"
    chat = open_chat().wait_ready()
    chat.page.set_viewport_size({"width": 320, "height": 640})
    chat.say("hi")
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 320
    assert chat.page.evaluate(
        "document.getElementById('thread').scrollWidth <= document.getElementById('thread').clientWidth"
    )
    box = chat.page.locator("#prompt").bounding_box()
    assert box["x"] >= 0
    assert box["y"] + box["height"] <= 640
    small = chat.page.evaluate(
        "[...document.querySelectorAll('button')].map((each) => [each.getBoundingClientRect().height, each])"
        ".filter(([height, each]) => each.checkVisibility() && height > 0 && height < 24)"
        ".map(([, each]) => each.outerHTML)"
    )
    assert small == [], "targets under 24 pixels"


def test_keys_alone_do_everything(chat: Chat, actor: Actor) -> None:
    page, keys = chat.page, chat.page.keyboard
    assert focused(chat) == "prompt"
    keys.type("first")
    keys.press("Shift+Enter")
    keys.type("line two")
    keys.press("Enter")
    chat.wait("document.querySelectorAll('article.assistant').length === 1")
    chat.wait_answered()
    assert chat.texts("user") == ["first\nline two"]
    assert focused(chat) == "prompt"
    keys.press("ArrowUp")  # edits the last message
    assert focused(chat) == "Edit the message"
    keys.press("Escape")
    assert focused(chat) == "Edit"
    keys.press("/")
    assert focused(chat) == "prompt"
    page.locator("#thread").focus()
    order = []
    for _ in range(40):
        keys.press("Tab")
        order.append(focused(chat))
        if order[-1] == "prompt":
            break
    assert order == ["Copy", "Edit", "Delete", "Copy", "Edit", "Another answer", "Timeline", "Delete", "prompt"]
    keys.press("Control+Shift+O")
    assert chat.texts("user") == []
    keys.press("Control+k")
    assert focused(chat) == "find"
    keys.press("Tab")
    keys.press("Enter")
    chat.wait("document.querySelectorAll('article').length === 2")
    page.locator("#thread").focus()
    keys.press("?")
    assert page.locator("#dialog[open]").count() == 1
    keys.press("Escape")
    assert focused(chat) == "thread"
    keys.press("Control+,")
    assert page.locator("#dialog").inner_text().startswith("Settings")
    keys.press("Escape")
    actor.reply, actor.delay = "word " * 500, 0.01
    keys.press("/")
    keys.type("stop me")
    keys.press("Enter")
    chat.wait("document.querySelector('.send.stop')")
    keys.press("Escape")
    chat.wait_answered()


def test_a_screen_reader_hears_sentences_not_tokens(chat: Chat, actor: Actor) -> None:
    page = chat.page
    page.evaluate(
        "window.heard = []; const region = document.getElementById('announcer');"
        "new MutationObserver(() => heard.push(region.textContent))"
        ".observe(region, {childList: true, characterData: true, subtree: true}); undefined"
    )
    actor.reply, actor.delay = "This is one sentence. " * 40, 0.01
    chat.say("talk")
    heard = page.evaluate("heard")
    assert heard[0] == "The assistant answers."
    assert heard[-1].endswith("End of the answer.")
    assert 2 <= len(heard) <= 8
    middle = heard[1:-1]
    assert middle
    assert all(each.rstrip().endswith(".") for each in middle)
    assert page.locator("#announcer").get_attribute("aria-live") == "polite"
    assert page.locator("#messages [aria-live]").count() == 0, "the answer itself is not read while it grows"


def test_motion_is_reduced_and_the_theme_is_kept(chat: Chat) -> None:
    page = chat.page
    page.emulate_media(reduced_motion="reduce", color_scheme="light")
    longest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('*')].map((each) => getComputedStyle(each))"
        ".map(({ transitionDuration }) => parseFloat(transitionDuration)))"
    )
    assert longest == 0
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != ground
    page.reload()
    chat.wait_ready()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert json.loads(page.evaluate("localStorage['palladio.preferences']"))["theme"] == "dark"
