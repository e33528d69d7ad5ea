"""The timeline under an answer: drawn from its request's explanation, for eyes, the keyboard and screen readers."""

import json
from typing import Any

import pytest

from tests.fake_timeline import BEGINNING
from tests.ui.browser import Chat
from tests.ui.conftest import Actor

pytestmark = pytest.mark.browser

SHOWN = "document.querySelector('.timeline-told').textContent"


def explanation(num_steps: int, **timeline: Any) -> dict[str, Any]:
    """Of a request that waited, found a prefix, was retracted, and had drafts."""
    records: list[dict[str, Any]] = [
        {"kind": "handover", "after_seconds": 0.0, "seconds": 0.01},
        {"kind": "queued", "after_seconds": 0.01, "seconds": 0.19, "reason": "memory"},
        {"kind": "prefix", "after_seconds": 0.2, "seconds": 0.0, "tokens": 64},
        {"kind": "prefill", "after_seconds": 0.2, "seconds": 0.1, "compile_seconds": 0.05, "steps": 1, "tokens": 36}
        | {"new_tokens": 1, "step_tokens": 50, "bucket_tokens": 64},
        {"kind": "retracted", "after_seconds": 0.3, "seconds": 0.0, "lost_tokens": 100},
    ]
    for number in range(num_steps):
        step = {"steps": 1, "new_tokens": 1 + number % 2, "rows": 1 + number % 7, "bucket": 8}
        drafts = {"drafts": 3, "accepted_drafts": number % 2}
        records.append({"kind": "decode", "after_seconds": 0.3 + 0.01 * number, "seconds": 0.01} | step | drafts)
    told = {"state": "whole", "most_steps": 1, "records": records, **timeline}
    return {"summary": "waited", "samples": [{"index": 0, "prompt_tokens": 100, "cached_tokens": 64, "timeline": told}]}


def draw(chat: Chat, told: dict[str, Any]) -> float:
    """Draws it alone, on a file of the server, under its policy; returns how many milliseconds that took."""
    chat.page.goto(f"{chat.url}ui/style/base.css")
    seconds: float = chat.page.evaluate(
        """async (told) => {
            const { drawTimeline } = await import(new URL("../chat/timeline.js", document.baseURI));
            document.documentElement.lang = "en";
            document.title = "Timeline";
            for (const name of ["base", "message", "timeline"]) {
                const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${name}.css` });
                document.head.append(link);
                await new Promise((resolve) => link.addEventListener("load", resolve));
            }
            const begun = performance.now();
            const section = document.createElement("section");
            section.className = "timeline";
            section.append(drawTimeline(told));
            const main = document.createElement("main");
            main.append(Object.assign(document.createElement("h1"), { textContent: "Timeline" }), section);
            document.body.replaceChildren(main);
            section.getBoundingClientRect();
            return performance.now() - begun;
        }""",
        told,
    )
    chat.page.wait_for_timeout(100)  # the drawing follows the width
    return seconds


def test_under_an_answer(chat: Chat, actor: Actor) -> None:
    chat.say("hello")
    assert actor.calls[-1].options.timeline, "the page asks for it"
    assert not chat.page.locator(".timeline-chart").count()
    chat.act("timeline")
    chat.page.wait_for_selector(".timeline-chart")
    chat.page.locator(".timeline-table summary").click()
    chat.wait("document.querySelectorAll('.timeline-table tbody tr').length")
    rows = chat.page.locator(".timeline-table tbody tr").all_inner_texts()
    assert [row.split("\t")[1] for row in rows[: len(BEGINNING)]] == [
        *("Received", "Queued", "Found in the cache", "Prefill", "Retracted", "Queued"),
    ]
    assert {row.split("\t")[1] for row in rows[len(BEGINNING) :]} == {"Decode"}
    assert "the KV cache was full" in rows[1]
    assert "62.5 ms of it compiling" in rows[3]
    assert "1 of 3 drafts right" in rows[-1]
    chat.check_harmless()
    assert chat.axe() == []
    chat.act("timeline")
    assert not chat.page.locator(".timeline-chart").count()


def test_keyboard_and_zoom(chat: Chat) -> None:
    draw(chat, explanation(20))
    page = chat.page
    page.focus("[aria-label='Zoom in']")
    page.keyboard.press("Tab")  # one stop for the whole drawing
    assert page.evaluate(SHOWN).startswith("Received: 10.0 ms")
    seen = []
    for _ in range(24):
        page.keyboard.press("ArrowRight")
        seen.append(page.evaluate(SHOWN))
    assert seen[0] == "Queued: 190 ms from 10.0 ms on; the KV cache was full"
    assert seen[1] == "Found in the cache: at 200 ms; 64 tokens"
    assert "50.0 ms of it compiling" in seen[2]
    assert seen[3] == "Retracted: at 300 ms; 100 tokens lost"
    assert seen[4].startswith(
        "Decode: 10.0 ms from 300 ms on; 1 new token, batch of 1 in a bucket of 8; 0 of 3 drafts"[:40]
    )
    assert len(set(seen)) == 24
    width = "document.activeElement.getBoundingClientRect().width"
    before = page.evaluate(width)
    page.keyboard.press("+")
    assert page.evaluate(width) > 1.5 * before
    assert page.evaluate(SHOWN) == seen[-1], "the focus stays"
    page.keyboard.press("Home")
    assert page.evaluate(SHOWN).startswith("Received")
    page.keyboard.press("0")
    assert page.evaluate("document.querySelector('.timeline-chart').classList.contains('zoomed')") is False
    assert chat.axe() == []


@pytest.mark.parametrize("num_steps", [0, 1, 5000])
@pytest.mark.parametrize("width", [375, 1200])
def test_any_number_of_steps(chat: Chat, num_steps: int, width: int) -> None:
    chat.page.set_viewport_size({"width": width, "height": 700})
    milliseconds = draw(chat, explanation(num_steps))
    assert milliseconds < 2000
    page = chat.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('.timeline-chart *').length") < 8 * width
    assert page.evaluate("document.querySelector('.timeline-chart [data-place]').ariaLabel").startswith(
        ("Received", "Queued")
    )
    page.locator(".timeline-table summary").click()
    chat.wait("document.querySelectorAll('.timeline-table tbody tr').length")
    while page.locator(".timeline-table button:visible").count():
        page.locator(".timeline-table button").click()
    assert page.evaluate("document.querySelectorAll('.timeline-table tbody tr').length") == 5 + num_steps
    assert chat.page.evaluate("window.violations") == []
    assert chat.troubles == []


def test_what_is_not_known_is_said(chat: Chat) -> None:
    draw(chat, explanation(20, state="merged", most_steps=4))
    assert "one part stands for up to 4 steps" in chat.page.inner_text(".timeline-note")
    draw(chat, explanation(0, state="dropped", records=[]))
    assert chat.page.inner_text(".timeline").startswith("The engine has told nothing")
    stages = {
        "index": 0,
        "handover_seconds": 0.01,
        "queue_seconds": 0.5,
        "wait_memory_seconds": 0.4,
        "decode_seconds": 1.0,
    }
    stages |= {"prefill_seconds": 0.25, "decode_steps": 100, "decode_mean_rows": 2.5, "decode_mean_bucket": 4.0}
    stages |= {"completion_tokens": 101, "cached_tokens": 3, "prompt_tokens": 9, "retractions": []}
    chunk = {"after_seconds": 0.5, "tokens": 6, "step_tokens": 10, "bucket_tokens": 64, "seconds": 0.25}
    draw(chat, {"summary": "waited", "samples": [stages | {"prefill_chunks": [chunk]}]})
    assert "Single steps were not recorded" in chat.page.inner_text(".timeline-note")
    marks = chat.page.evaluate(
        "[...document.querySelectorAll('.timeline-chart [data-place]')].map((node) => node.ariaLabel)"
    )
    assert [text.split(":")[0] for text in marks] == ["Received", "Queued", "Prefill", "Decode", "Found in the cache"]
    assert "100 steps, 100 new tokens, batch of 2.5 in a bucket of 4" in marks[3]


def test_names_are_text(chat: Chat) -> None:
    """An explanation is data: what it says never becomes markup, or a class that it chose."""
    told = explanation(1)
    hostile = "<img src=x onerror=alert(1)>"
    told["summary"] = hostile
    told["samples"][0]["timeline"]["records"] += [
        {"kind": hostile, "after_seconds": 0.4, "seconds": 0.1, "steps": 2},
        {"kind": "queued", "after_seconds": 0.5, "seconds": 0.1, "reason": hostile},
        {"kind": "constructor", "after_seconds": 0.6, "seconds": 0.1},
    ]
    draw(chat, json.loads(json.dumps(told)))
    assert hostile in chat.page.inner_text(".timeline")
    assert not chat.page.locator("img").count()
    assert chat.page.evaluate("window.ran") == []
    assert chat.troubles == []


def test_a_switch_shows_it_under_each_answer(chat: Chat) -> None:
    chat.page.evaluate("localStorage.setItem('palladio.preferences', JSON.stringify({ timeline: true }))")
    chat.say("hello")
    chat.page.wait_for_selector("article.assistant .timeline-chart")
    chat.check_harmless()
