"""Fields of a request as its client wrote them: their names in errors, and warnings of those that have no effect."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

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
        """This map inside another form.

        Args:
            outer: the map of the form that this one was translated from.
        """
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


MAX_WARNINGS = 32  # of one request; what would be one more is an error
WARNINGS = "warnings"  # the field of every answer that has some
NoteWarning = Callable[[str, str], None]  # takes the path of a field without effect, and the code


@dataclasses.dataclass(frozen=True, slots=True)
class FieldWarning:
    """
    Attributes:
        message: what is wrong with the field, and what has become of it.
        param: its path, as the client wrote it.
    """

    message: str
    param: str | None
    code: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Warnings:
    """The warnings of a request so far, in the order in which they were found.

    Attributes:
        are_errors: --unknown-fields refuse: no field passes, and there are no warnings.
    """

    entries: tuple[FieldWarning, ...] = ()
    are_errors: bool = True

    def fields(self) -> dict[str, Any]:
        """Fields for the answer; none, if there are no warnings."""
        return {WARNINGS: [dataclasses.asdict(entry) for entry in self.entries]} if self.entries else {}

    def has(self, param: str) -> bool:
        """Whether there is one about this field of the client's."""
        return any(entry.param == param for entry in self.entries)

    def note_since(self, before: "Warnings", note: NoteWarning | None) -> None:
        """Calls `note` for each warning that was added to those before. A refused request has its error instead."""
        if note is not None:
            for entry in self.entries[len(before.entries) :]:
                note(entry.param or "", entry.code or "")


NONE_PASS = Warnings()  # of a request whose fields must all have an effect


class WarningList:
    """Collects the warnings of one translation of a request.

    Args:
        before: those of what came before it.
        names: what the client calls the fields of the form that is translated.

    Attributes:
        found: all of them, those before included.
    """

    def __init__(self, before: Warnings, names: FieldMap = AS_SENT) -> None:
        self.found = before
        self._names = names

    def has(self, path: str) -> bool:
        """Whether there is a warning about this field."""
        return bool(self.found.entries) and self.found.has(self._names.param(path))

    def warn(self, error: InvalidRequestError, outcome: str = "ignored") -> None:
        """Lets a field pass that has no effect, or not all of it.

        Args:
            error: what is wrong with it.
            outcome: what has become of it.

        Raises:
            InvalidRequestError: this one, where no field may pass.
        """
        param = None if error.param is None else self._names.param(error.param)
        if any(entry.param == param for entry in self.found.entries):
            return
        if self.found.are_errors or len(self.found.entries) >= MAX_WARNINGS:
            raise error
        message = f"{error.message.rename(self._names.name)} ({outcome})"
        entries = (*self.found.entries, FieldWarning(message, param, error.code))
        self.found = dataclasses.replace(self.found, entries=entries)
