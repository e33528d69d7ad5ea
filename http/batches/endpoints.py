"""The routes that a batch can go to, without HTTP in between."""

import dataclasses
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from starlette.responses import Response

from palladio.http.chat.chat_run import complete_chat
from palladio.http.generation.context import Context
from palladio.http.generation.generation import Call
from palladio.http.responses.protocol_responses import ResponseRequest
from palladio.http.responses.routes_responses import complete_response
from palladio.http.routes.routes_completions import complete_text
from palladio.http.routes.routes_embeddings import create_embeddings
from palladio.http.wire.protocol import WireModel
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.http.wire.protocol_completions import CompletionRequest
from palladio.http.wire.protocol_embeddings import EmbeddingRequest

M = TypeVar("M", bound=WireModel)


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint(Generic[M]):
    """Attributes:
    path: of the route.
    model: what its body is.
    answer: what it does; of a body without `stream: true` it gives a plain response.
    """

    path: str
    model: type[M]
    answer: Callable[[Context, Call, M], Awaitable[Response]]

    async def run(self, context: Context, call: Call, body: object) -> Response:
        """Args: body: decoded JSON.

        Raises:
            PalladioError, HttpError: as the route does.
        """
        call.names.allow_warnings(context.note_warning)
        return await self.answer(context, call, self.model.parse(body, call.names))


ENDPOINTS: tuple[Endpoint[Any], ...] = (
    Endpoint("/v1/chat/completions", ChatRequest, complete_chat),
    Endpoint("/v1/completions", CompletionRequest, complete_text),
    Endpoint("/v1/responses", ResponseRequest, complete_response),
    Endpoint("/v1/embeddings", EmbeddingRequest, create_embeddings),
)


def find_endpoint(url: str) -> Endpoint[Any] | None:
    """By its path, with or without /v1, or by an absolute URL's."""
    try:
        path = urllib.parse.urlsplit(url).path
    except ValueError:
        return None
    return next((one for one in ENDPOINTS if path in (one.path, one.path.removeprefix("/v1"))), None)
