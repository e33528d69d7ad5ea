"""Rebuilds tests/http/prompts/mistral_prompts.json with mistral-common, the oracle of the built-in template:

    python tests/http/prompts/make_mistral_prompts.py

Conversations, and the prompt of each in the versions of Mistral's format.
"""

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

CASES = Path(__file__).parent / "mistral_prompts.json"
SPECIALS = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
LATER = {7: (), 11: ("[ARGS]", "[CALL_ID]"), 13: ("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"name": "get_weather", "description": "Wetter für heute", "parameters": CITY}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, number: int, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call0000{number}", "type": "function", "function": function}


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "one message": ([said("user", "hi")], False),
    "a system prompt": (
        [said("system", "Be brief."), said("user", "hi"), said("assistant", "Yes?"), said("user", "So.")],
        False,
    ),
    "two messages of the user": ([said("user", "hi"), said("user", "there")], True),
    "tools": ([said("system", "Be brief."), said("user", "hi"), said("assistant", "a"), said("user", "b")], True),
    "calls": (
        [
            said("user", "hi"),
            said("assistant", "", tool_calls=[call("get_weather", 1, city="Zürich", days=3), call("now", 2)]),
            said("tool", "sun", tool_call_id="call00001"),
            said("tool", "noon", tool_call_id="call00002"),
            said("assistant", "Sun."),
            said("user", "Thanks."),
        ],
        True,
    ),
}


def tekken(vocabulary: dict[str, Any], version: int) -> dict[str, Any]:
    """tekken.json of a version."""
    names = [*SPECIALS, *LATER[version]]
    specials = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)]
    config = vocabulary["config"] | {"version": f"v{version}"}
    return vocabulary | {"config": config, "special_tokens": specials}


def main() -> None:
    stored = Path(__file__).parents[2] / "runtime/text/tokenizers/stored_tokenizers.json"
    files = json.loads(stored.read_text(encoding="utf-8"))["tekken"]["files"]
    vocabulary = json.loads(base64.b64decode(files["tekken.json"]))
    cases = []
    for version in LATER:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tekken.json"
            file.write_text(json.dumps(tekken(vocabulary, version)), encoding="utf-8")
            oracle = MistralTokenizer.from_file(str(file))
        for name, (messages, has_tools) in CONVERSATIONS.items():
            request = ChatCompletionRequest(messages=messages, tools=TOOLS if has_tools else None)
            text = oracle.encode_chat_completion(request).text
            cases.append({"version": version, "name": name, "text": text})
    found = {
        "specials": {version: [*SPECIALS, *later] for version, later in LATER.items()},
        "tools": TOOLS,
        "conversations": {name: list(pair) for name, pair in CONVERSATIONS.items()},
        "prompts": cases,
    }
    CASES.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
