"""Routes of RL trainers: pause generation, exchange the weights, release device memory. SGLang's names and fields."""

import asyncio
import base64
import binascii
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from palladio.http.generation.context import Context
from palladio.http.security.admin_access import check_admin_access
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.http.wire.protocol_model_control import (
    ContinueRequest,
    MemoryRequest,
    PauseRequest,
    UpdateFromDiskRequest,
    UpdateFromTensorRequest,
)
from palladio.runtime.front.control.model_switch import ModelSwitch
from palladio.runtime.interface.errors import InvalidRequestError


def model_control_router(context: Context) -> APIRouter:
    async def may_control(request: Request) -> None:
        check_admin_access(context.config, request, "controlling the model")

    router = APIRouter(dependencies=[Depends(may_control)])
    _add_pause(router, context.engine.model)
    _add_memory(router, context.engine.model)
    _add_updates(router, context)
    return router


def _add_pause(router: APIRouter, model: ModelSwitch) -> None:
    @router.post("/pause_generation", openapi_extra=describe_body(PauseRequest))
    async def pause_generation(
        body: Annotated[PauseRequest, Depends(JsonBody(PauseRequest, is_optional=True))],
    ) -> dict[str, str]:
        """Stops generation; new requests wait. `mode`: abort (default), retract or in_place."""
        await model.pause(body.mode or "abort")
        return {"message": "Generation paused successfully.", "status": "ok"}

    @router.post("/continue_generation", openapi_extra=describe_body(ContinueRequest))
    async def continue_generation(
        body: Annotated[ContinueRequest, Depends(JsonBody(ContinueRequest, is_optional=True))],
    ) -> dict[str, str]:
        """Ends a pause; without one it does nothing."""
        await model.go_on()
        return {"message": "Generation continued successfully.", "status": "ok"}


def _add_memory(router: APIRouter, model: ModelSwitch) -> None:
    @router.post("/release_memory_occupation", openapi_extra=describe_body(MemoryRequest))
    async def release_memory_occupation(
        body: Annotated[MemoryRequest, Depends(JsonBody(MemoryRequest, is_optional=True))],
    ) -> dict[str, Any]:
        """Frees device memory: `tags` weights, kv_cache, or both. Until all is restored, requests get a 503."""
        await model.release(body.tags)
        return {"released": sorted(model.released)}

    @router.post("/resume_memory_occupation", openapi_extra=describe_body(MemoryRequest))
    async def resume_memory_occupation(
        body: Annotated[MemoryRequest, Depends(JsonBody(MemoryRequest, is_optional=True))],
    ) -> dict[str, Any]:
        """Restores device memory: the weights from where they came, the KV cache empty."""
        await model.resume(body.tags)
        return {"released": sorted(model.released)}


def _add_updates(router: APIRouter, context: Context) -> None:
    model, folders = context.engine.model, context.config.weight_update_folders

    async def are_on() -> None:
        if not folders:
            raise HttpError(
                ErrorBody(
                    403,
                    "weights cannot be updated over HTTP: start the server with --weight-update-folders FOLDER",
                    code="weight_updates_off",
                )
            )

    updates = APIRouter(dependencies=[Depends(are_on)])

    @updates.post("/update_weights_from_disk", openapi_extra=describe_body(UpdateFromDiskRequest))
    async def update_weights_from_disk(
        body: Annotated[UpdateFromDiskRequest, Depends(JsonBody(UpdateFromDiskRequest))],
    ) -> dict[str, Any]:
        """Exchanges the weights for those in a directory below --weight-update-folders."""
        options = body.options()
        path = await asyncio.to_thread(_place, body.model_path, folders)
        return _updated(await model.update(path, options), model)

    @updates.post("/update_weights_from_tensor", openapi_extra=describe_body(UpdateFromTensorRequest))
    async def update_weights_from_tensor(
        body: Annotated[UpdateFromTensorRequest, Depends(JsonBody(UpdateFromTensorRequest))],
    ) -> dict[str, Any]:
        """Exchanges the weights for those in the body: a safetensors file in base64."""
        options, text = body.options(), body.content()
        try:
            content = await asyncio.to_thread(base64.b64decode, text, validate=True)
        except binascii.Error as error:
            raise InvalidRequestError(f"safetensors is not base64: {error}", param="safetensors") from error
        return _updated(await model.update_sent(content, options), model)

    router.include_router(updates)


def _updated(count: int, model: ModelSwitch) -> dict[str, Any]:
    return {
        "success": True,
        "message": "Succeeded to update model weights.",
        "num_paused_requests": count,
        "weight_version": model.version,
    }


def _place(given: str, folders: tuple[str, ...]) -> Path:
    """The directory that is meant. It may block for the disk.

    Raises:
        InvalidRequestError: it is none, or lies elsewhere.
    """
    try:
        path = Path(given).expanduser().resolve()
        roots = [Path(folder).expanduser().resolve() for folder in folders]
        is_within, is_folder = any(path.is_relative_to(root) for root in roots), path.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, a loop of links (RuntimeError before Python 3.13)
        raise InvalidRequestError(f"model_path is not a valid path: {error}", param="model_path") from error
    if not is_within:
        raise InvalidRequestError(
            "model_path must lie in a folder that --weight-update-folders names at the start of the server",
            param="model_path",
        )
    if not is_folder:
        raise InvalidRequestError(
            f"model_path {given!r} is not a directory; hub ids are not looked up: download the weights first",
            param="model_path",
        )
    return path
