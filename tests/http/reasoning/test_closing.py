"""Which outputs end inside a thought, by their tokens: the marks of each family, and where they stand."""

import dataclasses

import pytest

from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.reasoning.family import PromptEnd
from palladio.http.reasoning.registry import FAMILIES, find_family
from palladio.runtime.interface.request.grammar_spec import ThoughtClosing
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.tiny_tokenizer import build_tiny_tokenizer

NEW = PromptEnd("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
BEGUN = PromptEnd(NEW.text + "<think>\n")
CLOSED = PromptEnd(NEW.text + "<think>\n\n</think>\n\n")
HARMONY = PromptEnd("<|start|>user<|message|>hi<|end|><|start|>assistant")
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("harmony"), is_harmony=True))


def closing_of(name: str, tokenizer: Tokenizer, end: PromptEnd, *, has_tools: bool = False) -> ThoughtClosing | None:
    family = find_family(name)
    assert family is not None
    return ReasoningPlan(family).closing(tokenizer, end, has_tools=has_tools)


@pytest.mark.parametrize(
    ("name", "end", "output", "has_tools", "expected"),
    [
        ("qwen3", BEGUN, "", False, True),
        ("qwen3", BEGUN, "So", False, True),
        ("qwen3", BEGUN, "So</think>", False, False),
        ("qwen3", BEGUN, "So</think>Yes <think>", False, False),
        ("qwen3", NEW, "So", False, False),
        ("qwen3", NEW, "<think>So", False, True),
        ("qwen3", NEW, "Write <think>", False, False),
        ("qwen3", BEGUN, "<tool_call>{}", True, False),
        ("qwen3", BEGUN, "<tool_call>{}", False, True),
        ("deepseek-r1", NEW, "So", False, True),
        ("deepseek-r1", NEW, "So</think>Yes", False, False),
        ("gpt-oss", HARMONY, f"{ANALYSIS}So", False, True),
        ("gpt-oss", HARMONY, f"{ANALYSIS}So<|end|><|start|>assistant", False, True),
        ("gpt-oss", HARMONY, f"{ANALYSIS}So<|end|><|start|>assistant{FINAL}Yes", False, False),
        ("gpt-oss", HARMONY, "<|channel|>commentary<|message|>Yes", False, False),
        ("gpt-oss", HARMONY, "Yes", False, False),
        ("gpt-oss", HARMONY, f"{ANALYSIS}So", True, True),
        ("gpt-oss", HARMONY, f"{ANALYSIS}So<|end|>", True, False),
        ("gpt-oss", HARMONY, f"{ANALYSIS}A<|end|><|start|>assistant{ANALYSIS}B", True, True),
        ("gpt-oss", PromptEnd(HARMONY.text + ANALYSIS), "So", False, True),
        ("gpt-oss", PromptEnd(HARMONY.text + FINAL), "So", False, False),
    ],
)
def test_where_an_output_ends(
    tokenizer: Tokenizer, harmony: Tokenizer, name: str, end: PromptEnd, output: str, has_tools: bool, expected: bool
) -> None:
    used = harmony if name == "gpt-oss" else tokenizer
    closing = closing_of(name, used, end, has_tools=has_tools)
    assert closing is not None
    assert closing.leaves_open(used.encode(output, False)) == expected


def test_what_closes_a_thought(tokenizer: Tokenizer, harmony: Tokenizer) -> None:
    """It is what the parser takes for the end of one."""
    qwen3, gpt_oss = closing_of("qwen3", tokenizer, BEGUN), closing_of("gpt-oss", harmony, HARMONY)
    assert qwen3 is not None
    assert gpt_oss is not None
    assert qwen3.end_ids == (tokenizer.added_id("</think>"),)
    assert gpt_oss.end_ids == tuple(harmony.encode(FINAL, False))
    assert gpt_oss.last_ids == (harmony.special_id("<|call|>"),)
    with_tools = closing_of("gpt-oss", harmony, HARMONY, has_tools=True)
    assert with_tools is not None
    assert with_tools.end_ids == (harmony.special_id("<|end|>"),)


def test_thoughts_that_tokens_do_not_show_are_left_alone(tokenizer: Tokenizer) -> None:
    assert closing_of("qwen3", tokenizer, CLOSED) is None, "the prompt has closed it"
    assert closing_of("kimi", tokenizer, NEW) is None, "its mark is several tokens of this tokenizer"
    assert closing_of("granite", tokenizer, NEW) is None
    assert closing_of("kimi_k2", tokenizer, BEGUN, has_tools=True) is None, "so is the beginning of its calls"
    assert closing_of("kimi_k2", tokenizer, BEGUN) is not None
    assert closing_of("gpt-oss", tokenizer, HARMONY) is None
    assert ReasoningPlan(None).closing(tokenizer, BEGUN, has_tools=False) is None
    assert ReasoningPlan(find_family("qwen3")).closing(tokenizer, BEGUN, has_tools=False, is_off=True) is None


def test_as_is_no_family_has_any(tokenizer: Tokenizer, harmony: Tokenizer) -> None:
    for family in FAMILIES:
        plan = ReasoningPlan(dataclasses.replace(family, answers=False))
        assert plan.closing(harmony, HARMONY, has_tools=False) is None
        assert plan.closing(tokenizer, BEGUN, has_tools=False) is None


def test_the_mark_that_stands_last_decides() -> None:
    closing = ThoughtClosing((9,), False, (), (((1, 2), True), ((1,), False), ((9,), False)))
    for output, expected in (
        ([], False),
        ([1, 2], True),
        ([1, 2, 1], False),
        ([1, 3, 1, 2, 5], True),
        ([1, 2, 9], False),
        ([9, 1, 2], True),
        ([2, 1], False),
    ):
        assert closing.leaves_open(output) == expected, output
