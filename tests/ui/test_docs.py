"""/docs: Swagger UI from the package, with nothing inline and no other server."""

import pytest

from tests.ui.browser import Chat
from tests.ui.conftest import Open

pytestmark = pytest.mark.browser


def opened(open_chat: Open) -> Chat:
    docs = open_chat("/docs")
    docs.page.wait_for_selector(".opblock", timeout=60_000)
    return docs


def test_the_docs_need_no_other_server_and_stop_nothing(open_chat: Open) -> None:
    docs = opened(open_chat)
    page = docs.page
    assert page.locator(".opblock").count() > 40
    block = page.locator(".opblock", has_text="/v1/models").first
    block.locator("button").first.click()
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()
    page.wait_for_selector(".live-responses-table")
    assert "actor" in block.locator(".live-responses-table").inner_text()
    origin = "/".join(docs.url.split("/")[:3])
    assert [each for each in docs.addresses if not each.startswith((origin, "data:"))] == []
    assert (docs.troubles, page.evaluate("window.violations")) == ([], [])


@pytest.mark.parametrize("width", [1200, 390])
def test_axe_finds_nothing_in_the_docs(open_chat: Open, width: int) -> None:
    docs = opened(open_chat)
    docs.page.set_viewport_size({"width": width, "height": 800})
    assert docs.page.get_attribute("html", "lang") == "en"
    assert docs.axe() == []
    docs.page.locator(".opblock", has_text="/v1/models").first.locator("button").first.click()
    docs.page.locator(".opblock-post button").first.click()
    docs.page.wait_for_selector(".opblock-body")
    assert docs.axe() == []
