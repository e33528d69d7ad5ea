"""Asks the Python package index that pip is set up for where a file is (PEP 503 and 691)."""

import ast
import html.parser
import importlib.util
import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

PUBLIC_INDEX = "https://pypi.org/simple"
_KINDS = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_TIMEOUT = 30.0  # seconds without an answer
_PIP_SECONDS = 30.0
_MAX_PAGE = 32 << 20  # bytes
_SECTIONS = (":env:", "download", "global")  # of pip's settings, the one that counts most first


def index_addresses() -> tuple[str, ...]:
    """The indexes that pip asks, its extra ones last; PyPI's, if pip is not here or says nothing."""
    settings = _pip_settings()
    first = next((found for key in _SECTIONS if (found := settings.get(f"{key}.index-url"))), PUBLIC_INDEX)
    more = next((found for key in _SECTIONS if (found := settings.get(f"{key}.extra-index-url"))), "")
    return tuple(address.rstrip("/") for address in (first, *more.split()))


def _pip_settings() -> dict[str, str]:
    if importlib.util.find_spec("pip") is None:  # uv's environments have none
        return {}
    command = [sys.executable, "-m", "pip", "config", "list"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    settings = {}
    for line in said.splitlines():
        key, is_pair, value = line.partition("=")
        if is_pair and value[:1] in ("'", '"'):
            settings[key] = str(ast.literal_eval(value))
    return settings


def find_file(index: str, project: str, file: str) -> str | None:
    """The URL of a project's file; None: the index has none of this name.

    Raises:
        OSError: the index does not answer, or not with a page of PEP 503 or 691.
    """
    page = f"{index}/{project}/"
    request = urllib.request.Request(page, headers={"Accept": _KINDS})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            kind, content = answer.headers.get("Content-Type", ""), answer.read(_MAX_PAGE)
            page = answer.url
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    try:
        links = dict(_json_links(content) if "json" in kind else _html_links(content))
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{page} is no page of a package index: {error}") from None
    return urllib.parse.urljoin(page, links[file]) if file in links else None


def reason(error: Exception) -> str:
    """Why there was no answer, without the words of urllib."""
    return str(error.reason if isinstance(error, urllib.error.URLError) else error) or type(error).__name__


def _json_links(content: bytes) -> Iterator[tuple[str, str]]:
    for file in json.loads(content)["files"]:
        yield str(file["filename"]), str(file["url"])


def _html_links(content: bytes) -> Iterator[tuple[str, str]]:
    found = _Links()
    found.feed(content.decode())
    for link in found.links:
        address = urllib.parse.urldefrag(link).url
        yield urllib.parse.unquote(address.rpartition("/")[2]), address


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]
