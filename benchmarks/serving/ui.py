"""What the chat page costs: its bytes, the first paint, frames that are late while an answer streams, long histories.

    python benchmarks/serving/ui.py
    python benchmarks/serving/ui.py --rate 500 --seconds 10 --messages 10000 --json ui.json

Needs Chromium and playwright (`scripts/ui` installs both). The page comes from the routes that the server has; what
answers it is a script in a process of its own, which streams markdown (prose, lists, tables, code, formulas) at a given
rate, so that no model's speed is in the figures. A frame is late if the one before it was shown longer than one and a
half frames of a 60 Hz screen ago; the row "idle" is the same page with nothing to do, on the same machine.
"""

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.responses import JSONResponse, StreamingResponse

from palladio.http.pages.page_files import page_files
from palladio.http.pages.routes_pages import pages_router
from palladio.http.settings.http_config import HttpConfig

FRAME = 1000 / 60  # milliseconds
SAMPLE = """## Section {n}

The load of a bridge goes along its cables to the towers, and from there into the ground; see $F = m \\cdot a_{n}$ and
the [manual](https://example.com/{n}). A second sentence makes the paragraph as long as paragraphs are, with **bold**,
*slanted* and `coded` words in it.

$$ \\sum_{{i=1}}^{{{n}}} i^2 = \\frac{{n(n+1)(2n+1)}}{{6}} $$

1. The first point of section {n} takes a line.
2. The second one has points of its own:
   - one,
   - and another with `code`.

```python
def area_{n}(width: float, height: float) -> float:
    \"\"\"The area of a rectangle, in square metres.\"\"\"
    return width * height  # nothing else
```

| Method | Cost | Stable |
|:--|--:|:-:|
| first | {n} | yes |
| second | {n}0 | no |

> A quotation ends the section.

"""
FRAMES = """(seconds) => new Promise((resolve) => {
  const times = [];
  const step = (now) => {
    times.push(now);
    if (now - times[0] < seconds * 1000) requestAnimationFrame(step);
    else resolve(times);
  };
  requestAnimationFrame(step);
})"""


def text_of(tokens: int) -> list[str]:
    """Make pieces of four characters, about the size of an English token, one for each of `tokens`."""
    text = "".join(SAMPLE.format(n=n) for n in range(1, 2 + tokens * 4 // len(SAMPLE)))
    return [text[at : at + 4] for at in range(0, tokens * 4, 4)]


def scripted_app() -> FastAPI:
    """The pages, and an API that says as many tokens as `max_tokens` asks for, `seed` of them a second."""
    app = FastAPI()
    app.include_router(pages_router(HttpConfig()))

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {"state": "ready"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": "scripted", "parent": None, "max_model_len": 1 << 20}]}

    @app.get("/v1/capabilities")
    async def capabilities() -> dict[str, Any]:
        return {"modalities": {"input": ["text"], "output": ["text"]}, "max_model_len": 1 << 20}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> StreamingResponse:
        events = _stream(body.get("max_tokens", 2000), body.get("seed", 500))
        return StreamingResponse(events, media_type="text/event-stream")

    @app.get("/v1/requests/{name}/explain")
    async def explain(name: str) -> JSONResponse:
        return JSONResponse({"error": {"message": "none here"}}, 404)

    return app


async def _stream(tokens: int, rate: int) -> AsyncIterator[bytes]:
    begun, pieces = time.monotonic(), text_of(tokens)
    for position, piece in enumerate(pieces):
        chunk = {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        ahead = (position + 1) / rate - (time.monotonic() - begun)
        if ahead > 0:
            await asyncio.sleep(ahead)
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    yield b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n"


@contextlib.contextmanager
def scripted_server() -> Iterator[str]:
    """Its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    url = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(url)
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def measure_bytes() -> dict[str, int]:
    """Return the bytes of all files that the chat page can load, without licences."""
    folders = ("chat/", "shared/", "style/", "vendor/")
    files = [
        file
        for name, file in page_files().items()
        if name in ("chat.html", "icon.svg") or (name.startswith(folders) and not name.endswith(".txt"))
    ]
    later = page_files()["vendor/temml/temml.js"]  # with the first formula
    return {
        "files": len(files),
        "bytes": sum(len(file.content) for file in files),
        "compressed": sum(len(gzip.compress(file.content, 9)) for file in files),
        "of which with the first formula": len(later.content),
    }


def measure_paint(browser: Any, url: str) -> dict[str, float]:
    """Medians of five first visits, in milliseconds."""
    paints, readies = [], []
    for _ in range(5):
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("#model:enabled")
        readies.append(page.evaluate("performance.now()"))
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        context.close()
    return {"first_paint_ms": statistics.median(paints), "ready_ms": statistics.median(readies)}


def late_frames(times: list[float]) -> dict[str, float]:
    gaps = [after - before for before, after in itertools.pairwise(times)]
    seconds = (times[-1] - times[0]) / 1000
    return {
        "seconds": round(seconds, 2),
        "frames": len(gaps),
        "late": sum(gap > 1.5 * FRAME for gap in gaps),
        "dropped": sum(max(0, round(gap / FRAME) - 1) for gap in gaps),
        "longest_ms": round(max(gaps), 1),
    }


def _page(browser: Any, url: str, settings: dict[str, int]) -> Any:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto(url)
    page.wait_for_selector("#model:enabled")
    page.click("#open-settings")
    for name, value in settings.items():
        page.fill(f"[name={name}]", str(value))
    page.keyboard.press("Escape")
    return page


def _busy(session: Any) -> float:
    """CPU seconds of the page's main thread so far, which other processes do not lengthen as they do frames."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def measure_stream(browser: Any, url: str, rate: int, seconds: float) -> dict[str, dict[str, float]]:
    page = _page(browser, url, {"maxTokens": int(rate * (seconds + 1)), "seed": rate})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    idle = late_frames(page.evaluate(FRAMES, seconds))
    page.fill("#prompt", "Go on.")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".streaming .content h3")
    before = _busy(session)
    streaming = late_frames(page.evaluate(FRAMES, seconds))
    streaming["cpu_seconds_of_the_page"] = round(_busy(session) - before, 2)
    while page.evaluate("Boolean(document.querySelector('.streaming'))"):
        time.sleep(0.1)
    streaming["characters"] = page.evaluate("document.querySelector('article.assistant .content').textContent.length")
    page.context.close()
    return {"idle": idle, "streaming": streaming}


def measure_history(browser: Any, url: str, number: int) -> dict[str, Any]:
    """Measure a conversation of `number` messages: open it, scroll through it in fifty jumps, write to it."""
    page = _page(browser, url, {})
    text = "".join(text_of(100))
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"Message {n}. {text}"} for n in range(number)]
    page.click("#open-settings")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    content = json.dumps(messages).encode()
    chooser.value.set_files({"name": "history.json", "mimeType": "application/json", "buffer": content})
    wait = f"document.querySelectorAll('article').length === {number}"
    while not page.evaluate(wait):
        time.sleep(0.05)
    page.reload()
    begun = time.monotonic()
    while not page.evaluate(f"{wait} && !document.querySelector('.span:last-child > article:last-child.sketch')"):
        time.sleep(0.02)
    opened = time.monotonic() - begun
    scrolled = page.evaluate("""async () => {
      const thread = document.getElementById("thread");
      const times = [];
      for (let step = 0; step < 50; step += 1) {
        const begun = performance.now();
        thread.scrollTop = thread.scrollHeight * ((step * 37) % 50) / 50;
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        times.push(performance.now() - begun);
      }
      return times;
    }""")
    page.fill("#prompt", "Go on.")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".streaming .content h3")
    streaming = late_frames(page.evaluate(FRAMES, 0.8))
    page.context.close()
    return {
        "messages": number,
        "characters": len(content),
        "open_seconds": round(opened, 2),
        "jump_median_ms": round(statistics.median(scrolled), 1),
        "jump_worst_ms": round(max(scrolled), 1),
        "streaming": streaming,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=500, help="tokens a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        uvicorn.run(scripted_app(), port=args.serve, log_level="error")
        return
    from playwright.sync_api import sync_playwright

    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    figures: dict[str, Any] = {"page": measure_bytes()}
    with scripted_server() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        figures["browser"] = browser.version
        figures["paint"] = measure_paint(browser, url)
        figures |= measure_stream(browser, url, args.rate, args.seconds)
        figures["history"] = measure_history(browser, url, args.messages)
        browser.close()
    for name, value in figures.items():
        print(f"{name}: {json.dumps(value)}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
