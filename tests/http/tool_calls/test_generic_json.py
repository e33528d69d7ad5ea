"""Calls in JSON of a model that has no format of its own, wherever they stand in a text."""

import json
from typing import Any

import pytest

from palladio.http.tool_calls.json_formats import GENERIC_JSON
from tests.http.tool_calls.tool_texts import FUNCTIONS, read

CALL = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
NOW = '{"name": "now", "arguments": {}}'
WEATHER = ("get_weather", {"city": "Rome"})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"[{CALL}]", "", [WEATHER]),
        (f"[{CALL}, {NOW}]", "", [WEATHER, ("now", {})]),
        (CALL, "", [WEATHER]),
        (f"{CALL}\n{NOW}", "", [WEATHER, ("now", {})]),
        (f"Let me see.\n[{CALL}]", "Let me see.", [WEATHER]),
        (f"```json\n[{CALL}]\n```", "", [WEATHER]),
        (f"```\n{CALL}\n```\nDone.", "Done.", [WEATHER]),
        ('[{"name":"get_weather","parameters":{"city":"Rome"}}]', "", [WEATHER]),
        ('[{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]', "", [WEATHER]),
        ('[{"name": "get_weather", "arguments": {"city": "Ro', "", [("get_weather", {"city": "Ro"})]),
        ('[{"name": "John", "age": 3}]', '[{"name": "John", "age": 3}]', []),
        ('{"answer": [1, 2]}', '{"answer": [1, 2]}', []),
        ("```json\n[1]\n``` and [2](x) {y}", "```json\n[1]\n``` and [2](x) {y}", []),
        ("```python\nf()\n```", "```python\nf()\n```", []),
        ('{"city": "Rome", "name": "now"}', '{"city": "Rome", "name": "now"}', []),
        ("[", "[", []),
    ],
)
def test_calls_anywhere(text: str, content: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    for pieces in ([text], list(text)):
        found, named = read(GENERIC_JSON, pieces, FUNCTIONS)
        assert found == content
        assert [(name, json.loads(arguments)) for name, arguments in named] == calls
