"""A whole conversation on the page: sent, streamed, stopped, answered again, edited, kept, exported and imported."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.serving import Server
from tests.ui.browser import Chat
from tests.ui.conftest import Actor, Open

pytestmark = pytest.mark.browser


def test_a_whole_conversation_with_the_embedded_model(embedded_model_server: Server, context: Any) -> None:
    chat = Chat.open(context, embedded_model_server.url + "/").wait_ready()
    page = chat.page
    assert "palladio serve smollm2" in page.locator(".empty").inner_text()
    chat.say("Tell me a short story about a dog.")
    assert len(chat.texts()[-1]) > 40
    assert "tokens/s" in page.locator("article.assistant .facts").inner_text()
    assert "tokens left" in page.locator("#context").inner_text()
    chat.say("Tell me a short story about a fox.", waits=False)
    chat.wait_answered()
    chat.act("retry")
    chat.wait(
        "document.querySelectorAll('article.assistant')[1]?.querySelector('.branch-place')?.innerText.endsWith('2/2')"
    )
    chat.wait_answered()
    chat.act("timeline")
    page.wait_for_selector(".timeline")
    assert "prefill" in page.locator(".timeline").inner_text()
    # the answer as JSON by a schema, of few tokens and of a seed
    page.click("#open-settings")
    page.fill("[name=system]", "You are brief.")
    page.fill("[name=maxTokens]", "40")
    page.fill("[name=seed]", "7")
    page.select_option("[name=format]", "schema")
    page.fill("[name=schema]", '{"enum": ["yes", "no"]}')
    page.keyboard.press("Escape")
    assert page.locator("#chips").inner_text().split("\n") == ["System prompt", "JSON schema"]
    chat.say("Is water wet?")
    assert chat.texts()[-1] in ('"yes"', '"no"')
    chat.check_harmless()


def test_what_is_sent_is_what_is_shown(chat: Chat, actor: Actor) -> None:
    assert "smollm2" not in chat.page.locator(".empty").inner_text()
    chat.say("One")
    chat.say("Two")
    prompt = actor.tokenizer.decode(actor.calls[-1].prompt_ids)
    assert [part in prompt for part in ("One", "Hello, wörld 🎉!", "Two")] == [True] * 3
    assert chat.texts("user") == ["One", "Two"]
    assert chat.texts() == ["Hello, wörld 🎉!"] * 2
    chat.page.click("#open-settings")
    for name, value in {"temperature": "0.5", "topK": "7", "maxTokens": "3", "stop": "x\ny", "seed": "5"}.items():
        chat.page.fill(f"[name={name}]", value)
    chat.page.keyboard.press("Escape")
    chat.say("Three")
    params = actor.calls[-1].params
    assert (params.temperature, params.top_k, params.max_tokens, params.seed) == (0.5, 7, 3, 5)
    assert params.stop == ("x", "y") or list(params.stop) == ["x", "y"]
    assert "cut off" in chat.page.locator("article.assistant .facts").last.inner_text()


def test_stop_keeps_what_has_come(chat: Chat, actor: Actor) -> None:
    actor.reply, actor.delay = "word " * 2000, 0.005
    chat.say("talk", waits=False)
    chat.wait("document.querySelector('.streaming .content').innerText.length > 20")
    chat.page.keyboard.press("Escape")
    chat.wait_answered()
    assert chat.texts()[-1].startswith("word")
    assert "stopped" in chat.page.locator("article.assistant .facts").inner_text()
    chat.wait("true")
    assert actor.calls[-1].aborted
    # it goes on where it was
    actor.reply, actor.delay = "and the end.", 0.0
    chat.act("continue")
    chat.wait("document.querySelector('article.assistant .content').innerText.endsWith('and the end.')")
    assert len(chat.texts()) == 1


def test_edits_and_other_answers_are_branches(chat: Chat, actor: Actor) -> None:
    actor.reply = "first"
    chat.say("question")
    actor.reply = "second"
    chat.act("retry")
    chat.shows(["second"])
    chat.act("previous")
    chat.shows(["first"])
    actor.reply = "third"
    chat.act("edit", "user")
    chat.page.fill(".editor textarea", "another question")
    chat.page.click(".editor [type=submit]")
    chat.shows(["third"])
    chat.shows(["another question"], "user")
    chat.act("previous", "user")
    chat.shows(["question"], "user")
    chat.shows(["second"])
    chat.act("edit")
    chat.page.fill(".editor textarea", "my own words")
    chat.page.click(".editor [type=submit]")
    chat.shows(["my own words"])
    chat.say("go on")
    assert "my own words" in actor.tokenizer.decode(actor.calls[-1].prompt_ids)
    chat.page.reload()
    chat.wait_ready()
    chat.shows(["question", "go on"], "user")
    chat.act("delete", "user", 1)
    chat.page.get_by_role("button", name="Delete", exact=True).last.click()
    chat.wait("document.querySelectorAll('article').length === 2")


def test_several_conversations_are_kept_exported_and_imported(chat: Chat, actor: Actor, tmp_path: Path) -> None:
    page = chat.page
    chat.say("About cats")
    page.click("#new-chat")
    chat.say("About dogs")
    entries = page.locator(".entry")
    assert entries.all_inner_texts() == ["About dogs", "About cats"]
    page.fill("#find", "cat")
    chat.wait("[...document.querySelectorAll('.entry')].map((each) => each.innerText).join() === 'About cats'")
    entries.first.click()
    chat.shows(["About cats"], "user")
    page.fill("#find", "")
    page.click("#open-settings")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    saved.value.save_as(file)
    told = json.loads(file.read_text(encoding="utf-8"))
    assert (told["format"], len(told["conversations"])) == ("palladio.chat/1", 2)
    page.click("#open-settings")
    page.get_by_role("button", name="Delete all").click()
    page.locator("#dialog").get_by_role("button", name="Delete all").click()
    chat.wait("document.querySelectorAll('.entry').length === 0")
    page.click("#open-settings")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files(file)
    chat.wait("document.querySelectorAll('.entry').length === 2")
    page.reload()
    chat.wait_ready()
    page.get_by_role("button", name="About cats", exact=True).click()
    chat.shows(["About cats"], "user")
    chat.shows(["Hello, wörld 🎉!"])
    chat.say("More")
    page.get_by_role("button", name="More about About cats").click()
    page.get_by_role("button", name="Rename").click()
    page.keyboard.type("Felines")
    page.keyboard.press("Enter")
    chat.wait("document.querySelector('.entry').innerText === 'Felines'")


def test_an_answer_goes_on_while_another_conversation_is_open(chat: Chat, actor: Actor) -> None:
    actor.reply, actor.delay = "slow " * 60, 0.01
    chat.say("in the background", waits=False)
    chat.page.click("#new-chat")
    assert chat.page.locator(".entry .busy").count() == 1
    actor.delay = 0.0
    chat.wait("!document.querySelector('.entry .busy')")
    chat.page.locator(".entry").first.click()
    chat.shows([("slow " * 60).strip()])


def test_what_is_deleted_stays_deleted(chat: Chat, actor: Actor, context: Any) -> None:
    """Also while its answer arrives, and in another tab."""
    chat.say("One")
    other = Chat.open(context, chat.url).wait_ready()
    other.page.get_by_role("button", name="One", exact=True).click()
    actor.reply, actor.delay = "word " * 500, 0.01
    chat.say("Go on", waits=False)
    chat.wait("document.querySelector('.streaming .content')?.innerText.length > 20")
    chat.page.get_by_role("button", name="More about One").click()
    chat.page.get_by_role("button", name="Delete", exact=True).first.click()
    chat.page.locator("#dialog").get_by_role("button", name="Delete").click()
    for page in (chat, other):
        page.wait("document.querySelectorAll('.entry').length === 0 && !document.querySelector('article')")
    assert "deleted in another tab" in other.page.locator(".notice").inner_text()
    chat.page.reload()
    chat.wait_ready()
    assert chat.page.locator(".entry").count() == 0
    chat.check_harmless()


def test_thoughts_are_folded_and_tools_are_answered(chat: Chat, actor: Actor) -> None:
    page = chat.page
    page.click("#open-settings")
    page.fill("[name=tools]", "[{")
    assert "Not valid JSON" in page.locator("#dialog").inner_text()
    page.fill("[name=tools]", '[{"name": "get_weather", "parameters": {"type": "object"}}]')
    page.keyboard.press("Escape")
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Vicenza"}}\n</tool_call>'
    actor.reply = f"<think>\nI ask.\n</think>\n{call}"
    chat.say("Weather?")
    assert not page.locator(".thinking-text").is_visible()
    page.click(".thinking summary")
    chat.wait("document.querySelector('.thinking-text').innerText.trim() === 'I ask.'")
    assert page.locator(".call-name").inner_text() == "get_weather"
    actor.reply = "It rains."
    page.fill(".call-result textarea", "rain, 12 degrees")
    page.click(".call-result button")
    chat.shows(["", "It rains."])
    assert "rain, 12 degrees" in actor.tokenizer.decode(actor.calls[-1].prompt_ids)


def test_text_files_go_into_the_prompt_and_others_are_refused(chat: Chat, actor: Actor) -> None:
    page = chat.page
    page.set_input_files(
        "#files", [{"name": "notes.md", "mimeType": "text/markdown", "buffer": b"the ```secret``` is 42"}]
    )
    page.set_input_files("#files", [{"name": "a.png", "mimeType": "image/png", "buffer": b"\x89PNG"}])
    page.wait_for_selector(".notice")
    assert "takes only text" in page.locator(".notice").inner_text()
    chat.say("What is the secret?")
    assert "notes.md:\n````\nthe ```secret``` is 42\n````" in actor.tokenizer.decode(actor.calls[-1].prompt_ids)
    assert page.locator("article.user .text-file summary").inner_text() == "notes.md"


def test_pictures_are_sent_where_the_model_takes_them(open_chat: Open, context: Any) -> None:
    sent = []

    def capable(route: Any) -> None:
        answer = route.fetch()
        told = answer.json()
        told["modalities"]["input"] = ["text", "image"]
        route.fulfill(response=answer, json=told)

    context.route("**/v1/capabilities", capable)
    context.on("request", lambda request: sent.append(request.post_data_json) if request.post_data else None)
    chat = open_chat().wait_ready()
    pixel = httpx.URL("data:").scheme and b"\x89PNG\r\n\x1a\n" + bytes(40)
    chat.page.set_input_files("#files", [{"name": "a.png", "mimeType": "image/png", "buffer": pixel}])
    chat.page.wait_for_selector(".attached img")
    chat.say("What is this?")
    (content,) = [message["content"] for message in sent[-1]["messages"]]
    assert [part["type"] for part in content] == ["image_url", "text"]
    assert content[0]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    chat.page.reload()
    chat.wait_ready()
    assert chat.page.locator("article.user img").count() == 1
    chat.check_harmless()


def test_probabilities_show_alternatives(chat: Chat, actor: Actor) -> None:
    page = chat.page
    page.click("#open-settings")
    page.check("[name=probabilities]")
    page.check("[name=timeline]")
    page.keyboard.press("Escape")
    chat.say("hi")
    page.wait_for_selector(".timeline")
    page.click(".tokens summary")
    page.hover(".token >> nth=1")
    assert "Token 2 of" in page.locator(".alternatives").inner_text()
    assert page.locator(".alternatives li").count() == 5
    page.focus(".token-list")
    page.keyboard.press("ArrowRight")
    assert "Token 3 of" in page.locator(".alternatives").inner_text()


def test_models_and_adapters_are_offered(open_chat: Open, context: Any) -> None:
    def with_adapter(route: Any) -> None:
        answer = route.fetch()
        told = answer.json()
        told["data"].append(told["data"][0] | {"id": "tuned", "parent": "one"})
        route.fulfill(response=answer, json=told)

    context.route("**/v1/models", with_adapter)
    chat = open_chat(served_model_name=("one", "two", "tuned")).wait_ready()
    assert chat.page.locator("#model optgroup").get_attribute("label") == "Adapters"
    chat.page.select_option("#model", "tuned")
    chat.say("hi")
    chat.page.reload()
    chat.wait_ready()
    assert chat.page.locator("#model").input_value() == "tuned"


def test_a_full_browser_is_told_and_nothing_is_lost_at_once(chat: Chat) -> None:
    chat.page.evaluate(
        "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); }; undefined"
    )
    chat.say("hi")
    assert "no more room" in chat.page.locator(".notice").inner_text()
    assert chat.texts() == ["Hello, wörld 🎉!"]


def test_another_tab_shows_what_this_one_has_added(chat: Chat, actor: Actor, context: Any) -> None:
    """Also of the settings, and of a conversation that the other tab knows but has not opened, or has open."""
    chat.say("One")
    other = Chat.open(context, chat.url).wait_ready()
    other.wait("document.querySelectorAll('.entry').length === 1")
    actor.reply = "Second answer"
    chat.say("Two")
    chat.page.click("#open-settings")
    chat.page.fill("[name=system]", "Be brief.")
    chat.page.keyboard.press("Escape")
    other.page.get_by_role("button", name="One", exact=True).click()
    other.shows(["One", "Two"], "user")
    other.wait("document.querySelector('.chip')?.innerText === 'System prompt'")
    chat.say("Three")
    other.shows(["One", "Two", "Three"], "user")
    other.shows(["Hello, wörld 🎉!", "Second answer", "Second answer"])


def test_a_full_browser_keeps_what_is_open(chat: Chat, context: Any) -> None:
    """What could not be stored is not taken for deleted when another tab stores something."""
    chat.page.evaluate(
        "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); }; undefined"
    )
    chat.say("kept here")
    other = Chat.open(context, chat.url).wait_ready()
    other.say("elsewhere")
    chat.wait("document.querySelectorAll('.entry').length === 2")
    assert chat.texts("user") == ["kept here"]
