"""MiniMax M3: an element for each argument, named by it, whose elements are the members of an object or the items of a
list; each tag follows a mark."""

from collections.abc import Mapping
from typing import Any

from palladio.http.tool_calls.reading.named_values import NamedCallParser, NamedValues
from palladio.http.tool_calls.reading.reader import CutOffError, MalformedCallError, Step
from palladio.http.tool_calls.reading.typed_values import parameter_schema, quote, to_json, types_of
from palladio.runtime.text.schemas.json_schemas import resolve_reference

_MAX_NAME = 256
_MAX_DEPTH = 32
_STRING = frozenset({"string"})
_ITEM = "item"


class NestedParser(NamedCallParser):
    """Strings are passed on as they come; what holds elements comes out whole."""

    MARK = "]<]minimax[>["
    OPEN, CLOSE = f"{MARK}<tool_call>", f"{MARK}</tool_call>"
    CALL, CALL_END = f'{MARK}<invoke name="', f"{MARK}</invoke>"

    def _read(self) -> Step[None]:
        while found := (yield from self._find((self.OPEN, self.CALL))):
            if (yield from self._attempt(self._call(found))):
                yield from self._reader.accept_after_space(self.CLOSE)

    def _call(self, found: str) -> Step[None]:
        if found == self.OPEN:
            yield from self._reader.expect_after_space(self.CALL)
        name, _ = yield from self._reader.text_until(('">',), limit=_MAX_NAME)
        yield from self._named_call(name, self._values)

    def _values(self, values: NamedValues) -> Step[None]:
        while True:
            yield from self._reader.expect_after_space(self.MARK)
            if (yield from self._reader.accept_after_space(self.CALL_END.removeprefix(self.MARK))):
                return
            yield from self._reader.expect("<")
            key, _ = yield from self._reader.text_until((">",), limit=_MAX_NAME)
            schema = parameter_schema(values.schema, key)
            if types_of(schema, values.schema) == _STRING:
                closing = f"{self.MARK}</{key}>"
                yield from values.read(self._reader, key, closing, others=(self.CALL_END,), is_exact=True)
            else:
                values.add(key, (yield from self._element(key, schema, values.schema, 1)))

    def _element(self, name: str, schema: object, root: Mapping[str, Any], depth: int) -> Step[str]:
        """The JSON text of an element after its opening tag.

        Raises:
            MalformedCallError: its tags do not fit, or are too deep.
        """
        if depth > _MAX_DEPTH:
            raise MalformedCallError
        schema = _resolved(schema, root)
        texts: list[str] = []
        children: list[tuple[str, str]] = []
        while True:
            if not (yield from self._reader.until((self.MARK,), texts.append)):
                raise CutOffError
            yield from self._reader.space()
            if (yield from self._reader.accept(f"</{name}>")):
                break
            yield from self._reader.expect("<")
            child, _ = yield from self._reader.text_until((">",), limit=_MAX_NAME)
            children.append((child, (yield from self._element(child, _inside(schema, child), root, depth + 1))))
        types = types_of(schema, root)
        if not children:
            return to_json("".join(texts), types)
        if "array" in types or (not types and all(child == _ITEM for child, _ in children)):
            return f"[{', '.join(value for _, value in children)}]"
        return f"{{{', '.join(f'{quote(child)}: {value}' for child, value in children)}}}"


def _resolved(schema: object, root: Mapping[str, Any]) -> object:
    """The schema that a reference means, or the one of its alternatives that has elements."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        if isinstance(schema.get("$ref"), str):
            schema = resolve_reference(root, schema["$ref"])
            continue
        choices = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(choices, list):
            break
        holders = (choice for choice in choices if types_of(choice, root) & {"array", "object"})
        found = next(holders, None)
        if found is None:
            break
        schema = found
    return schema


def _inside(schema: object, child: str) -> object:
    """The schema of an element inside of one."""
    if not isinstance(schema, Mapping):
        return {}
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and child in properties:
        return properties[child]
    return schema.get("items", {}) if child == _ITEM else schema.get("additionalProperties", {})
