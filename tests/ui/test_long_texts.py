"""However much there is to draw, the page answers while it is drawn. How long a task took is measured in the page, and
compared with what drawing all of it in one task takes by far."""

import time

import pytest

from tests.ui.browser import Chat
from tests.ui.conftest import Actor
from tests.ui.test_hostile_output import exported, import_text

pytestmark = pytest.mark.browser

LONGEST = 1.5  # seconds; on an idle machine it is a tenth
LONGEST_OF_ALL = 6.0  # reading and storing five megabytes; laying them out takes minutes
WATCH_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
}).observe({ entryTypes: ["longtask"] });
undefined
"""

TEXTS = {
    "a line of five megabytes": "x" * 5_000_000,
    "a line of half a megabyte": "x" * 500_000,
    "a line below the limit of markdown": "word " * 75_000,
    "formulas": "Here is $x^2 + y_1$ indeed.\n\n" * 6_000,
    "formulas of one paragraph": "$x^2$ and " * 6_000,
    "a list": "- item\n" * 40_000,
    "nested lists": "\n".join(f"{'  ' * (depth % 60)}- item" for depth in range(5_000)),
    "quotes": "> " * 5_000 + "text",
    "a table": "|a|b|\n|-|-|\n" + "|1|2|\n" * 40_000,
    "code": "```js\n" + "f(1); // x\n" * 30_000 + "```",
    "blocks of code": "```py\nx = 'y' # z\n```\n\n" * 10_000,
    "links": "https://a.example/x [b](https://b.example/)\n\n" * 8_000,
}


def message(number: int, parent: str | None, role: str, text: str) -> dict[str, object]:
    return {"id": str(number), "parent": parent, "role": role, "content": text, "created": number}


@pytest.mark.parametrize("name", TEXTS)
def test_a_huge_message_is_drawn_in_short_tasks(chat: Chat, name: str) -> None:
    text = TEXTS[name]
    chat.page.evaluate(WATCH_TASKS)
    for role in ("assistant", "user"):
        messages = [message(1, None, "user", "hi")]
        messages.append(message(2, "1", role, text))
        import_text(chat, exported(*messages))
        chat.wait(f"document.querySelector('article.{role}:last-of-type:not(.sketch)')", 60)
        begun = time.monotonic()
        chat.page.click("#theme")
        chat.page.fill("#prompt", "still here")
        assert time.monotonic() - begun < 10
        time.sleep(0.5)
    longest = chat.page.evaluate("window.longest") / 1000
    print(f"{name}: longest task {longest:.2f} s")
    assert longest < (LONGEST_OF_ALL if len(text) > 1_000_000 else LONGEST), name
    chat.check_harmless()


@pytest.mark.parametrize("name", ["a line below the limit of markdown", "formulas", "code", "a table"])
def test_a_huge_answer_streams_in_short_tasks(chat: Chat, actor: Actor, name: str) -> None:
    actor.reply = TEXTS[name][:100_000]
    chat.page.evaluate(WATCH_TASKS)
    chat.say("go on", waits=False)
    chat.wait("!document.querySelector('.streaming')", 60)
    longest = chat.page.evaluate("window.longest") / 1000
    print(f"{name}: longest task of the stream {longest:.2f} s")
    assert longest < LONGEST
    chat.check_harmless()


def test_the_reader_asks_for_the_rest(chat: Chat) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    import_text(chat, exported(message(1, None, "user", text)))
    chat.page.wait_for_selector("article.user .more")
    assert "line 19999" not in chat.texts("user")[0]
    for _ in range(20):
        if chat.page.locator("article.user .more").count() == 0:
            break
        chat.page.locator("article.user .more").click()
    lines = chat.page.evaluate(
        "[...document.querySelectorAll('article.user .slice')].map((each) => each.textContent).join('\\n')"
    )
    assert lines == text


def test_the_rest_of_many_formulas_is_drawn_on_demand(chat: Chat) -> None:
    import_text(chat, exported(message(1, None, "user", "hi"), message(2, "1", "assistant", TEXTS["formulas"])))
    chat.wait("document.querySelector('article.assistant .content > .more')", 120)
    before = chat.page.locator("article.assistant math").count()
    assert 500 < before < 2_000
    chat.page.locator("article.assistant .content > .more").click()
    chat.wait(f"document.querySelectorAll('article.assistant math').length > {before}", 60)
