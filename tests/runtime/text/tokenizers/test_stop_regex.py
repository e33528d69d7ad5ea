"""Stop patterns: found where they are complete, whatever the pieces; in bounded time, whatever the pattern."""

import random
import re
import time

import pytest

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.tokenizers.stop_regex import StopPattern, StopRegexMatcher, read_pattern

PATTERNS = [
    r"\d{3}",
    r"ab+c",
    r"(foo|foobar|fob)x?",
    r"[^a-c\s]z",
    r"(?i)sTo",
    r"a.{2,4}b",
    r"x(?:yz)*?w",
    r"\w\W\w",
    r"(?s)a.b",
    r"[\d_-]\.",
    r"é+|ß",
    r"(a|b)*c[^c]",
    r"(?x) a  b # no more",
    r"[^x]y",
    r"(?i:A)b",
]


def end_of(patterns: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopRegexMatcher(patterns)
    shown = ""
    for piece in pieces:
        shown += matcher.feed(piece)
        if matcher.matched is not None:
            break
    return shown, matcher.matched


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_ends_where_pythons_own_first_finds_a_match(pattern: str) -> None:
    rng = random.Random(pattern)
    compiled = re.compile(pattern)
    alphabet = [*filter(str.isalnum, pattern), *"12 .\n"]
    found = 0
    for _ in range(300):
        text = "".join(rng.choices(alphabet, k=rng.randrange(1, 60)))
        ends = [end for end in range(len(text) + 1) if compiled.search(text, 0, end)]
        cuts = sorted(rng.choices(range(len(text) + 1), k=3))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        shown, matched = end_of([pattern], pieces)
        assert shown == (text[: ends[0]] if ends else text)
        assert matched == (pattern if ends else None)
        found += bool(ends)
    assert found, "the texts test something"


def test_of_several_the_one_that_is_complete_first() -> None:
    assert end_of([r"abcd", r"bc"], ["xab", "cd"]) == ("xabc", "bc")
    assert end_of([r"b.", r"bc"], ["abc"]) == ("abc", "b."), "of two at once, the first"


def test_a_match_before_it_counts() -> None:
    matcher = StopRegexMatcher([r"ab"])
    assert (matcher.feed("ab", armed=False), matcher.matched) == ("ab", None)
    assert (matcher.feed("xa"), matcher.feed("by"), matcher.matched) == ("xa", "b", "ab")


@pytest.mark.parametrize("pattern", [r"(a*)*c", r"(x+x+)+y", r"(a|aa)+b", r"(.*a){20}c", r"(a|b)*a(a|b){60}c"])
def test_no_pattern_takes_longer_for_a_longer_text(pattern: str) -> None:
    text = "".join(random.Random(0).choices("ab", k=20_000))
    begun = time.process_time()
    end_of([pattern], [text])
    assert time.process_time() - begun < 15, "re would take longer than the universe has"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "malformed"),
        ("[a", "malformed"),
        ("a**", "malformed"),
        (r"(a)\1", "cannot be followed"),
        (r"(?=a)b", "cannot be followed"),
        (r"(?<!a)b", "cannot be followed"),
        (r"^a", "cannot be followed"),
        (r"a$", "cannot be followed"),
        (r"\ba", "cannot be followed"),
        (r"(?>a)b", "cannot be followed"),
        (r"a++b", "cannot be followed"),
        (r"a*", "no text at all"),
        (r"(a|)", "no text at all"),
        (r"a{600}", "positions"),
        (r"(a{30}){30}", "positions"),
        (r"a{0,999999}b", "positions"),
        (r"((((a{9}){9}){9}){9}){9}", "positions"),
    ],
)
def test_what_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        read_pattern(pattern)
    assert caught.value.param == "stop_regex"


def test_a_class_that_is_repeated_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_class(text: str, flags: int) -> re.Pattern[str]:
        compiled.append(text)
        return re_compile(text, flags)

    re_compile = re.compile
    monkeypatch.setattr("palladio.runtime.text.tokenizers.stop_regex.re.compile", compile_class)
    StopPattern("(?:[a-z][0-9]){100}[a-z]")
    assert len(compiled) == 2
