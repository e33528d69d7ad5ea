"""What the model writes never runs, never loads anything, and never gets in the way of the page."""

import json
import re
import time

import pytest

from tests.ui.browser import Chat
from tests.ui.conftest import Actor, Open
from tests.ui.corpus import CORPUS, LINKS, MATHS

pytestmark = pytest.mark.browser

PROBES = tuple(f"alert({number})" for number in range(100))


def press_everything(chat: Chat) -> None:
    """Follows what can be pressed in the last answer, but for links to other sites, which are looked at instead."""
    article = chat.page.locator("article.assistant").last
    for link in article.locator("a").all():
        assert re.match(r"https?://((good|evil)\.example|user)/|mailto:", link.get_attribute("href"))
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
        assert link.get_attribute("target") == "_blank"
    article.locator(".content").dispatch_event("mouseover")
    chat.page.keyboard.press("Tab")


@pytest.mark.parametrize("part", range(4))
def test_nothing_of_the_corpus_runs(chat: Chat, actor: Actor, part: int) -> None:
    """Several entries in a message, and each kind of block after another, as it streams and after a reload."""
    entries = CORPUS[part::4]
    actor.reply = "\n\n".join(entries)
    chat.say("go on")
    chat.check_harmless()
    press_everything(chat)
    chat.page.reload()
    chat.wait_ready()
    chat.page.wait_for_selector("article.assistant:not(.sketch)")
    chat.check_harmless()
    assert chat.page.evaluate("document.title").endswith("Palladio")
    assert chat.page.url.rstrip("/") == chat.url.rstrip("/")
    assert chat.page.locator("dialog[open]").count() == 0


def test_text_shows_what_was_written(chat: Chat, actor: Actor) -> None:
    actor.reply = "<script>alert(1)</script> and **bold** <b>not bold</b> &lt;i&gt;"
    chat.say("write")
    assert chat.texts() == ["<script>alert(1)</script> and bold <b>not bold</b> <i>"]
    assert chat.page.locator("article strong").inner_text() == "bold"


def test_links_lead_to_other_sites_alone(chat: Chat, actor: Actor) -> None:
    actor.reply = "\n\n".join((*LINKS, f"[own]({chat.url}flush_cache)", f"{chat.url}flush_cache"))
    chat.say("links")
    hrefs = [link.get_attribute("href") for link in chat.page.locator("article a").all()]
    assert "https://good.example/" in hrefs
    others = {href for href in hrefs if not href.startswith("https://good.example/")}
    assert all(href.startswith(("https://evil.example/", "http://user/")) for href in others)


def test_pictures_are_never_loaded(chat: Chat, actor: Actor) -> None:
    actor.reply = "![a map](https://evil.example/track.png?who=me) ![x](data:image/png;base64,AAAA)"
    chat.say("pictures")
    time.sleep(0.2)
    assert chat.page.locator("article .content img").count() == 0
    assert [each.inner_text() for each in chat.page.locator("article .picture").all()] == ["picture: a map"]
    chat.check_harmless()


def test_formulas_are_mathml_without_links_or_foreign_elements(chat: Chat, actor: Actor) -> None:
    actor.reply = "\n\n".join((*MATHS, "$E = mc^2$", r"$$\sum_{i=1}^n i = \frac{n(n+1)}{2}$$", "It costs $5 or $10."))
    chat.say("maths")
    chat.page.wait_for_selector("article math")
    found = chat.page.evaluate("[...document.querySelectorAll('article math')].map((each) => each.textContent)")
    assert any("mc2" in each for each in found)
    assert "It costs $5 or $10." in chat.texts()[-1]
    inside = chat.page.evaluate(
        "[...document.querySelectorAll('article math *')].filter((each) => each.namespaceURI !== 'http://www.w3.org/1998/Math/MathML'"
        " || each.id || each.getAttribute('href')).map((each) => each.outerHTML)"
    )
    assert inside == []
    size = chat.page.evaluate(
        "document.getElementById('messages').scrollWidth - document.getElementById('thread').clientWidth"
    )
    assert size <= 0, "a formula makes the page wider"
    chat.check_harmless()


def test_characters_that_turn_text_are_shown(chat: Chat, actor: Actor) -> None:
    actor.reply = "safe\u202egpj.exe\n\n```py\nif x:\u2066 # \u2069\n```"
    chat.say("turn")
    marks = [each.inner_text() for each in chat.page.locator("article .control").all()]
    assert marks == ["U+202E", "U+2066", "U+2069"]


def test_tool_calls_and_thoughts_are_text_too(chat: Chat, actor: Actor) -> None:
    call = json.dumps({"name": "f", "arguments": {"x": "<img src=x onerror=alert(80)>\u202e"}})
    actor.reply = f"<think><img src=x onerror=alert(81)></think>Hm.\n<tool_call>\n{call}\n</tool_call>"
    chat.page.click("#open-settings")
    chat.page.fill("[name=tools]", '[{"name": "f", "parameters": {"type": "object"}}]')
    chat.page.keyboard.press("Escape")
    chat.say("call")
    chat.page.click(".thinking summary")
    chat.wait("document.querySelector('.thinking-text').textContent")
    assert "onerror=alert(81)" in chat.page.locator(".thinking-text").inner_text()
    assert "onerror=alert(80)" in chat.page.locator(".call pre").inner_text()
    chat.check_harmless()


def test_a_huge_answer_leaves_the_page_alive(chat: Chat, actor: Actor) -> None:
    """A paragraph, a block of code, a list and a table that never end."""
    for text in (
        "word " * 12_000,
        "```js\n" + "/* x = 'y'; " * 4_000,
        "- item\n" * 4_000,
        "|a|b|\n|-|-|\n" + "|1|2|\n" * 2_000,
    ):
        actor.reply = text
        begun = time.monotonic()
        chat.say("more", waits=False)
        chat.wait("!document.querySelector('.streaming')", 60)
        chat.page.click("#theme", timeout=5000)
        assert time.monotonic() - begun < 60
    chat.check_harmless()


def test_what_is_imported_is_hostile_too(chat: Chat, actor: Actor) -> None:
    evil = "<img src=x onerror=alert(90)>"
    message = {
        "id": "<b>",
        "parent": None,
        "role": "assistant",
        "content": evil,
        "thinking": evil,
        "model": evil,
        "finish": evil,
        "calls": [{"id": evil, "name": evil, "arguments": evil}],
        "error": {"message": evil},
        "usage": {"completion_tokens": 1},
        "files": [{"name": evil, "type": "image/png", "url": "javascript:alert(91)"}, {"name": evil, "text": evil}],
        "explanation": {"summary": evil},
        "tokens": [[evil, 0, []]],
        "requestId": "../../flush_cache",
    }
    conversations = [{"title": evil, "messages": [message], "settings": {"__proto__": {"x": 1}, "system": evil}}]
    chat.page.click("#open-settings")
    with chat.page.expect_file_chooser() as chooser:
        chat.page.get_by_role("button", name="Import").click()
    text = json.dumps({"format": "palladio.chat/1", "conversations": conversations})
    chooser.value.set_files({"name": "evil.json", "mimeType": "application/json", "buffer": text.encode()})
    chat.page.wait_for_selector("article.assistant:not(.sketch)")
    chat.act("timeline")
    chat.page.wait_for_selector(".notice")
    assert not [each for each in chat.addresses if each.endswith("flush_cache")]
    chat.check_harmless()


@pytest.mark.smoke
def test_a_conversation_and_the_whole_corpus_in_a_minute(open_chat: Open, actor: Actor) -> None:
    """What CI runs of this folder: the key is asked, an answer streams, is stopped and had again; nothing runs."""
    chat = open_chat(api_key="secret")
    chat.page.wait_for_selector("#dialog[open]")
    chat.page.keyboard.type("secret")
    chat.page.keyboard.press("Enter")
    chat.wait_ready()
    actor.reply, actor.delay = "word " * 2000, 0.005
    chat.say("talk", waits=False)
    chat.wait("document.querySelector('.streaming .content')?.innerText.length > 20")
    chat.page.keyboard.press("Escape")
    chat.wait_answered()
    actor.reply, actor.delay = "# Title\n\n" + "\n\n".join(CORPUS), 0.0
    chat.act("retry")
    chat.page.wait_for_selector("article.assistant h3")
    chat.wait_answered()
    assert chat.axe() == []
    chat.check_harmless()


def import_text(chat: Chat, text: str) -> None:
    chat.page.click("#open-settings")
    with chat.page.expect_file_chooser() as chooser:
        chat.page.get_by_role("button", name="Import", exact=True).click()
    chooser.value.set_files({"name": "a.json", "mimeType": "application/json", "buffer": text.encode()})


def exported(*messages: dict[str, object], **more: object) -> str:
    return json.dumps({"format": "palladio.chat/1", "conversations": [{"messages": messages, **more}]})


def test_broken_imports_are_read_or_refused_in_words(chat: Chat) -> None:
    user = {"id": "1", "parent": None, "role": "user", "content": "hi", "created": 3}
    answer = {"id": "2", "parent": "1", "role": "assistant", "content": "hello", "created": 2}
    picture = {"name": "a.png", "type": "image/png", "url": "data:image/png;base64,A"}
    import_text(chat, exported(user | {"files": [picture]}, answer))
    chat.shows(["hello"])
    settings = {"system": 5, "stop": 1, "schema": True, "tools": {}, "temperature": 0.5, "maxTokens": "9", "no": "x"}
    import_text(chat, exported(answer, user | {"content": "of numbers"}, settings=settings))
    chat.shows(["of numbers"], "user")
    chat.say("more")
    assert chat.page.locator("article .error").count() == 0
    import_text(chat, exported(user | {"id": "1", "parent": "2"}, answer))
    chat.page.wait_for_selector(".notice")
    for broken in ("", "{", "[]", "null", '{"messages": [null]}', exported().replace("[{", "[null, {")):
        chat.page.locator(".notice [aria-label=Dismiss]").last.click()
        import_text(chat, broken)
        assert "was not imported" in chat.page.locator(".notice").last.inner_text()
    chat.check_harmless()
