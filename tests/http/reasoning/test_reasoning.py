"""Reasoning parsers: each family's format, in one piece and cut everywhere; choosing a family; counting tokens."""

import dataclasses
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.http.prompts.reasoning_detection import ModelTraits, choose_family
from palladio.http.reasoning.counter import ReasoningCounter
from palladio.http.reasoning.family import PromptEnd, TagFamily
from palladio.http.reasoning.harmony import SPECIALS
from palladio.http.reasoning.reasoning_parser import ReasoningParser, ReasoningPiece
from palladio.http.reasoning.registry import ALIASES, FAMILIES, NAMES, find_family
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.grammar_spec import Thinking
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.cpu_time import least_cpu_seconds
from tests.properties import examples

NEW = PromptEnd("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
BEGUN = PromptEnd(NEW.text + "<think>\n")
CLOSED = PromptEnd(NEW.text + "<think>\n\n</think>\n\n")
HARMONY = PromptEnd("<|start|>user<|message|>hi<|end|><|start|>assistant")
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def run(parser: ReasoningParser, pieces: list[str]) -> tuple[str, str]:
    """(reasoning, content)."""
    found = [piece for text in pieces for piece in parser.feed(text)] + list(parser.finish())
    assert all(bool(piece.reasoning) != bool(piece.content) for piece in found)
    return "".join(piece.reasoning for piece in found), "".join(piece.content for piece in found)


def glance(parser: ReasoningParser, pieces: list[str]) -> tuple[str, str]:
    """(reasoning, content), where the parser takes at a glance what it can."""
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for text in pieces:
        is_reasoning = parser.is_reasoning
        if parser.take_plain(text):
            kinds[is_reasoning].append(text)
            assert parser.is_reasoning == is_reasoning
        else:
            add(kinds, parser.feed(text))
    add(kinds, parser.finish())
    return "".join(kinds[True]), "".join(kinds[False])


def add(kinds: dict[bool, list[str]], pieces: Iterable[ReasoningPiece]) -> None:
    for piece in pieces:
        kinds[bool(piece.reasoning)].append(piece.reasoning or piece.content)


def split(name: str, text: str, end: PromptEnd = NEW, **options: bool) -> tuple[str, str]:
    """In one piece, which is the same character by character."""
    family = find_family(name)
    assert family is not None
    whole = run(family.new_parser(end, **options), [text])
    assert run(family.new_parser(end, **options), list(text)) == whole
    for pieces in (list(text), re.findall(r"\s*\w+|.|\n", text), re.findall(r"[^<]+|<", text)):
        assert glance(family.new_parser(end, **options), pieces) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "end", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", NEW, ("Hm.", "Yes.")),  # newlines before the answer are no part of it
        ("<think>Hm.</think>\n\n\n  Yes.", NEW, ("Hm.", "  Yes.")),
        ("Yes.\n<think>Hm.</think>\n\nNo.", NEW, ("Hm.", "Yes.\n\nNo.")),
        ("<think>\n\nHm.</think>Yes.", NEW, ("\nHm.", "Yes.")),  # one belongs to the opening tag
        ("<think>Hm.</think>Yes.", NEW, ("Hm.", "Yes.")),
        ("\n <think>Hm.</think>Yes.", NEW, ("Hm.", "Yes.")),
        ("Hm.\n</think>\nYes.", BEGUN, ("Hm.", "Yes.")),
        ("<think>\nHm.</think>Yes.", BEGUN, ("Hm.", "Yes.")),  # opened by the prompt, and once more
        ("Hm.\n\n", BEGUN, ("Hm.\n\n", "")),  # cut off inside
        ("<think>Hm.</thi", NEW, ("Hm.</thi", "")),
        ("<think>", NEW, ("", "")),
        ("<thi", NEW, ("", "<thi")),
        ("Yes.", NEW, ("", "Yes.")),
        ("Yes.", CLOSED, ("", "Yes.")),
        ("</think>\nYes.", CLOSED, ("", "Yes.")),  # off, and a tag that nothing opened
        ("Yes.\n</think>\n\nNo.", CLOSED, ("", "Yes.\n\nNo.")),
        ("The tag `</think>` ends it.", NEW, ("", "The tag `</think>` ends it.")),
        ("The tag `<think>` begins it.", NEW, ("", "The tag `<think>` begins it.")),
        ("<think>a <think> b</think>c", NEW, ("a <think> b", "c")),
        ("<think>a</think>b\n<think>c</think>d", NEW, ("ac", "b\nd")),
        ("<think>a</think><think>b</think>c", NEW, ("ab", "c")),
        ("<think>\n\n</think>\n\nYes.", NEW, ("", "Yes.")),
        ("<think>a</think>", NEW, ("a", "")),
        ("", BEGUN, ("", "")),
        ("  \n", NEW, ("", "  \n")),
    ],
)
def test_tags(text: str, end: PromptEnd, expected: tuple[str, str]) -> None:
    assert split("qwen3", text, end) == expected


@pytest.mark.parametrize("name", ["qwen3", "glm45", "kimi_k2", "minimax"])
def test_tool_calls_close_reasoning_where_there_are_tools(name: str) -> None:
    family = find_family(name)
    assert isinstance(family, TagFamily)
    (closer,) = family.closers
    text = f"Let me look.\n{closer}f\n</think>"
    assert split(name, text, BEGUN, has_tools=True) == ("Let me look.", f"{closer}f\n")
    assert split(name, text, BEGUN) == (f"Let me look.\n{closer}f", "")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("gpt-oss", "muse", "minimax-append-think")])
def test_every_family_of_tags(name: str) -> None:
    family = find_family(name)
    assert isinstance(family, TagFamily)
    expected = ("Hm. 1 < 2", "Yes.")
    assert split(name, f"{family.start}Hm. 1 < 2{family.end}Yes.") == expected
    assert split(name, f"Hm. 1 < 2{family.end}Yes.", PromptEnd(NEW.text + family.start)) == expected
    assert split(name, "Yes.", PromptEnd(f"{NEW.text}{family.start}\n\n{family.end}\n\n")) == ("", "Yes.")
    assert split(name, "Hm.") == (("Hm.", "") if family.begins else ("", "Hm."))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|START_RESPONSE|>Yes.<|END_RESPONSE|>", ("", "Yes.")),
        ("<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", ("Hm.", "Yes.")),
        (
            "<|START_THINKING|>Hm.<|END_THINKING|>\n<|START_RESPONSE|>\nYes,\n no.<|END_RESPONSE|>",
            ("Hm.", "Yes,\n no."),
        ),
        ("Yes: <|START_RESPONSE|>no.", ("", "Yes: no.")),  # in the middle of a line, too
        ("<|START_RESPONSE|>Yes.<|END_RESPO", ("", "Yes.<|END_RESPO")),  # cut off
        ("<|START_THINKING|>a <|START_RESPONSE|> b<|END_THINKING|>c", ("a <|START_RESPONSE|> b", "c")),
    ],
)
@pytest.mark.parametrize("has_tools", [False, True])
def test_marks_around_an_answer_are_not_content(text: str, expected: tuple[str, str], has_tools: bool) -> None:
    assert split("cohere_command4", text, has_tools=has_tools) == expected


def test_appended_reasoning_stays_in_the_answer() -> None:
    """And is counted."""
    family = find_family("minimax-append-think")
    assert split(family.name, "Hm.\n</think>\n\nYes.", BEGUN) == ("", "<think>Hm.\n</think>\n\nYes.")
    assert split(family.name, "<think>Hm.</think>Yes.", NEW) == ("", "<think>Hm.</think>Yes.")
    assert split(family.name, "Yes.", CLOSED) == ("", "Yes.")
    assert split(family.name, " More.", PromptEnd(f"{BEGUN.text}Hm.", "<think>\nHm.")) == ("", " More.")
    parser = family.new_parser(BEGUN)
    inside = [parser.is_reasoning]
    for piece in ("Hm.", "</think>", "Yes."):
        parser.feed(piece)
        inside.append(parser.is_reasoning)
    assert inside == [True, True, False, False]


def test_a_continued_message_goes_on_where_it_was_left() -> None:
    def continued(text: str, rest: str) -> tuple[str, str]:
        return split("qwen3", rest, PromptEnd(NEW.text + text, text))

    assert continued("<think>\nLet me", " see.</think>Yes.") == (" see.", "Yes.")
    assert continued("<think>\nLet me", "\nsee.</think>Yes.") == ("\nsee.", "Yes.")
    assert continued("<think>\nHm.</think>\nYes,", "\n but") == ("", "\n but")
    assert continued("Yes,", "<think>") == ("", "<think>")
    assert split("deepseek-r1", " of course.", PromptEnd(NEW.text + "Yes,", "Yes,")) == ("", " of course.")
    quoting = "<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n"
    assert split("qwen3", "A tag.", PromptEnd(quoting)) == ("", "A tag.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.", ("Hm.", "Yes.")),
        ("<|channel|>final<|message|>Yes.<|return|>", ("", "Yes.")),
        ("<|channel|>analysis<|message|>Hm", ("Hm", "")),
        ("<|channel|>analysis<|mess", ("", "")),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b", ("a\nb", "")),
        (
            "<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
            ("a", "b"),
        ),  # no <|end|>, as a budget closes it
        ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALL + "{}", ("", "I look.\n{}")),
        ("<|channel|>analysis to=python<|message|>1+1<|call|>", ("1+1", "")),
        ("Yes, to=you.", ("", "Yes, to=you.")),  # no header at all, as under a grammar
        ("t", ("", "t")),
        ('{"a": "<|message|>"}', ("", '{"a": "<|message|>"}')),
        ("<|channel|>final<|message|>a < b <| c", ("", "a < b <| c")),
    ],
)
def test_harmony(text: str, expected: tuple[str, str]) -> None:
    assert split("gpt-oss", text, HARMONY) == expected


def test_harmony_leaves_calls_to_the_tool_parser() -> None:
    analysis = "<|channel|>analysis<|message|>Hm.<|end|>"
    call = f"<|start|>assistant{CALL}{{}}<|call|>"
    assert split("gpt-oss", analysis + call, HARMONY, has_tools=True) == ("Hm.", call)
    other_way_round = " to=functions.f<|channel|>commentary json<|message|>{}"
    assert split("gpt-oss", other_way_round, HARMONY, has_tools=True) == ("", "<|start|>assistant" + other_way_round)
    assert split("gpt-oss", CALL, HARMONY, has_tools=True) == ("", CALL)  # without arguments


def test_harmony_continues() -> None:
    for opening, expected in (("final", ("", " more")), ("analysis", (" more", ""))):
        text = f"{HARMONY.text}<|channel|>{opening}<|message|>Some"
        assert split("gpt-oss", " more", PromptEnd(text, "Some")) == expected


FRAGMENTS = ["<think>", "</think>", "<tool_call>", "\n", " ", "<", "a", "b c", "</", "think>", "`", "ö"]
HARMONY_FRAGMENTS = [*SPECIALS, "assistant", "analysis", "final", "commentary", " to=functions.f", "\n", "x", "<|", "t"]


@examples(400)
@given(data=st.data())
def test_the_split_does_not_depend_on_how_the_text_is_cut(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(FAMILIES))
    own = (
        [family.start, family.end, *family.closers, *family.answer]
        if isinstance(family, TagFamily)
        else HARMONY_FRAGMENTS
    )
    text = "".join(data.draw(st.lists(st.sampled_from([*FRAGMENTS, *own]), max_size=14)))
    end = data.draw(st.sampled_from([NEW, BEGUN, CLOSED, HARMONY, PromptEnd(NEW.text + "Yes", "Yes")]))
    options = {"has_tools": data.draw(st.booleans()), "keep_tags": data.draw(st.booleans())}
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = run(family.new_parser(end, **options), [text])
    assert run(family.new_parser(end, **options), pieces) == whole
    assert run(family.new_parser(end, **options), list(text)) == whole


@examples(200)
@given(parts=st.lists(st.sampled_from([*FRAGMENTS, *HARMONY_FRAGMENTS]), max_size=14), family=st.sampled_from(FAMILIES))
def test_with_tags_kept_nothing_is_lost(parts: list[str], family) -> None:
    text = "".join(parts)
    parser = family.new_parser(NEW, keep_tags=True)
    pieces = [*parser.feed(text), *parser.finish()]
    assert "".join(piece.reasoning + piece.content for piece in pieces) == text


def test_what_cannot_become_a_tag_is_not_held_back() -> None:
    parser = find_family("qwen3").new_parser(BEGUN)
    assert [piece.reasoning for piece in parser.feed("a < b")] == ["a < b"]
    assert parser.feed("</th") == ()
    assert [piece.reasoning for piece in parser.feed("e")] == ["</the"]
    assert parser.feed("</think>") == ()
    assert [piece.content for piece in parser.feed("x")] == ["x"]


@pytest.mark.parametrize(
    ("text", "end", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", NEW, "<think>\nHm.\n</think>"),
        ("Hm.\n</think>\n\nYes.", BEGUN, "Hm.\n</think>"),
        ("Hm. wörld 🎉", BEGUN, "Hm. wörld 🎉"),
        ("Hello, <thinker>", NEW, ""),
        ("</think>Yes.", CLOSED, ""),
        ("<think>Hm.</think>Hello\n<think>my</think> name", NEW, "<think>Hm.</think><think>my</think>"),
    ],
)
def test_tokens_are_counted_from_ids(tokenizer: Tokenizer, text: str, end: PromptEnd, expected: str) -> None:
    family = find_family("qwen3")
    counter = ReasoningCounter(family.new_parser(end), tokenizer, SamplingParams())
    counter.add(tokenizer.encode(text, add_special_tokens=False))
    assert counter.count == len(tokenizer.encode(expected, add_special_tokens=False))


def test_tags_of_several_tokens_count_whole(tokenizer: Tokenizer) -> None:
    text = "◁think▷Hm.◁/think▷Yes. ◁ no"
    counter = ReasoningCounter(find_family("kimi").new_parser(NEW), tokenizer, SamplingParams())
    counter.add(tokenizer.encode(text, add_special_tokens=False))
    assert counter.count == len(tokenizer.encode("◁think▷Hm.◁/think▷", add_special_tokens=False))
    assert counter.count > 10


def test_what_the_engine_is_told(tokenizer: Tokenizer) -> None:
    start, end = tokenizer.encode("<think>", False), tokenizer.encode("</think>", False)
    assert (len(start), len(end)) == (1, 1)

    def told(
        name: str, prompt: PromptEnd, budget: int | None, *, tools: bool = False, grammar: bool = True
    ) -> Thinking:
        return find_family(name).thinking(tokenizer, prompt, budget, has_grammar=grammar, has_tools=tools)

    assert told("qwen3", NEW, 5) == Thinking((*start,), (*end,), begun=False, budget=5)
    assert told("qwen3", BEGUN, None) == Thinking((*start,), (*end,), begun=True)
    assert told("qwen3", CLOSED, 5) is None
    assert told("deepseek-r1", NEW, None).begun
    channel, message = tokenizer.encode("<|channel|>final", False), tokenizer.encode("<|message|>", False)
    analysis = tuple(tokenizer.encode("<|channel|>analysis<|message|>", False))
    for grammar in (True, False):  # the channel tells: the model could go on with `<|constrain|>json` after it
        told_of = told("gpt-oss", HARMONY, 7, grammar=grammar)
        expected = Thinking(analysis, (*channel, *message), begun=True, budget=7, num_telling=len(channel))
        assert told_of == expected
    with_tools = told("gpt-oss", HARMONY, 7, tools=True)
    assert with_tools.num_telling is None
    assert (with_tools.end_ids, with_tools.begun) == (tuple(tokenizer.encode("<|end|>", False)), True)
    assert not told("gpt-oss", HARMONY, 7, tools=True, grammar=False).begun
    answering = PromptEnd(f"{HARMONY.text}<|channel|>final<|message|>Some", "Some")
    assert told("gpt-oss", answering, 7) is None


QWEN3 = "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (ModelTraits("Qwen/Qwen3-8B", "qwen3", QWEN3), "qwen3"),
        (ModelTraits("someone/model", "llama", QWEN3), "qwen3"),
        (ModelTraits("Qwen/QwQ-32B", "qwen2", "{{ '<|im_start|>assistant\n<think>\n' }}"), "qwen3"),
        (ModelTraits("deepseek-ai/DeepSeek-R1", "deepseek_v3", "{{ content.split('</think>') }}"), "deepseek-r1"),
        (ModelTraits("x/DeepSeek-R1-Distill-Qwen-7B", "qwen2", "{{ '<think>\n' }}"), "deepseek-r1"),
        (ModelTraits("x/V3.1", "deepseek_v3", "{% if thinking %}<think>{% else %}</think>{% endif %}"), "deepseek-v3"),
        (ModelTraits("x/V3", "deepseek_v3", "{{ content }}"), None),
        (ModelTraits("zai-org/GLM-4.5", "glm4_moe", QWEN3), "glm45"),
        (ModelTraits("openai/gpt-oss-20b", "gpt_oss", None), "gpt-oss"),
        (ModelTraits("x/tuned", "llama", "{{ '<|channel|>analysis<|message|>' }}"), "gpt-oss"),
        (ModelTraits("x/Kimi-VL", "kimi_vl", "{{ '◁think▷' }}"), "kimi"),
        (ModelTraits("moonshotai/Kimi-VL-A3B-Thinking", "kimi_vl", "{{ messages }}"), "kimi"),
        (ModelTraits("moonshotai/Kimi-VL-A3B-Instruct", "kimi_vl", "{{ messages }}"), None),
        (ModelTraits("x/granite-3.2", "granite", "{{ 'Here is my thought process:' }}"), "granite"),
        (ModelTraits("x/granite-3.3", "granite", "{{ '<think>' }}"), "granite_thinking_parser"),
        (ModelTraits("x/Kimi-K2-Thinking", "kimi_k2", "{{ '<think></think>' }}"), "kimi_k2"),
        (ModelTraits("mistralai/Magistral", "mistral", "{{ '[THINK]' }}"), "mistral"),
        (ModelTraits("Qwen/Qwen2.5-0.5B-Instruct", "qwen2", "{{ messages }}"), None),
        (ModelTraits("some/base", "llama", None), None),
    ],
)
def test_auto(model: ModelTraits, family: str | None) -> None:
    chosen = choose_family("auto", model)
    assert (None if chosen is None else chosen.name) == family
    assert choose_family("none", model) is None
    assert choose_family("glm4_moe", model) is find_family("glm45")


def test_names() -> None:
    seeds = ("deepseek-r1", "deepseek-v3", "qwen3", "qwen3-thinking", "kimi", "kimi_k2", "gpt-oss", "glm45")
    for name in (*seeds, *ALIASES, "auto", "none"):
        assert HttpConfig(reasoning_parser=name).reasoning_parser == name
    assert all(find_family(alias).name == name for alias, name in ALIASES.items())
    assert len(set(NAMES)) == len(FAMILIES)
    with pytest.raises(
        ConfigError, match=r"--reasoning-parser qwen: no such parser; available: auto, none, deepseek-r1"
    ):
        HttpConfig(reasoning_parser="qwen")


def test_families_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_family("qwen3").name = "x"


@pytest.mark.slow  # tests/http/tool_calls/test_linear_time.py has shorter texts of all families
@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(
            ("qwen3", part)
            for part in ("<think>", "</think>", "x<think>", "<think>a</think>\n", "</think>\n", " ", "a\n")
        ),
        *(
            ("gpt-oss", part)
            for part in ("<|end|>", "<|start|>", "<|channel|>", "x<|end|>", " ", "<|channel|>a<|message|>b")
        ),
    ],
)
def test_long_texts_take_time_in_proportion(name: str, part: str) -> None:
    """Ten times the text takes nowhere near a hundred times as long."""

    def seconds(length: int, enough: float = 0.0) -> float:
        text = part * (length // len(part))
        return least_cpu_seconds(lambda: run(find_family(name).new_parser(NEW), [text]), enough=enough)

    limit = 40 * max(seconds(100_000), 0.002)
    assert seconds(1_000_000, enough=limit) < limit


def test_headers_and_blanks_without_an_end_are_text() -> None:
    for name, text in (("gpt-oss", "<|start|>assistant" + "x" * 2000), ("qwen3", " " * 300 + "<thin")):
        assert split(name, text) == ("", text)
