"""The dashboard in a browser: in front of a real server under load, and of one with keys."""

import dataclasses
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.interface.messages.engine_stats import RankStats
from palladio.runtime.interface.messages.page_map import GroupPages, PageMap
from tests.http.conftest import running_server
from tests.http.observability.metrics.test_deploy import queries, wanted
from tests.integration.serving import Server
from tests.ui.browser import Chat
from tests.ui.conftest import Actor

pytestmark = pytest.mark.browser

PROMPT = {"prompt": "The villa stands on a hill. " * 4, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
KEY = "boss-key-1"


@dataclasses.dataclass
class Board:
    """The dashboard as somebody sees it."""

    view: Chat

    def number(self, tile: str) -> float:
        """What a tile says; NaN: nothing."""
        text = self.view.page.locator(f"#tile-{tile} .value").inner_text()
        found = re.match(r"([\d.,]+)([kM]?)", text)
        if found is None:
            return float("nan")
        return float(found[1].replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6}[found[2]]

    def text(self, selector: str) -> str:
        return str(self.view.page.locator(selector).inner_text())

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "did not come about"
            time.sleep(0.05)

    def wait_shown(self) -> "Board":
        self.view.wait("document.getElementById('state').dataset.kind === 'good'", 60.0)
        return self

    def check_clean(self) -> None:
        page = self.view.page
        assert self.view.troubles == []
        assert page.evaluate("window.ran") == []
        assert page.evaluate("window.violations") == []
        origin = "/".join(self.view.url.split("/")[:3])
        assert [each for each in self.view.addresses if not each.startswith(origin)] == []


@pytest.fixture
def look(context: Any) -> Callable[[str], Board]:
    return lambda url: Board(Chat.open(context, url))


@pytest.fixture
def open_board(actor: Actor, look: Callable[[str], Board]) -> Iterator[Callable[..., Board]]:
    """Opens the dashboard of a server of the actor; the arguments are HttpConfig's."""
    servers = []

    def start(path: str = "/dashboard", **config: Any) -> Board:
        servers.append(running_server(actor, HttpConfig(**config)))
        return look(servers[-1].__enter__() + path)

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def load(embedded_model_server: Server) -> Iterator[str]:
    """A server with four clients that never stop; its address."""
    url = embedded_model_server.url
    has_ended = threading.Event()

    def ask(number: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not has_ended.is_set():
                body = PROMPT | {"prompt": f"{PROMPT['prompt']} {number}", "stream": True}
                try:
                    with client.stream("POST", "/v1/completions", json=body) as answer:
                        for _ in answer.iter_lines():
                            pass
                except httpx.HTTPError:
                    time.sleep(0.2)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    yield url
    has_ended.set()
    for thread in threads:
        thread.join(60)


def scrape(url: str) -> dict[str, float]:
    """The sums of all samples, by name."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(url + "/metrics").text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def submit(url: str, count: int, tokens: int) -> str:
    body = {"prompt": "a line", "max_tokens": tokens, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    content = "\n".join(json.dumps(line | {"custom_id": f"{number}"}) for number in range(count))
    upload = {"file": ("lines.jsonl", content.encode())}
    file = httpx.post(url + "/v1/files", files=upload, data={"purpose": "batch"}).json()["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(httpx.post(url + "/v1/batches", json=asked).json()["id"])


def test_numbers_move_and_are_those_of_metrics(load: str, look: Callable[[str], Board]) -> None:
    board = look(load + "/dashboard").wait_shown()
    board.until(lambda: board.number("running") > 0)
    board.until(lambda: board.number("tokens_out") > 0 and board.number("tokens_in") > 0, 30.0)
    before, begun = scrape(load), time.monotonic()
    seen = []
    while time.monotonic() < begun + 8:
        seen.append(board.number("tokens_out"))
        time.sleep(0.5)
    after, seconds = scrape(load), time.monotonic() - begun
    names = ("sglang:inter_token_latency_seconds_count", "sglang:time_to_first_token_seconds_count")
    rate = sum(after[name] - before[name] for name in names) / seconds
    assert len(set(seen)) > 3, "it moves"
    assert sum(seen) / len(seen) == pytest.approx(rate, rel=0.5)
    assert scrape(load)["sglang:max_total_num_tokens"] == float(
        re.search(r"([\d,]+) tokens in pages", board.text("#cards"))[1].replace(",", "")  # type: ignore[index]
    )
    for title in ("Requests", "Tokens per second", "Time to first token", "Tokens in the KV cache"):
        chart = board.view.page.locator(
            "section.chart", has=board.view.page.get_by_role("heading", name=title, exact=True)
        )
        label = chart.locator(".plot").get_attribute("aria-label")
        assert re.search(r"now [\d.,]+.*highest [\d.,]+", label), label
        assert re.search(r"M[\d.]+ [\d.]+", chart.locator("path.line-1").get_attribute("d"))
    canvas = board.view.page.locator("#pages canvas")
    assert re.search(r"KV pages: [\d,]+ in use, [\d,]+ only in the prefix cache", canvas.get_attribute("aria-label"))
    board.check_clean()


def test_every_metric_of_the_board_and_the_alerts_is_the_servers(load: str) -> None:
    httpx.post(load + "/v1/completions", json=PROMPT, timeout=60).raise_for_status()
    names = set(scrape(load)) | {"palladio:batch_lines_total", "palladio:ignored_fields_total"}  # of what comes later
    names |= {"palladio:hbm_used_bytes", "palladio:database_failures_total"}  # of accelerators; of PostgreSQL
    used = {name for query in queries() for name in wanted(query)[0]}
    assert used <= names, used - names


def test_a_batch_is_followed_and_cancelled(embedded_model_server: Server, look: Callable[[str], Board]) -> None:
    url = embedded_model_server.url
    board = look(url + "/dashboard").wait_shown()
    name = submit(url, 2000, 20)
    page = board.view.page
    row = page.locator("li", has_text=name)
    row.wait_for()
    board.until(lambda: row.locator(".status").inner_text() == "running")
    progress = row.locator("progress")
    board.until(lambda: float(progress.get_attribute("value")) > 0)
    first = float(progress.get_attribute("value"))
    board.until(lambda: float(progress.get_attribute("value")) > first)
    assert float(progress.get_attribute("max")) == 2000
    row.get_by_role("button", name=f"Cancel {name}").click()
    page.get_by_role("button", name="Cancel the batch").click()
    board.until(lambda: row.locator(".status").inner_text() == "cancelled")
    assert httpx.get(f"{url}/v1/batches/{name}").json()["status"] == "cancelled"
    assert row.get_by_role("button").count() == 0
    board.check_clean()


def test_it_outlives_the_engine(load: str, embedded_model_server: Server, look: Callable[[str], Board]) -> None:
    board = look(load + "/dashboard").wait_shown()
    board.until(lambda: board.number("running") > 0)
    os.kill(embedded_model_server.engine_pid(), signal.SIGKILL)
    board.until(lambda: "restarting" in board.text("#state-text"))
    board.wait_shown()
    board.until(lambda: board.number("running") > 0, 60.0)
    assert "engine" in board.text("section:has(> div > [aria-label='Last errors'])")
    assert re.search(r"Engine restarts\s*[1-9]", board.text("#cards"))
    gap = board.view.page.locator("section.chart path.line-1").first.get_attribute("d")
    assert gap.count("M") >= 2, "the line has a gap"
    board.check_clean()


def test_it_waits_for_a_server_that_is_away(open_board: Callable[..., Board], actor: Actor) -> None:
    board = open_board().wait_shown()
    page = board.view.page
    page.route("**/dashboard/data*", lambda route: route.abort())
    board.until(lambda: "no answer; next attempt in 2 s" in board.text("#state-text"))
    page.unroute("**/dashboard/data*")
    board.wait_shown()
    assert page.locator("#trouble").is_hidden()


@pytest.mark.smoke
def test_the_key_is_asked_once_and_a_wrong_one_is_told(open_board: Callable[..., Board]) -> None:
    board = open_board(api_key="alice:aaaaaaaa", admin_api_key=KEY)
    page = board.view.page
    dialog = page.locator("dialog[open]")
    dialog.wait_for()
    assert "admin key" in dialog.inner_text()
    page.fill("dialog input", "wrong")
    page.keyboard.press("Enter")
    board.until(lambda: "does not take this key" in dialog.inner_text())
    page.fill("dialog input", "a" * 8)
    page.keyboard.press("Enter")
    trouble = page.locator("#trouble")
    trouble.wait_for()
    assert "is valid, but the dashboard needs the admin key" in trouble.inner_text()
    assert page.locator("#cards").is_hidden()
    trouble.get_by_role("button").click()
    page.fill("dialog input", KEY)
    page.keyboard.press("Enter")
    board.wait_shown()
    page.reload()
    board.wait_shown()
    assert dialog.count() == 0, "the tab keeps it"
    board.check_clean()


def test_behind_a_prefix(open_board: Callable[..., Board]) -> None:
    board = open_board("/llm/dashboard", root_path="/llm").wait_shown()
    assert all("/llm/" in address for address in board.view.addresses)
    board.check_clean()


def full(actor: Actor) -> None:
    """Everything that the page can show."""
    busy = RankStats(30, 200, 9000, 10240, 555.5, 0.7, 1, 7, 640, 8000, 2000, 48, 0, 50, 150, 60, 6000)
    actor.ranks = [busy, dataclasses.replace(busy, num_running=3)]
    groups = [GroupPages(None, 1, 300, 50), GroupPages(4096, 5, 50, 20)]
    one = PageMap(640, 350, 70, 1, [(350, 1, 0), (70, 0, 1), (220, 0, 0)], groups, 0.001)
    actor.pages = [
        one,
        dataclasses.replace(one, pages_per_cell=4, num_pages=638, runs=[(87, 4, 0), (18, 1, 3), (55, 0, 0)]),
    ]
    actor.fail = EngineDeadError("<b>killed</b> by " + "signal " * 40)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 380])
def test_axe_finds_nothing(
    open_board: Callable[..., Board], actor: Actor, context: Any, theme: str, width: int
) -> None:
    full(actor)
    board = open_board()
    page = board.view.page
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 900})
    board.wait_shown()
    url = board.view.url.removesuffix("/dashboard")
    httpx.post(url + "/v1/completions", json={"prompt": [1, 2], "max_tokens": 2})
    submit(url, 2, 2)
    board.until(lambda: "<b>killed</b>" in board.text("#cards") and "batch_" in board.text("#cards"))
    assert "Rank" in board.text("#cards")
    assert "window of 4,096" in board.text("#pages")
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing makes the page wider"
    assert board.view.axe() == []
    board.check_clean()


def test_it_is_used_with_the_keyboard(open_board: Callable[..., Board]) -> None:
    board = open_board().wait_shown()
    page = board.view.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    board.until(
        lambda: (
            float(page.evaluate("document.querySelectorAll('section.chart path.line-1')[0].getAttribute('d').length"))
            > 20
        )
    )
    plot = page.locator(".plot").first
    plot.focus()
    page.keyboard.press("ArrowLeft")
    assert re.match(r"\d+:\d+:\d+.*: running \d", plot.get_attribute("aria-label"))
    page.locator("#range input").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.querySelector('#range input:checked').value") == "900"
    page.reload()
    board.wait_shown()
    assert page.evaluate("document.querySelector('#range input:checked').value") == "900", "it is kept"
    page.locator("#pause").focus()
    page.keyboard.press("Enter")
    count = len(board.view.addresses)
    time.sleep(2.5)
    assert len(board.view.addresses) <= count + 1, "it has paused"
    page.locator("#theme").press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_hidden_page_asks_for_nothing(open_board: Callable[..., Board]) -> None:
    board = open_board().wait_shown()
    page = board.view.page
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
    page.evaluate("void document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(0.5)
    count = len(board.view.addresses)
    time.sleep(2.5)
    assert len(board.view.addresses) == count


def test_without_the_pages(open_board: Callable[..., Board]) -> None:
    board = open_board(ui=False)
    assert "no such route" in board.text("body")


PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "dashboard.png"


def test_the_docs_have_a_picture_of_it() -> None:
    assert PICTURE.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert PICTURE.stat().st_size < 200_000
