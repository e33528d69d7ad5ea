"""POST /parse_function_call."""

import concurrent.futures
import time

import httpx
import pytest

from palladio.http.routes import routes_tools
from palladio.http.tool_calls.reading.base import ToolCallParser
from palladio.http.wire.protocol import MAX_PARSED_TEXT
from tests.http.chat.test_chat_tools import REPLY, TOOLS


def test_parse_function_call(http: httpx.Client) -> None:
    body = {"text": REPLY, "tools": TOOLS, "tool_call_parser": "qwen25"}
    assert http.post("/parse_function_call", json=body).json() == {
        "normal_text": "I look.",
        "calls": [
            {"tool_index": 0, "name": "get_weather", "parameters": '{"city": "Zürich", "days": 3}'},
            {"tool_index": 1, "name": "now", "parameters": "{}"},
        ],
    }
    assert len(http.post("/parse_function_call", json=body | {"tool_call_parser": None}).json()["calls"]) == 2
    answer = http.post("/parse_function_call", json=body | {"tool_call_parser": "nobody"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_call_parser")
    assert http.post("/parse_function_call", json=body | {"tools": []}).status_code == 400
    answer = http.post("/parse_function_call", json=body | {"text": "x" * (MAX_PARSED_TEXT + 1)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text")
    assert str(MAX_PARSED_TEXT) in answer.json()["error"]["message"]


def test_long_texts_are_parsed_one_at_a_time(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, running, most = routes_tools._parse, [0], [0]

    def watched(parser: ToolCallParser, text: str) -> tuple[str, list[tuple[str, str]]]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.1)
        running[0] -= 1
        return parse(parser, text)

    monkeypatch.setattr(routes_tools, "_parse", watched)
    body = {"text": "x" * 500_000, "tools": TOOLS, "tool_call_parser": "qwen25"}
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: http.post("/parse_function_call", json=body).status_code, range(4)))
    assert (answers, most) == ([200] * 4, [1])
