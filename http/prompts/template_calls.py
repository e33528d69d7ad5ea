"""How a chat template takes the tool calls of earlier messages: what it does with them differs by family."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Self

from palladio.runtime.interface.errors import InvalidRequestError

_NULL_TEST = re.compile(r"""\b(\w+(?:\[['"]content['"]\]|\.content))\s+is\s+(not\s+)?none\b""", re.IGNORECASE)
_PROBE = "probe"


@dataclasses.dataclass(frozen=True, slots=True)
class CallForms:
    """How a template takes the arguments of earlier calls.

    Attributes:
        as_text: it puts them between strings as they are; else it takes them as an object.
        cut_as_text: it takes text there that is no JSON object, such as arguments that were cut off.
    """

    as_text: bool = False
    cut_as_text: bool = True

    @classmethod
    def of(cls, render: Callable[[list[dict[str, Any]]], str]) -> Self:
        """Find the forms by rendering calls.

        Args:
            render: messages → prompt.
        """
        as_text = _takes_as_text(render)
        return cls(as_text, as_text or _PROBE in _rendered(render, f'{{"{_PROBE}": "cut o'))


def _takes_as_text(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    text = _rendered(render, {_PROBE: 1})
    if text and f"{{'{_PROBE}'" not in text:
        return False  # an object between strings is an error, which gives no text; so may be something else
    return _PROBE in _rendered(render, f'{{"{_PROBE}": 1}}')


def _rendered(render: Callable[[list[dict[str, Any]]], str], arguments: object) -> str:
    """A conversation with a call; "" if the template refuses it."""
    function = {"name": "f", "arguments": arguments}
    call = {"id": "call00000", "type": "function", "function": function}  # Mistral takes ids of nine characters only
    try:
        return render(
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "b"},
            ]
        )
    except InvalidRequestError:
        return ""


def takes_one_text(template: str) -> bool:
    """Whether the template refuses a message with calls that has content and reasoning, as gpt-oss's own does; it
    writes either as reasoning."""
    return "both content and thinking" in template


def tests_null(template: str) -> bool:
    """Whether the template knows a message with calls by its content being null, as DeepSeek's do."""
    return _NULL_TEST.search(template) is not None


def without_nulls(template: str) -> str:
    """The template, with content that is left out in place of null: transformers leaves out whatever is null."""
    return _NULL_TEST.sub(lambda test: f"({test[1]} is {'defined' if test[2] else 'undefined'})", template)
