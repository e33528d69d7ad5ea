"""The routes that a batch can go to, without HTTP in between."""

import urllib.parse
from typing import Any

from palladio.http.generation.context import Endpoint
from palladio.http.responses.protocol_responses import ResponseRequest
from palladio.http.responses.routes_responses import complete_response
from palladio.http.routes.routes_chat import CHAT
from palladio.http.routes.routes_classify import CLASSIFY
from palladio.http.routes.routes_completions import COMPLETIONS
from palladio.http.routes.routes_embeddings import EMBEDDINGS
from palladio.http.routes.routes_scores import RERANK, SCORE

ENDPOINTS: tuple[Endpoint[Any], ...] = (
    CHAT,
    COMPLETIONS,
    Endpoint("/v1/responses", ResponseRequest, complete_response),
    EMBEDDINGS,
    SCORE,
    RERANK,
    CLASSIFY,
)


def find_endpoint(url: str) -> Endpoint[Any] | None:
    """By its path, with or without /v1, or by an absolute URL's."""
    try:
        path = urllib.parse.urlsplit(url).path
    except ValueError:
        return None
    return next((one for one in ENDPOINTS if path in (one.path, one.path.removeprefix("/v1"))), None)
