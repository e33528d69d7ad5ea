"""/v1/batches: OpenAI's batches."""

import re
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Query

from palladio.http.batches.batch import Batch
from palladio.http.batches.batch_run import log_status
from palladio.http.batches.batch_store import BatchStore
from palladio.http.batches.batch_worker import BatchWorker
from palladio.http.batches.endpoints import ENDPOINTS, find_endpoint
from palladio.http.files.upload import check_expiry
from palladio.http.security.callers import Caller, CallerOf
from palladio.http.storage.records.disk_errors import disk_errors
from palladio.http.storage.records.object_lists import new_id, page, position_after
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.protocol import AtMost, WireModel
from palladio.runtime.interface.errors import InvalidRequestError

MAX_PAIRS = 16  # of metadata
PREFIX = "batch_"
MAX_LISTED, LISTED = 100, 20
MAX_WINDOW = 30 * 24 * 3600  # seconds
MAX_KEY, MAX_VALUE = 64, 512  # of metadata, in characters

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


class OutputExpiresAfter(WireModel):
    anchor: Literal["created_at"]
    seconds: int


class BatchRequest(WireModel):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[str, str] | None, AtMost(MAX_PAIRS, "pairs")] = None
    output_expires_after: OutputExpiresAfter | None = None


def batches_router(store: BatchStore, worker: BatchWorker) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/batches", openapi_extra=describe_body(BatchRequest))
    async def create_batch(
        caller: CallerOf, body: Annotated[BatchRequest, Depends(JsonBody(BatchRequest))]
    ) -> dict[str, Any]:
        batch = new_batch(body, caller, store.now())
        with disk_errors():
            await store.create(batch, caller)
            await worker.start()
        log_status(batch)
        worker.run(batch.id)
        return batch.as_dict()

    @router.get("/v1/batches")
    async def list_batches(
        caller: CallerOf, after: str | None = None, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = LISTED
    ) -> dict[str, Any]:
        position = position_after(after, (PREFIX,))
        batches = await store.page(caller, after=position, limit=limit + 1)
        return page([batch.as_dict() for batch in batches], limit)

    @router.get("/v1/batches/{batch_id}")
    async def get_batch(batch_id: str, caller: CallerOf) -> dict[str, Any]:
        return (await store.get(batch_id, caller)).as_dict()

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel_batch(batch_id: str, caller: CallerOf) -> dict[str, Any]:
        with disk_errors():
            before = await store.get(batch_id, caller)
            batch = await store.cancel(batch_id, caller)
            await worker.start()
        if before.status != batch.status:
            log_status(batch)
            worker.run(batch_id, is_cancelling=True)
        return batch.as_dict()

    return router


def new_batch(body: BatchRequest, caller: Caller, now: float) -> Batch:
    """
    Args:
        now: seconds since the epoch.

    Raises:
        InvalidRequestError: a field is wrong; `param` names it.
    """
    endpoint = find_endpoint(body.endpoint)
    if endpoint is None:
        served = ", ".join(one.path for one in ENDPOINTS)
        raise InvalidRequestError(f"endpoint must be one of {served}, not {body.endpoint[:200]!r}", param="endpoint")
    window = _seconds(body.completion_window)
    expires_after = None
    if body.output_expires_after is not None:
        expires_after = check_expiry(body.output_expires_after.seconds, "output_expires_after.seconds")
    return Batch(
        id=new_id(PREFIX),
        endpoint=endpoint.path,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        status="validating",
        created_at=int(now),
        expires_at=int(now) + window,
        metadata=_metadata(body.metadata),
        output_expires_after=expires_after,
        owner=caller.owner,
    )


def _seconds(window: str) -> int:
    found = re.fullmatch(r"([1-9]\d{0,6})([smhd])", window, re.ASCII)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_WINDOW:
        message = "completion_window must be 24h, or another number of s, m, h or d up to 30d"
        raise InvalidRequestError(f"{message}, not {window[:100]!r}", param="completion_window")
    return seconds


def _metadata(metadata: dict[str, str] | None) -> str | None:
    if metadata is None:
        return None
    for key, value in metadata.items():
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            message = f"metadata: keys have at most {MAX_KEY} characters and values {MAX_VALUE}"
            raise InvalidRequestError(f"{message}; too long: {key[:MAX_KEY]!r}", param="metadata")
    return orjson.dumps(metadata).decode()
