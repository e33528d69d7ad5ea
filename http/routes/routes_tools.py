"""POST /parse_function_call: takes the tool calls out of a text, as SGLang's route of this name does."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from palladio.http.generation.context import Context
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.prompts.tools import offered_functions
from palladio.http.response_templates.readers import Event, read_whole
from palladio.http.routes.asked_template import asked_template
from palladio.http.tool_calls.reading.base import Functions, ToolCallParser
from palladio.http.tool_calls.registry import find_format
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.protocol_chat import ParseFunctionCallRequest, ToolFields
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError


def tools_router(context: Context) -> APIRouter:
    router = APIRouter()
    lock = asyncio.Lock()  # one text at a time: a megabyte takes a second of Python, which holds up the streams

    @router.post("/parse_function_call", openapi_extra=describe_body(ParseFunctionCallRequest))
    async def parse_function_call(
        body: Annotated[ParseFunctionCallRequest, Depends(JsonBody(ParseFunctionCallRequest))],
    ) -> dict[str, Any]:
        """The text without its calls, and the calls; `tool_index` is the place of the function in `tools`."""
        functions = offered_functions(ToolFields(tools=body.tools))
        spec = asked_template(context, body.tool_call_parser, "tool_call_parser")
        if spec is not None:
            tools = [{"function": {"name": one.name, "parameters": one.parameters}} for one in functions.values()]
            events = await read_whole(context.template_readers.reader(spec, "", tools), body.text)
            normal_text, calls = _from_events(events, functions)
        else:
            parser = _format(context, body.tool_call_parser).new_parser(functions)
            async with lock:
                normal_text, calls = await run_encoding(lambda: _parse(parser, body.text), len(body.text))
        places = {name: place for place, name in enumerate(functions)}
        return {
            "normal_text": normal_text,
            "calls": [{"tool_index": places[name], "name": name, "parameters": text} for name, text in calls],
        }

    return router


def _format(context: Context, name: str | None) -> ToolFormat:
    """
    Raises:
        InvalidRequestError: there is none of this name.
        EngineNotReadyError: none is named, and it is not known yet which the model has.
    """
    if name is None or name == "auto":
        context.require_ready()
        return context.facts.tool_format
    try:
        return find_format(name, "tool_call_parser")
    except ConfigError as exc:
        raise InvalidRequestError(str(exc), param="tool_call_parser") from None


def _from_events(events: Sequence[Event], functions: Functions) -> tuple[str, list[tuple[str, str]]]:
    """As `_parse`, of what a response template has read."""
    calls = [(event[1], event[2]) for event in events if event[0] == "call" and event[1] in functions]
    texts = (event[-1] for event in events if event[0] != "call" or event[1] not in functions)
    return "".join(texts), calls


def _parse(parser: ToolCallParser, text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text without its calls, and the name and arguments of each."""
    pieces = (parser.feed(text), parser.finish())
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for delta in (delta for piece in pieces for delta in piece.calls):
        if delta.name is not None:
            names[delta.index] = delta.name
        arguments.setdefault(delta.index, []).append(delta.arguments)
    calls = [(name, "".join(arguments[index])) for index, name in names.items()]
    return "".join(piece.content for piece in pieces), calls
