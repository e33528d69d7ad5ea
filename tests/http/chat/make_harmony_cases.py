"""Rebuilds tests/http/chat/harmony_cases.json with openai-harmony and its vocabulary:

    python tests/http/chat/make_harmony_cases.py

Conversations as the library renders them, and completions as it takes them apart.
"""

import json
from pathlib import Path
from typing import Any

from openai_harmony import (
    Author,
    Conversation,
    DeveloperContent,
    HarmonyEncodingName,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    ToolDescription,
    load_harmony_encoding,
)

CASES = Path(__file__).parent / "harmony_cases.json"
DATE = "2025-06-28"
ENCODING = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _tool(name: str, description: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    fields = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, "description": description, **fields}}


WEATHER = _tool(
    "get_current_weather",
    "Gets the current weather in the provided location.",
    _object(
        ("location",),
        location={"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
        format={"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    ),
)
NOW = _tool("now", "")
TYPES = _tool(
    "types",
    "Two\nlines.",
    _object(
        ("a", "h"),
        a={"type": "integer", "description": "A", "default": 3},
        b={"type": "array", "items": {"type": "string"}, "default": ["x", 1]},
        c={"type": "array"},
        d={"type": ["string", "null"]},
        e={"type": "string", "nullable": True, "default": None},
        f={"type": "boolean", "default": True},
        g={"type": "string", "title": "G", "description": "", "examples": ["u", "v"], "default": "w"},
        h=_object(("i",), i={"type": "number", "description": "I"}, j=_object(k={"type": "string"})),
        l={"type": "array", "items": _object(m={"oneOf": [{"type": "string"}, {"type": "number"}]})},
        n={
            "oneOf": [
                {"type": "string", "enum": ["x", "y"], "default": "x"},
                {"type": "number", "description": "N", "default": 2},
                _object(k={"type": "string"}),
            ],
            "description": "One of them",
            "default": "x",
        },
        o={"anyOf": [{"type": "string"}, {"type": "null"}]},
        p={"enum": ["x", "y"]},
        q={},
        r={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        s={"type": ["integer", "null"], "nullable": True, "default": 1},
        t={"type": "null"},
        u={"type": "object", "nullable": True, "default": {"a": 1}},
        v={"type": "string", "enum": ["a", 1]},
    ),
)


def _call(name: str, arguments: str, number: int = 0) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


ASKED = {"role": "user", "content": "What is the weather in Tokyo?"}
CALLS: tuple[dict[str, Any], ...] = (
    ASKED,
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "I must look.",
        "tool_calls": [_call("get_current_weather", '{"location": "Tokyo"}')],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": '{ "temperature": 20, "sunny": true }'},
)
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one message": {"messages": [{"role": "user", "content": 'Hi <you> & "me"'}]},
    "instructions": {
        "messages": [{"role": "system", "content": "Always respond in riddles"}, ASKED],
        "reasoning_effort": "high",
    },
    "tools": {"messages": [ASKED], "tools": [WEATHER, NOW], "reasoning_effort": "low"},
    "instructions and tools": {"messages": [{"role": "developer", "content": "Be brief."}, ASKED], "tools": [WEATHER]},
    "types": {"messages": [ASKED], "tools": [TYPES]},
    "a call and its result": {"messages": [*CALLS], "tools": [WEATHER]},
    "two calls": {
        "messages": [
            ASKED,
            {"role": "assistant", "content": None, "tool_calls": [_call("now", "{}"), _call("types", '{"a": 1}', 1)]},
            {"role": "tool", "tool_call_id": "call_1", "content": "one"},
            {"role": "tool", "tool_call_id": "call_0", "content": "noon"},
        ],
        "tools": [NOW],
    },
    "reasoning of former turns is left out": {
        "messages": [
            *CALLS,
            {"role": "assistant", "content": "20 degrees.", "reasoning_content": "It says 20."},
            {"role": "user", "content": "And Kyoto?"},
        ],
        "tools": [WEATHER],
    },
    "reasoning of this turn is kept": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            *CALLS,
            {
                "role": "assistant",
                "reasoning_content": "The time, too.",
                "content": "",
                "tool_calls": [_call("now", "{}", 1)],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        ],
        "tools": [WEATHER, NOW],
    },
}
COMPLETIONS = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes: a < b.<|return|>",
    "<|channel|>final<|message|>Hello.",
    "<|channel|>analysis<|message|>Cut off in the middle",
    "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Three.<|return|>",
    "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
    "<|constrain|>json<|message|>{}<|call|>",
    "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.look<|channel|>commentary "
    '<|constrain|>json<|message|>{"at": "a \\"b\\"", "n": [1, 2]}<|call|>',
    ' to=functions.look<|channel|>commentary json<|message|>{"at": 1}<|call|>',
    "<|channel|>commentary<|message|>First I look.<|end|><|start|>assistant<|channel|>commentary to=functions.look"
    '<|message|>{"at": 1}<|call|>',
    "<|channel|>analysis to=python <|message|>print(1)<|end|><|start|>assistant<|channel|>final<|message|>1<|return|>",
)


def main() -> None:
    cases = {
        "conversations": {name: body | {"prompt": rendered(body)} for name, body in CONVERSATIONS.items()},
        "completions": [{"text": text, "messages": taken_apart(text)} for text in COMPLETIONS],
    }
    CASES.write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


def rendered(body: dict[str, Any]) -> str:
    effort = ReasoningEffort(body.get("reasoning_effort", "medium").capitalize())
    system = SystemContent.new().with_reasoning_effort(effort).with_conversation_start_date(DATE)
    messages = [Message.from_role_and_content(Role.SYSTEM, system)]
    turns = list(body["messages"])
    developer = DeveloperContent.new()
    first = turns[0]["role"] in ("system", "developer")
    if first:
        developer = developer.with_instructions(turns.pop(0)["content"])
    if body.get("tools"):
        functions = [tool["function"] for tool in body["tools"]]
        described = [ToolDescription.new(f["name"], f["description"], f.get("parameters")) for f in functions]
        developer = developer.with_function_tools(described)
    if first or body.get("tools"):
        messages.append(Message.from_role_and_content(Role.DEVELOPER, developer))
    last_answer = max((i for i, turn in enumerate(turns) if _is_answer(turn)), default=-1)
    names = {call["id"]: call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
    for number, turn in enumerate(turns):
        messages += _messages(turn, names, keeps_reasoning=number > last_answer)
    tokens = ENCODING.render_conversation_for_completion(Conversation.from_messages(messages), Role.ASSISTANT)
    return str(ENCODING.decode_utf8(tokens))


def _is_answer(turn: dict[str, Any]) -> bool:
    return turn["role"] == "assistant" and not turn.get("tool_calls")


def _messages(turn: dict[str, Any], names: dict[str, str], *, keeps_reasoning: bool) -> list[Message]:
    if turn["role"] == "user":
        return [Message.from_role_and_content(Role.USER, turn["content"])]
    if turn["role"] == "tool":
        author = Author.new(Role.TOOL, f"functions.{names[turn['tool_call_id']]}")
        answer = Message.from_author_and_content(author, turn["content"])
        return [answer.with_channel("commentary").with_recipient("assistant")]

    def said(text: str, channel: str) -> Message:
        return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)

    found = []
    if turn.get("reasoning_content") and keeps_reasoning:
        found.append(said(turn["reasoning_content"], "analysis"))
    if _is_answer(turn):
        return [*found, said(turn["content"], "final")]
    if turn["content"]:
        found.append(said(turn["content"], "commentary"))
    for call in turn["tool_calls"]:
        message = said(call["function"]["arguments"], "commentary")
        found.append(
            message.with_recipient(f"functions.{call['function']['name']}").with_content_type("<|constrain|>json")
        )
    return found


def taken_apart(text: str) -> list[dict[str, Any]]:
    tokens = ENCODING.encode(text, allowed_special="all")
    found = ENCODING.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    return [
        {"channel": m.channel, "recipient": m.recipient, "text": "".join(part.text for part in m.content)}
        for m in found
    ]


if __name__ == "__main__":
    main()
