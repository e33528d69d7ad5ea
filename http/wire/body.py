"""Reading a JSON request body: as a FastAPI dependency that answers every fault with an OpenAI error."""

import copy
import functools
from typing import Any, Generic, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.http.wire.nesting import read_json
from palladio.http.wire.protocol import WireModel
from palladio.runtime.interface.errors import InvalidRequestError, RequestAbortedError

M = TypeVar("M", bound=WireModel)


class JsonBody(Generic[M]):
    """A dependency that gives the request body as `model`.

    Args:
        is_optional: no body is an empty object.
    """

    def __init__(self, model: type[M], *, is_optional: bool = False) -> None:
        self._model = model
        self._is_optional = is_optional

    async def __call__(self, request: Request) -> M:
        return self._model.parse(await read_body(request, is_optional=self._is_optional))


async def read_body(request: Request, *, is_optional: bool = False) -> object:
    """The request body's JSON.

    Args:
        is_optional: no body is an empty object.

    Raises:
        HttpError, InvalidRequestError: it is none.
        RequestAbortedError: the client went away.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        message = f"the content type must be application/json, not {media_type[:100]!r}"
        raise HttpError(ErrorBody(415, message, code="unsupported_media_type"))
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise RequestAbortedError("the client went away before its request was read") from None
    return {} if is_optional and not raw else _decode(raw)


def describe_body(model: type[WireModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route that takes this body."""
    content = {"application/json": {"schema": copy.deepcopy(_schema_of(model))}}
    return {"requestBody": {"required": True, "content": content}}


@functools.lru_cache
def _schema_of(model: type[WireModel]) -> dict[str, Any]:
    """Without references. Making it takes most of the time that making an app takes."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline(schema, definitions)
    return inlined


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}


def _decode(raw: bytes) -> object:
    if not raw:
        raise InvalidRequestError("the request body is empty; it must be a JSON object", code="invalid_json")
    return read_json(raw, "the request body", code="invalid_json", is_counted=True)  # BodyLimit has counted them
