"""FieldMap: what the client calls the fields of a form that its request was translated to."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from palladio.runtime.interface.errors import InvalidRequestError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FieldMap:
    """Paths in the form that a function reads → paths in the request as the client sent it.

    A path is what its longest known beginning says: parts are compared whole. Translations of translations are chained
    by `outer`: chat's `max_completion_tokens` is `max_output_tokens` in a response.

    Attributes:
        paths: beginning → the outer one's, and what follows is kept. A part `*` is a position, which is kept as well.
        wholes: beginning → the outer one's, which is all that is said: what is within has no path there.
        params: the same as `wholes`, but only for an error's `param`: messages say the bare name.
        outer: the map of the form that this one was translated from; None: the client sent that form.
    """

    paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wholes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outer: "FieldMap | None" = None

    def within(self, outer: "FieldMap") -> Self:
        """Args: outer: the map of the form that this one was translated from."""
        return dataclasses.replace(self, outer=outer if self.outer is None else self.outer.within(outer))

    def name(self, path: str) -> str:
        """The client's path, as messages write it."""
        name = self._name(path)
        return name if self.outer is None else self.outer.name(name)

    def param(self, path: str) -> str:
        """The client's path, as an error's `param`."""
        name = self._name(path)
        name = self.params.get(name, name)
        return name if self.outer is None else self.outer.param(name)

    def renamed(self, error: InvalidRequestError) -> InvalidRequestError:
        """The same error in the client's names."""
        return error.renamed(self.name, self.param)

    @contextlib.contextmanager
    def renaming(self) -> Iterator[None]:
        """A context whose errors come out in the client's names."""
        try:
            yield
        except InvalidRequestError as error:
            raise self.renamed(error) from error.__cause__

    def _name(self, path: str) -> str:
        """One translation back."""
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


AS_SENT = FieldMap()  # of the form that the client sent itself


def message_paths(whole: str, paths: Sequence[str]) -> dict[str, str]:
    """The names of a chat request's messages, for `FieldMap.wholes`.

    Args:
        whole: what stands for all of them.
        paths: of each, in their order.
    """
    return {"messages": whole, **{f"messages.{position}": path for position, path in enumerate(paths)}}
