"""How a chat template takes the tool calls of earlier messages: what it does with them differs by family."""

import re
from collections.abc import Callable
from typing import Any

from palladio.runtime.interface.errors import InvalidRequestError

_NULL_TEST = re.compile(r"""\b(\w+(?:\[['"]content['"]\]|\.content))\s+is\s+(not\s+)?none\b""", re.IGNORECASE)
_PROBE = "probe"


def takes_arguments_as_text(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    """Whether the template puts the arguments between strings as they are: found by rendering a call.

    Args:
        render: messages → prompt.
    """
    function = {"name": "f", "arguments": {_PROBE: 1}}
    call = {"id": "call00000", "type": "function", "function": function}  # Mistral takes ids of nine characters only
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "b"},
    ]
    try:
        if f"{{'{_PROBE}'" not in render(messages):
            return False
    except InvalidRequestError:
        pass  # an object between strings is an error; so may be something else
    function["arguments"] = f'{{"{_PROBE}": 1}}'
    try:
        return _PROBE in render(messages)
    except InvalidRequestError:
        return False


def takes_one_text(template: str) -> bool:
    """Whether the template refuses content beside reasoning in a message with calls, as gpt-oss's own does; it writes
    either as reasoning."""
    return "both content and thinking" in template


def tells_null(template: str) -> bool:
    """Whether the template knows a message with calls by its content being null, as DeepSeek's do."""
    return _NULL_TEST.search(template) is not None


def without_nulls(template: str) -> str:
    """The template, with content that is left out in place of null: transformers leaves out whatever is null."""
    return _NULL_TEST.sub(lambda test: f"({test[1]} is {'defined' if test[2] else 'undefined'})", template)
