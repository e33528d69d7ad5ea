"""Warnings: the fields of a request that pass without their effect, which its answer lists."""

import dataclasses
from collections.abc import Callable
from typing import Any

from palladio.http.wire.field_map import AS_SENT, FieldMap
from palladio.runtime.interface.errors import InvalidRequestError

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
