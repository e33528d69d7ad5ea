"""What is wrong with a request's tools, and which field it is named by."""

from pathlib import Path
from typing import Any

import pytest

from palladio.http.prompts.tools import ToolPlan
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.wire.protocol_chat import ToolFields
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.http.tool_calls.tool_texts import WEATHER
from tests.tiny_tokenizer import build_tiny_tokenizer


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


TOOLS = [tool("get_weather", WEATHER), tool("now")]
NOW = {"type": "function", "function": {"name": "now"}}
FUNCTION = {"name": "f"}


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice", "must be"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice", "must be"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type", "not supported yet"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "with a name"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": FUNCTION}},
            "tool_choice.function.name",
            "there is no function 'f'; offered: get_weather, now",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools",
            "a list of tools",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW] * 129}},
            },
            "tool_choice.allowed_tools.tools",
            "128, got 129",
        ),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools", "128, got 129"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools.0.type", "not supported yet"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type", "must be"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "object with a name"),
        ({"tools": [tool("")]}, "tools.0.function.name", "letters"),
        ({"tools": [tool("a b")]}, "tools.0.function.name", "letters"),
        ({"tools": [tool("a" * 129)]}, "tools.0.function.name", "128"),
        ({"tools": [tool("a"), tool("a")]}, "tools.1.function.name", "another function has the same name, a"),
        ({"tools": [tool("a", [])]}, "tools.0.function.parameters", "JSON schema"),
        ({"tools": [tool("a", {"type": "string"})]}, "tools.0.function.parameters.type", "object"),
        ({"tools": [tool("a", {"properties": []})]}, "tools.0.function.parameters.properties", "map names"),
        ({"tools": [tool("a", {"required": "x"})]}, "tools.0.function.parameters.required", "list of names"),
        ({"tools": [tool("a", description=3)]}, "tools.0.function.description", "string"),
        ({"tools": [tool("a", strict="yes")]}, "tools.0.function.strict", "true or false"),
        ({"tools": TOOLS, "functions": [FUNCTION]}, "functions", "cannot be combined"),
        ({"functions": [FUNCTION], "function_call": {"name": "g"}}, "function_call.name", "no function 'g'"),
        ({"functions": [FUNCTION], "function_call": "must"}, "function_call", "must be"),
        ({"functions": ["f"]}, "functions.0", "dictionary"),
    ],
)
def test_errors(tmp_path: Path, body: dict[str, Any], param: str, reason: str) -> None:
    tokenizer = Tokenizer.load(build_tiny_tokenizer(tmp_path))
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        ToolPlan.of(ToolFields.parse(body), FORMATS["qwen25"], tokenizer)
    assert caught.value.param == param
