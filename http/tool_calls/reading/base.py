"""What a tool-call parser is given, the functions of a request, and what it makes of a sample's text, however the text
is cut."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One function.

    Attributes:
        parameters: the JSON schema of its arguments, which are an object.
        strict: the arguments are to be held to the schema even where the model is free to call or not.
        path: of the schema in the request, for errors; "" if it is none of the client's.
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    path: str = ""


Functions = Mapping[str, Function]  # by name


@dataclasses.dataclass(frozen=True, slots=True)
class ToolDelta:
    """The next piece of a tool call.

    Attributes:
        index: which call of the sample, from 0.
        name: with the first piece of a call only, and complete.
        id: with the first piece of a call only.
        arguments: the next piece of the arguments' JSON text.
    """

    index: int
    name: str | None = None
    id: str | None = None
    arguments: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ToolPiece:
    """What became certain with a piece of text.

    Attributes:
        content: text that is no tool call.
        calls: pieces of calls, in order.
    """

    content: str = ""
    calls: tuple[ToolDelta, ...] = ()


class ToolCallParser(Protocol):
    """State of one sample. Content, names and concatenated arguments do not depend on how the text was cut."""

    def feed(self, text: str) -> ToolPiece:
        """Takes new text; what may still become part of a call is held back."""

    def finish(self) -> ToolPiece:
        """What was held back, at the end of the text; the arguments of a call that was cut off become valid JSON."""
