"""A headless Chromium on a page of the server, and what it must never see there."""

import dataclasses
import importlib.resources
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Before anything of the page runs: what the policy stops, and what must not run, is written down.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
window.ran = [];
for (const name of ["alert", "confirm", "prompt", "open", "print"]) {
  window[name] = (...said) => window.ran.push([name, ...said]);
}
"""
# Elements and attributes that no answer of a model may bring in.
FOREIGN = """() => {
  const bad = [];
  const known = new Set(("A ARTICLE ASIDE BLOCKQUOTE BODY BR BUTTON CODE DD DETAILS DIALOG DIV DL DT EM " +
    "FORM H1 H2 H3 H4 H5 H6 HEADER HR IMG INPUT KBD LABEL LI MAIN METER NAV NOSCRIPT OL OPTGROUP OPTION P PRE S " +
    "SECTION SELECT SMALL SPAN STRONG SUMMARY TABLE TBODY TD TEXTAREA TH THEAD TR UL svg path " +
    "B g line rect text title").split(" "));
  for (const node of document.body.querySelectorAll("*")) {
    const isMath = node.namespaceURI === "http://www.w3.org/1998/Math/MathML";
    if (!known.has(node.tagName) && !isMath) bad.push(node.tagName);
    for (const { name, value } of node.attributes) {
      if (/^(on.*|srcdoc|action|formaction)$/i.test(name)) bad.push(`${node.tagName} ${name}`);
      if (name === "style" && !isMath && node.id !== "prompt") bad.push(`${node.tagName} style=${value}`);
    }
    if (node.src && !/^blob:|\\/ui\\/icon.svg$/.test(node.src)) bad.push(`src ${node.src}`);
    const href = node.getAttribute("href") ?? node.getAttribute("xlink:href");
    if (href !== null && node.closest(".message") && !/^(https?:\\/\\/|mailto:)/.test(href)) bad.push(`href ${href}`);
    if (href !== null && node.closest(".message") && href.startsWith(location.origin)) bad.push(`own ${href}`);
  }
  return bad;
}"""


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def launch(playwright: Any, *args: str) -> Any:
    """Start a browser.

    Args:
        args: flags of Chromium.
    """
    path = find_chromium()
    if path is None:
        pytest.skip("needs Chromium (scripts/ui installs it)")
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *args])


@dataclasses.dataclass
class Chat:
    """The chat page as a user handles it.

    Attributes:
        page: Playwright's page.
        troubles: errors of scripts, and dialogs that opened.
        addresses: addresses of all requests.
    """

    page: Any
    url: str
    troubles: list[str] = dataclasses.field(default_factory=list)
    addresses: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def open(cls, context: Any, url: str) -> "Chat":
        chat = cls(context.new_page(), url)
        page = chat.page
        page.set_default_timeout(15_000)
        page.add_init_script(WATCH)
        page.on("pageerror", lambda error: chat.troubles.append(str(error)))
        page.on("dialog", lambda dialog: (chat.troubles.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: chat.addresses.append(request.url))
        page.goto(url)
        return chat

    def wait_ready(self) -> "Chat":
        self.page.wait_for_selector("#model:enabled")
        return self

    def say(self, text: str, *, waits: bool = True) -> None:
        number = self.page.locator("article.assistant").count()
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        self.wait(f"document.querySelectorAll('article.assistant').length > {number}")
        if waits:
            self.wait_answered()

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Until an expression of JavaScript is true. Playwright's own way needs eval, which the policy refuses."""
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"did not come about: {condition}"
            time.sleep(0.02)

    def wait_answered(self) -> None:
        self.wait("!document.querySelector('.streaming') && !document.querySelector('.send.stop')")

    def texts(self, role: str = "assistant") -> list[str]:
        return [each.strip() for each in self.page.locator(f"article.{role} .content").all_inner_texts()]

    def shows(self, texts: list[str], role: str = "assistant", seconds: float = 20.0) -> None:
        """Waits until the messages are these, and no answer is under way."""
        deadline = time.monotonic() + seconds
        self.wait_answered()
        while (found := self.texts(role)) != texts:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        self.wait_answered()

    def act(self, action: str, role: str = "assistant", place: int = -1) -> None:
        message = self.page.locator(f"article.{role}").nth(place)
        message.hover()
        message.locator(f"[data-action={action}]").click()

    def check_harmless(self) -> None:
        """Nothing has run that the page did not bring, and the policy had nothing to stop."""
        assert self.troubles == []
        assert self.page.evaluate("window.ran") == []
        assert self.page.evaluate("window.violations") == []
        assert self.page.evaluate(FOREIGN) == []
        origin = "/".join(self.url.split("/")[:3])
        assert [each for each in self.addresses if not each.startswith((origin, f"blob:{origin}"))] == []

    def axe(self) -> list[str]:
        """Return the findings of axe-core, in words."""
        package = importlib.resources.files("axe_playwright_python")
        self.page.evaluate(Path(str(package / "axe.min.js")).read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {node['html'][:160]} ({node['failureSummary'][:200]})"
            for each in found["violations"]
            for node in each["nodes"]
        ]
