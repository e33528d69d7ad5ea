"""The fields of a request that are about tools."""

from typing import Annotated, Any

from pydantic import Field

from palladio.http.wire.protocol import ParsedText, WireModel

Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class ToolFields(WireModel):
    """What the tools look like is checked when they are read: the errors then name the tool."""

    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Objects | None = None
    function_call: str | dict[str, Any] | None = None


class ParseFunctionCallRequest(WireModel):
    """POST /parse_function_call."""

    text: ParsedText
    tools: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    tool_call_parser: Annotated[str, Field(min_length=1)] | None = None
