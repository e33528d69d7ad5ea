"""Arguments that come one by one, each with a name, as one JSON object; and parsers of families that write them so."""

from collections.abc import Callable

from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.reader import CutOffError, MalformedCallError, Reader, Step
from palladio.http.tool_calls.reading.scripted import ScriptedParser
from palladio.http.tool_calls.reading.typed_values import parameter_schema, quote, to_json, types_of

_STRING = frozenset({"string"})


class NamedValues:
    """The arguments of a call that has begun.

    Attributes:
        schema: of all of them.
    """

    def __init__(self, output: CallOutput, name: str) -> None:
        self._output = output
        self.schema = output.functions[name].parameters
        self._num_values = 0

    def add(self, name: str, value: str) -> None:
        """A value that is JSON already."""
        self._key(name)
        self._output.arguments(value)

    def read(
        self,
        reader: Reader,
        name: str,
        closing: str,
        *,
        others: tuple[str, ...] = (),
        is_string: bool | None = None,
        is_exact: bool = False,
    ) -> Step[None]:
        """Reads a value as plain text; a string is passed on as it comes.

        Args:
            closing: the mark that ends it, and is read; a line break after the opening mark and before this one is not
                part of it.
            others: marks that end it as well where the model has left out the closing one; they are not read.
            is_string: what the family's own text says of it; None: the schema decides.
            is_exact: line breaks beside the marks are part of it.

        Raises:
            CutOffError: the text has ended within it. What has come so far is its value.
        """
        ends = (closing, *others)
        marks = ends
        if not is_exact:
            yield from reader.accept("\n")
            marks = (*(f"\n{mark}" for mark in ends), *ends)
        types = types_of(parameter_schema(self.schema, name), self.schema)
        if is_string if is_string is not None else types == _STRING:
            self._key(name)
            self._output.arguments('"')
            found = yield from reader.until(marks, self._add_to_string, drops_begun=True)
            self._output.arguments('"')
        else:
            parts: list[str] = []
            found = yield from reader.until(marks, parts.append, drops_begun=True)
            text = "".join(parts)
            if found or text.strip():
                self.add(name, to_json(text, types - _STRING if is_string is False else types))
        if not found:
            raise CutOffError
        if not found.endswith(closing):
            reader.back(len(found))

    def end(self) -> None:
        """Closes the object."""
        self._output.arguments("}" if self._num_values else "{}")

    def _add_to_string(self, text: str) -> None:
        self._output.arguments(quote(text)[1:-1])

    def _key(self, name: str) -> None:
        self._output.arguments(f"{', ' if self._num_values else '{'}{quote(name)}: ")
        self._num_values += 1


class NamedCallParser(ScriptedParser):
    """Common part of these families."""

    def _named_call(self, name: str, arguments: Callable[[NamedValues], Step[None]]) -> Step[bool]:
        """Reads a call's arguments, and whatever ends it. False: they are broken; the call has begun, so it keeps those
        that it has.

        Raises:
            MalformedCallError: there is no such function.
        """
        self._begin(name)
        values = NamedValues(self._output, name)
        try:
            yield from arguments(values)
        except MalformedCallError:
            return False
        finally:
            values.end()
        return True
