"""Reasoning of the newest families, and beside the parser of their tools; cut at every character."""

import dataclasses
import json

import pytest

from palladio.http.chat.chat_output import MessageParser, MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.prompts.reasoning_detection import ModelTraits, choose_family
from palladio.http.reasoning.family import PromptEnd
from palladio.http.reasoning.registry import check_name, find_family
from palladio.http.tool_calls.registry import find_format
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.http.tool_calls.tool_texts import FUNCTIONS

K3 = '<|open|>message role="assistant"<|sep|>'
INVOKE = '<atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
DSML = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


def read(parser: MessageParser, pieces: list[str]) -> tuple[str, str, list[str]]:
    found = [piece for text in pieces for piece in parser.feed(text)] + parser.finish()
    calls = [piece.call for piece in found if piece.call is not None]
    arguments = "".join(call.arguments for call in calls)
    assert not arguments or json.loads(arguments) == {}
    names = [call.name for call in calls if call.name]
    return "".join(piece.reasoning for piece in found), "".join(piece.content for piece in found), names


@dataclasses.dataclass(frozen=True)
class Case:
    """Attributes:
    reasoning, tools: names of the parsers.
    prompt: as it ends.
    answer, call: texts that the model writes, with the reasoning "Hm." and the content "Yes."; the call has no content.
    """

    reasoning: str
    tools: str
    prompt: str
    answer: str
    call: str


CASES = [
    Case("gemma4", "gemma4", "<|turn>model\n", "<|channel>thought\nHm.<channel|>Yes.",
         "<|channel>thought\nHm.<channel|><|tool_call>call:now{}<tool_call|>"),
    Case("deepseek-v4", "deepseekv4", "<think>", "Hm.</think>Yes.", f"Hm.</think>\n\n{DSML}"),
    Case("seed_oss", "seed_oss", "<seed:bos>assistant\n", "<seed:think>Hm.</seed:think>Yes.",
         "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>"),
    Case("olmo3", "olmo3", "<|im_start|>assistant\n<think>", "Hm.</think>Yes.",
         "Hm.</think>\n<function_calls>now()</function_calls>"),
    Case("hunyuan", "hunyuan", "<|extra_0|>", "<think>\nHm.\n</think>\n<answer>\nYes.</answer>",
         '<think>\nHm.\n</think>\n<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>'),
    Case("hy_v3", "hy_v3", "<think>", "Hm.</think>Yes.",
         "Hm.</think><tool_calls>\n<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>"),
    Case("ernie45", "ernie45", "<think>\n", "Hm.\n</think>\n\n<response>\nYes.</response>",
         'Hm.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'),
    Case("gigachat35", "gigachat35", "assistant<|role_sep|>\n<think>", "Hm.</think>\n\nYes.",
         "Hm.</think>\n\n" + DSML.replace("DSML", "GCML")),
    Case("apertus2509", "apertus2509", "<|assistant_start|>", "<|inner_prefix|>Hm.<|inner_suffix|>Yes.",
         '<|inner_prefix|>Hm.<|tools_prefix|>[{"now": {}}]<|tools_suffix|>'),
    Case("kimi_k3", "kimi_k3", f"{K3}<|open|>think<|sep|>",
         "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|><|close|>message<|sep|>",
         "Hm.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
         '<|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>'),
    Case("minimax-m3", "minimax-m3", "<mm:think>", "Hm.</mm:think>Yes.",
         'Hm.</mm:think>\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="now">\n]<]minimax[>[</invoke>\n'
         "]<]minimax[>[</tool_call>"),
    Case("k2_horizon", "k2_horizon", "<ifm|think_fast>", "Hm.\n</ifm|think_fast>Yes.",
         "Hm.\n</ifm|think_fast>\n<ifm|tool_calls>\n<ifm|tool_call>now\n</ifm|tool_call>\n</ifm|tool_calls>"),
    Case("plamo3", "plamo3", "<|plamo:begin_think:plamo|>", "Hm.<|plamo:end_think:plamo|>Yes.",
         "Hm.<|plamo:end_think:plamo|><|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
         "<|plamo:begin_tool_name:plamo|>now<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
         "<|plamo:constrain|>json<|plamo:msg|>{}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
         "<|plamo:end_tool_requests:plamo|>"),
    Case("inkling", "inkling", "", "<|message_model|><|content_thinking|>Hm.<|end_message|>"
         "<|message_model|><|content_text|>Yes.<|end_message|>",
         "<|message_model|><|content_thinking|>Hm.<|end_message|><|message_model|>now<|content_invoke_tool_json|>"
         '{"name":"now","args":{}}<|end_message|>'),
    Case("muse", "muse", "<|start|>user<|message|>hi<|eot|><|start|>assistant",
         " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>",
         f" to=self<|message|>Hm.<|eom|><|start|>assistant to=now<|message|>{INVOKE}<|eot|>"),
]  # fmt: skip

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.reasoning)


def plan(case: Case, *, has_tools: bool) -> MessagePlan:
    form = find_format(case.tools)
    new_tools = (lambda: form.new_parser(FUNCTIONS)) if has_tools else None
    return MessagePlan(ReasoningPlan(find_family(case.reasoning)), PromptEnd(case.prompt), new_tools)


@by_case
@pytest.mark.parametrize("has_tools", [False, True])
def test_an_answer(case: Case, has_tools: bool) -> None:
    how = plan(case, has_tools=has_tools)
    whole = read(how.new_parser(), [case.answer])
    assert (whole[0].strip(), whole[1].strip(), whole[2]) == ("Hm.", "Yes.", [])
    for size in (1, 2, 3, 7):
        pieces = [case.answer[at : at + size] for at in range(0, len(case.answer), size)]
        assert read(how.new_parser(), pieces) == whole


@by_case
def test_a_call(case: Case) -> None:
    how = plan(case, has_tools=True)
    whole = read(how.new_parser(), [case.call])
    assert (whole[0].strip(), whole[1].strip(), whole[2]) == ("Hm.", "", ["now"])
    for place in range(1, len(case.call)):
        assert read(how.new_parser(), [case.call[:place], case.call[place:]]) == whole, place


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (ModelTraits("x", "minimax_m3", "{{ '<mm:think>' }}"), "minimax-m3"),
        (ModelTraits("x", "apertus", "{{ '<|inner_prefix|>' }}"), "apertus2509"),
        (ModelTraits("x", "k2", "{{ '<ifm|think_fast>' }}"), "k2_horizon"),
        (ModelTraits("x", "plamo3", "<|plamo:begin_think:plamo|>"), "plamo3"),
        (ModelTraits("x", "inkling", "<|content_thinking|>"), "inkling"),
        (ModelTraits("x", "muse", "<atem:function_calls>"), "muse"),
        (ModelTraits("x", "kimi_k3", "{{ '<|open|>' + tag }}"), "kimi_k3"),
        (ModelTraits("x", "gigachat", "<｜GCML｜tool_calls> <think>"), "gigachat35"),
        (ModelTraits("x", "hunyuan_v1_moe", "<think>"), "hunyuan"),
        (ModelTraits("x", "ernie4_5_moe", "<think>"), "ernie45"),
    ],
)
def test_auto(model: ModelTraits, family: str) -> None:
    assert choose_family("auto", model) is find_family(family)


@pytest.mark.parametrize("flag", ["auto", "hy_v3", "hunyuan"])
def test_hunyuans_tags_are_those_of_the_template(flag: str) -> None:
    family = choose_family(flag, ModelTraits("x", "hy_v3", "{{ '<think:opensource>' }}"))
    assert family is not None
    parser = family.new_parser(PromptEnd("<think:opensource>"))
    pieces = [*parser.feed("Hm.</think:opensource>Yes."), *parser.finish()]
    assert [(piece.reasoning, piece.content) for piece in pieces] == [("Hm.", ""), ("", "Yes.")]


@pytest.mark.parametrize(
    ("name", "opened", "closing"),
    [
        ("muse", "<|start|>assistant to=self<|message|>", "<|start|>assistant to=user"),
        ("k2_horizon", "<ifm|think_faster>", "</ifm|think_faster>"),
        ("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ],
)
def test_what_the_engine_is_told(tokenizer: Tokenizer, name: str, opened: str, closing: str) -> None:
    family = find_family(name)
    assert family is not None
    told = family.thinking(tokenizer, PromptEnd(opened), 5, has_grammar=True, has_tools=False)
    assert told is not None
    assert (told.begun, told.budget) == (True, 5)
    assert told.end_ids[: told.num_telling] == tuple(tokenizer.encode(closing, add_special_tokens=False))
    answering = PromptEnd("<|start|>assistant to=user<|message|>Some", "Some")
    assert name != "muse" or family.thinking(tokenizer, answering, 5, has_grammar=True, has_tools=False) is None


def test_a_name_that_no_package_tells_of() -> None:
    with pytest.raises(ConfigError, match="--reasoning-parser beam: no package has a chat template"):
        check_name("beam")
