"""/v1/files: OpenAI's files."""

import contextlib
import logging
import urllib.parse
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from palladio.http.files.file_store import (
    INPUT_PREFIX,
    PURPOSES,
    RESULT_PREFIX,
    FileStore,
    contents_gone,
)
from palladio.http.files.upload import MAX_EXPIRY, MIN_EXPIRY, read_upload
from palladio.http.generation.context import Context
from palladio.http.security.callers import Caller, CallerOf
from palladio.http.storage.records.disk_errors import disk_errors
from palladio.http.storage.records.object_lists import page, position_after
from palladio.http.wire.errors import HttpError

logger = logging.getLogger(__name__)

MAX_LISTED = 10_000

_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_EXPIRY, "maximum": MAX_EXPIRY},
    },
}
_UPLOAD = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}


def files_router(context: Context, store: FileStore) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/files", openapi_extra=_UPLOAD)
    async def upload_file(request: Request, caller: CallerOf) -> dict[str, Any]:
        context.storage.database.check()  # no upload for a file that would be refused
        with disk_errors():
            return await _upload(request, caller, store, context.config.max_file_bytes)

    @router.get("/v1/files")
    async def list_files(
        caller: CallerOf,
        purpose: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        position = position_after(after, (INPUT_PREFIX, RESULT_PREFIX))
        files = await store.page(caller, purpose=purpose, after=position, limit=limit + 1, order=order)
        return page([file.as_dict() for file in files], limit)

    @router.get("/v1/files/{file_id}")
    async def get_file(file_id: str, caller: CallerOf) -> dict[str, Any]:
        return (await store.get(file_id, caller)).as_dict()

    @router.get("/v1/files/{file_id}/content", response_model=None)
    async def get_content(file_id: str, caller: CallerOf) -> Response:
        file = await store.get(file_id, caller)
        pieces = store.read(file.id)
        try:
            with disk_errors(missing=False):
                first = await anext(pieces, b"")
        except FileNotFoundError:
            await store.get(file_id, caller)  # raises HttpError if it was deleted a moment ago
            logger.error("The contents of file %s are missing", file.id)
            raise HttpError(contents_gone(file_id)) from None
        quoted = urllib.parse.quote(file.filename, safe="")
        headers = {
            "Content-Length": str(file.bytes),
            "Content-Disposition": f"attachment; filename*=utf-8''{quoted}",
            "X-Content-Type-Options": "nosniff",
        }
        return StreamingResponse(_chunks(first, pieces), media_type="application/octet-stream", headers=headers)

    @router.delete("/v1/files/{file_id}")
    async def delete_file(file_id: str, caller: CallerOf) -> dict[str, Any]:
        with disk_errors():
            await store.delete(file_id, caller)
        return {"id": file_id, "object": "file", "deleted": True}

    return router


async def _upload(request: Request, caller: Caller, store: FileStore, max_bytes: int) -> dict[str, Any]:
    upload = await read_upload(request, store, max_bytes)
    file = store.describe(
        upload.contents,
        purpose=upload.purpose,
        filename=upload.filename,
        expires_after=upload.expires_after,
        owner=caller.owner,
    )
    async with store.dropped_on_failure([upload.contents], but_not_on_cancel=True):
        await store.add(file)
    return file.as_dict()


async def _chunks(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece
