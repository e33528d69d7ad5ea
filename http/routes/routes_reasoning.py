"""POST /separate_reasoning: a reasoning parser on its own, for texts from elsewhere."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends

from palladio.http.generation.context import Context
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.reasoning.family import ReasoningFamily
from palladio.http.reasoning.registry import NAMES, find_family
from palladio.http.response_templates.readers import Event, read_whole
from palladio.http.routes.asked_template import asked_template
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.protocol_chat import SeparateReasoningRequest
from palladio.runtime.interface.errors import InvalidRequestError


def reasoning_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/separate_reasoning", openapi_extra=describe_body(SeparateReasoningRequest))
    async def separate_reasoning(
        body: Annotated[SeparateReasoningRequest, Depends(JsonBody(SeparateReasoningRequest))],
    ) -> dict[str, str]:
        """Splits a whole answer."""
        spec = asked_template(context, body.reasoning_parser, "reasoning_parser")
        if spec is not None:
            events = await read_whole(context.template_readers.reader(spec, "", ()), body.text)
            return {"reasoning_text": _joined(events, "reasoning"), "text": _joined(events, "content")}
        family = _family(context, body)
        return await run_encoding(lambda: _separate(family, body.text), len(body.text))

    return router


def _joined(events: Sequence[Event], kind: str) -> str:
    """Calls are part of the content, without their marks."""
    texts = (event[-1] for event in events if event[0] == kind or (event[0] == "call" and kind == "content"))
    return "".join(texts)


def _separate(family: ReasoningFamily, text: str) -> dict[str, str]:
    parser = family.new_parser(family.guess_end(text))
    pieces = [*parser.feed(text), *parser.finish()]
    return {
        "reasoning_text": "".join(piece.reasoning for piece in pieces),
        "text": "".join(piece.content for piece in pieces),
    }


def _family(context: Context, body: SeparateReasoningRequest) -> ReasoningFamily:
    """
    Raises:
        InvalidRequestError: there is no such parser, or none is named and the model has none.
        EngineNotReadyError: none is named, and it is not known yet which the model has.
    """
    if body.reasoning_parser is None:
        context.require_ready()
        found, problem = context.facts.reasoning, "reasoning_parser is missing, and the served model has none"
    else:
        found, problem = find_family(body.reasoning_parser), f"no reasoning parser {body.reasoning_parser[:100]!r}"
    if found is None:
        raise InvalidRequestError(f"{problem}; available: {', '.join(NAMES)}", param="reasoning_parser")
    return found
