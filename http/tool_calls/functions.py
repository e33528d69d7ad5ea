"""The functions that a request offers, as parsers and grammars need them."""

import dataclasses
from collections.abc import Mapping
from typing import Any


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
