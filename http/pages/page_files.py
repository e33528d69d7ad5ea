"""PageFile: what browsers load, read once from the package, and how it is sent."""

import dataclasses
import functools
import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from starlette.datastructures import Headers
from starlette.responses import Response

FOLDER = Path(__file__).parent / "files"
DOCS = "docs.html"
TYPES = {  # only files of these kinds are served
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",  # licences of what is vendored
}
# Nothing inline runs or styles, nothing loads from or is sent to another origin, and no page frames these.
_ON_ALL_PAGES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
# Model output is hostile: no string becomes markup or code. Pictures are the user's own.
POLICY = "; ".join(
    (
        *_ON_ALL_PAGES,
        "img-src 'self' blob:",
        "base-uri 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
# Swagger UI makes markup of strings, and its style sheet has pictures inside.
DOCS_POLICY = "; ".join((*_ON_ALL_PAGES, "img-src 'self' data:", "base-uri 'none'"))
HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",  # a browser keeps it, and asks by its ETag whether it is still the same
    "Vary": "Accept, Accept-Encoding",
}


@dataclasses.dataclass(frozen=True)
class PageFile:
    """Attributes:
    content: as it is on disk.
    kind: its content type.
    policy: what a page may load and run.
    """

    content: bytes
    kind: str
    policy: str = POLICY

    @functools.cached_property
    def tag(self) -> str:
        """Its ETag: another one for each content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @functools.cached_property
    def packed(self) -> bytes:
        """Compressed, when the first browser asks."""
        return gzip.compress(self.content, 9, mtime=0)

    def answer(self, headers: Headers) -> Response:
        """Return the file, or 304 to a browser that has it.

        Args:
            headers: the request's.
        """
        own = HEADERS | {"ETag": self.tag, "Content-Security-Policy": self.policy}
        known = {tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")}
        if known & {self.tag, "*"}:
            return Response(status_code=304, headers=own)
        if "gzip" in headers.get("accept-encoding", "").lower():
            return Response(self.packed, headers=own | {"Content-Encoding": "gzip"}, media_type=self.kind)
        return Response(self.content, headers=own, media_type=self.kind)

    def based_on(self, root: str) -> "PageFile":
        """Return the HTML file with relative addresses that begin at `root`.

        Args:
            root: a path that ends with a slash.
        """
        base = f'<base href="{root}">'.encode()
        content = self.content.replace(b"<head>", b"<head>\n  " + base, 1)
        return dataclasses.replace(self, content=content)


@functools.cache
def page_files() -> Mapping[str, PageFile]:
    """By path below `files/`."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        kind = TYPES.get(path.suffix)
        if kind is not None:
            name = path.relative_to(FOLDER).as_posix()
            found[name] = PageFile(path.read_bytes(), kind, DOCS_POLICY if name == DOCS else POLICY)
    return MappingProxyType(found)
