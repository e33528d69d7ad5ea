"""What a route's clients call the fields that errors are about. Names are of paths, never of words in a message."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

_STATE = "field_names"  # in the state of a request's ASGI scope


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """How one form of a request is written in another: paths of the inner form → paths of the outer one.

    A path is what its longest known beginning says: parts are compared whole.

    Attributes:
        paths: beginning → the outer one's, and what follows is kept. A part `*` is a position, which is kept as well.
        wholes: beginning → the outer one's, which is all that is said: what lies within has no place there.
        params: likewise as `wholes`, only for an error's `param`: messages say the bare name.
    """

    paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wholes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def name(self, path: str) -> str:
        """In a message."""
        parts = path.split(".")
        for size in range(len(parts), 0, -1):
            beginning, rest = parts[:size], parts[size:]
            exact = ".".join(beginning)
            if exact in self.wholes:
                return self.wholes[exact]
            if exact in self.paths:
                return ".".join([self.paths[exact], *rest])
            found = self.paths.get(".".join("*" if part.isdecimal() else part for part in beginning))
            if found is not None:
                positions = iter([part for part in beginning if part.isdecimal()])
                return ".".join([*(next(positions) if part == "*" else part for part in found.split(".")), *rest])
        return path

    def param(self, path: str) -> str:
        """As an error's `param`."""
        name = self.name(path)
        return self.params.get(name, name)


def message_paths(whole: str, paths: Sequence[str]) -> dict[str, str]:
    """The names of a chat request's messages, for `FieldNames.wholes`.

    Args:
        whole: what stands for all of them.
        paths: of each, in their order.
    """
    return {"messages": whole, **{f"messages.{position}": path for position, path in enumerate(paths)}}


class RequestNames:
    """The names of one request's fields, for its errors. Whoever translates the request adds what its form is called
    outside; whoever answers an error asks, at whatever time it comes."""

    def __init__(self) -> None:
        self._tables: list[FieldNames] = []

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> "RequestNames":
        """Of an HTTP request; the first who asks makes them. Args: scope: ASGI's."""
        state = scope.get("state", {})
        names: RequestNames = state.setdefault(_STATE, cls())
        return names

    def add(self, names: FieldNames) -> None:
        """From now on errors are about the form that these names translate from."""
        self._tables.append(names)

    def name(self, path: str) -> str:
        """In a message."""
        for table in reversed(self._tables):
            path = table.name(path)
        return path

    def param(self, path: str) -> str:
        """As an error's `param`."""
        for table in reversed(self._tables):
            path = table.param(path)
        return path
