"""What families' templates write is what their parsers read: the same message, whatever pieces a stream has."""

import itertools
import json
from typing import Any

import pytest

from palladio.http.chat.chat_output import MessageParser, MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.reasoning_detection import ModelTraits, choose_family
from palladio.http.prompts.template_format import load_template
from palladio.http.reasoning.family import PromptEnd
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.detection import choose_format
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.http.chat.family_templates import ARGUMENTS, FAMILIES, FUNCTIONS, Family

USER = {"role": "user", "content": "How is the weather?"}
REASONING, CONTENT = "I must look.\n\nIn two places: 1 < 2.", "Let me see."
IDS = ("functions.get_weather:0", "functions.now:1")  # as Kimi takes them; Mistral's have nine letters
CALLS = (("get_weather", ARGUMENTS), ("now", {}))
Message = tuple[str, str, list[tuple[str, dict[str, Any]]]]  # reasoning, content, calls


def read(parser: MessageParser, pieces: list[str]) -> Message:
    found = [piece for text in pieces for piece in parser.feed(text)] + parser.finish()
    calls: list[list[str]] = []
    for delta in (piece.call for piece in found if piece.call is not None):
        if delta.name is not None:
            calls.append([delta.name, ""])
        calls[delta.index][1] += delta.arguments
    text = "".join(piece.content for piece in found)
    reasoning = "".join(piece.reasoning for piece in found)
    return reasoning, text, [(name, json.loads(arguments)) for name, arguments in calls]


def answer(family: Family, message: dict[str, Any], tokenizer: Tokenizer) -> tuple[str, str]:
    """The prompt, and what the template writes behind it for the message."""
    template = ChatTemplate(HttpConfig(), of_request=family.template)
    prompt = template.render(tokenizer, [USER], kwargs=family.kwargs)
    whole = template.render(tokenizer, [USER, message], add_generation_prompt=False, kwargs=family.kwargs)
    assert whole.startswith(prompt)
    text = whole.removeprefix(prompt)
    assert text.endswith(family.ends)
    return prompt, text.removesuffix(family.ends)


def plan(family: Family, prompt: str, tokenizer: Tokenizer) -> MessagePlan:
    """With the parsers that the template and the model's type show."""
    form = choose_format("auto", template=family.template, model_type=family.model_type, tokenizer=tokenizer)
    found = choose_family("auto", ModelTraits("model", family.model_type, family.template))
    assert (form.name, found and found.name) == (family.tools, family.reasoning)
    return MessagePlan(ReasoningPlan(found), PromptEnd(prompt), lambda: form.new_parser(FUNCTIONS))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_what_a_template_writes_is_read_again(name: str, tokenizer: Tokenizer) -> None:
    """With calls and without, in pieces of every size."""
    family = FAMILIES[name]
    ids = IDS if family.tools == "kimi_k2" else ("callabcd1", "callabcd2")
    calls = list(itertools.islice(CALLS, family.num_calls))
    sent = [
        {"id": ids[number], "type": "function", "function": {"name": function, "arguments": json.dumps(arguments)}}
        for number, (function, arguments) in enumerate(calls)
    ]
    reasoning = {"reasoning_content": REASONING} if family.has_reasoning else {}
    said = CONTENT if family.has_content else ""
    with_calls = {"role": "assistant", "content": said, **reasoning, "tool_calls": sent}
    without = {"role": "assistant", "content": CONTENT, **reasoning}
    thought = REASONING if family.has_reasoning else ""
    for message, expected in ((with_calls, (thought, said, calls)), (without, (thought, CONTENT, []))):
        prompt, text = answer(family, message, tokenizer)
        how = plan(family, prompt, tokenizer)
        found = read(how.new_parser(), [text])
        assert (found[0], found[1].strip(), found[2]) == expected
        for size in range(1, len(text)):
            assert read(how.new_parser(), [text[at : at + size] for at in range(0, len(text), size)]) == found


def test_harmony_reads_what_the_built_in_template_writes(tokenizer: Tokenizer) -> None:
    """Of an answer with a call the template keeps the reasoning; one with content is the last of its turn."""
    template = load_template("gpt-oss")
    assert isinstance(template, str)
    family = Family("gpt_oss", template, "gpt-oss", "gpt-oss", num_calls=1)
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}}
    message = {"role": "assistant", "content": "", "reasoning_content": REASONING, "tool_calls": [call]}
    prompt, text = answer(family, message, tokenizer)
    how = plan(family, prompt, tokenizer)
    found = read(how.new_parser(), [text])
    assert found == (REASONING, "", [("get_weather", ARGUMENTS)])
    for size in range(1, len(text)):
        assert read(how.new_parser(), [text[at : at + size] for at in range(0, len(text), size)]) == found
