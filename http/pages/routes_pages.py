"""GET /, the files of the pages, and /docs."""

import html
from collections.abc import Callable

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from palladio.http.pages.page_files import DOCS, PageFile, page_files
from palladio.http.settings.http_config import HttpConfig

PAGES = {"/": "chat.html", "/dashboard": "dashboard.html"}  # route → file
PREFIX = "/ui/"  # of the routes of all other files
DOCS_FILES = {  # of /docs, which is there with --no-ui, too; the API's keys are its keys
    "icon.svg": "icon.svg",
    "docs.css": "docs/docs.css",
    "docs.js": "docs/docs.js",
    "swagger-ui.css": "vendor/swagger-ui/swagger-ui.css",
    "swagger-ui-bundle.js": "vendor/swagger-ui/swagger-ui-bundle.js",
}


def page_paths(config: HttpConfig) -> frozenset[str]:
    """Return the routes that need no key, because they reveal nothing: the page asks the user for the key."""
    return frozenset((*PAGES, *_other_paths())) if config.ui else frozenset()


def pages_router(config: HttpConfig) -> APIRouter:
    router = APIRouter()
    pages = _pages(config) if config.ui else {}

    @router.get("/", response_model=None)
    async def root(request: Request) -> Response:
        """The chat page for browsers; a line of text for clients that look here whether there is a server."""
        page = pages.get("/")
        if page is not None and "text/html" in request.headers.get("accept", "").lower():
            return page.answer(request.headers)
        return Response("Palladio is running", media_type="text/plain", headers={"Vary": "Accept"})

    async def show(request: Request) -> Response:
        return pages[request.scope["route"].path].answer(request.headers)

    async def send(request: Request, name: str) -> Response:
        file = page_files().get(name)
        if file is None or name.endswith(".html"):
            raise HTTPException(404)
        return file.answer(request.headers)

    routes = {path: show for path in pages if path != "/"} | ({PREFIX + "{name:path}": send} if pages else {})
    for path, endpoint in routes.items():
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False, response_model=None)
    _add_docs(router)
    return router


def _add_docs(router: APIRouter) -> None:
    """The API in Swagger UI. Not async: these run in threads, for packing a megabyte takes a tenth of a second."""

    def docs(request: Request) -> Response:
        return page_files()[DOCS].answer(request.headers)

    def docs_file(request: Request, name: str) -> Response:
        if name not in DOCS_FILES:
            raise HTTPException(404)
        return page_files()[DOCS_FILES[name]].answer(request.headers)

    def redoc() -> Response:
        return RedirectResponse("docs")

    routes: dict[str, Callable[..., Response]] = {"/docs": docs, "/docs/{name}": docs_file, "/redoc": redoc}
    for path, endpoint in routes.items():
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False, response_model=None)


def _pages(config: HttpConfig) -> dict[str, PageFile]:
    """By route. Behind --root-path, pages say where they are, so that they also work without a slash at the end."""
    pages = {path: page_files()[name] for path, name in PAGES.items()}
    root = config.root_path.rstrip("/")
    return {path: page.based_on(html.escape(f"{root}/")) for path, page in pages.items()} if root else pages


def _other_paths() -> frozenset[str]:
    return frozenset(PREFIX + name for name in page_files() if not name.endswith(".html"))
