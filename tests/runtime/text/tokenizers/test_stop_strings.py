"""Stop strings in a stream: however it is cut, and in time that goes with its length."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.sampling_params import MAX_STOP_CHARACTERS, MAX_STOP_LENGTH, SamplingParams
from palladio.runtime.text.tokenizers.stop_strings import StopStringMatcher, StopStrings
from tests.counted_calls import counted_calls
from tests.properties import examples


def reference(text, stop, keep=False):
    """The match complete first wins; of several that end together, the longest."""
    found = [(text.index(s) + len(s), text.index(s), s) for s in stop if s in text]
    if not found:
        return text, None
    end, start, string = min(found)
    return text[: end if keep else start], string


def stream(pieces, stop, keep=False):
    matcher = StopStringMatcher(stop, keep_match=keep)
    shown = ""
    for piece in pieces:
        shown += matcher.feed(piece)
        if matcher.matched is not None:
            return shown, matcher.matched
    return shown + matcher.flush(), None


ALPHABET = st.text(alphabet="abc\n", max_size=24)


@examples(400)
@given(
    st.lists(st.text(alphabet="abc\n", max_size=5), max_size=12),
    st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), max_size=4),
    st.booleans(),
)
def test_any_chunking_equals_whole_search(pieces, stop, keep):
    assert stream(pieces, stop, keep) == reference("".join(pieces), stop, keep)


@examples(200)
@given(ALPHABET, st.lists(st.text(alphabet="abc\n", min_size=1, max_size=5), min_size=1, max_size=4))
def test_shown_text_is_never_part_of_a_match(text, stop):
    final, _ = reference(text, stop)
    matcher = StopStringMatcher(stop)
    shown = ""
    for char in text:
        shown += matcher.feed(char)
        assert final.startswith(shown)
        if matcher.matched is not None:
            break


@examples(300)
@given(
    st.lists(st.text(alphabet="ab", max_size=4), max_size=10),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 10),
)
def test_unarmed_pieces_cannot_complete_a_match(pieces, stop, num_unarmed):
    text = "".join(pieces)
    armed_from = len("".join(pieces[:num_unarmed]))
    ends = [
        (end, end - len(s), s)
        for s in stop
        for end in range(len(s), len(text) + 1)
        if end > armed_from and text[:end].endswith(s)
    ]
    expected = (text[: min(ends)[1]], min(ends)[2]) if ends else (text, None)
    matcher = StopStringMatcher(stop)
    shown = ""
    for i, piece in enumerate(pieces):
        shown += matcher.feed(piece, armed=i >= num_unarmed)
        if matcher.matched is not None:
            break
    else:
        shown += matcher.flush()
    assert (shown, matcher.matched) == expected


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "matched"),
    [
        (["Hello wor", "ld!"], ["world"], "Hello ", "world"),
        (["a\n", "\n", "b"], ["\n\n"], "a", "\n\n"),
        (["xabcdy"], ["abcd", "bc"], "xa", "bc"),
        (["aab", "c"], ["abc"], "a", "abc"),
        (["abab", "x"], ["abac"], "ababx", None),
        (["done"], ["ne"], "do", "ne"),
    ],
)
def test_examples(pieces, stop, shown, matched):
    assert stream(pieces, stop) == (shown, matched)


@pytest.mark.parametrize(
    ("strings", "texts"),
    [
        (lambda size: ["a" * size + "b"], lambda size: ["a" * size + "c"]),
        (lambda size: ["a" * size + end for end in "bcde"], lambda size: [*("a" * size), "x"]),
        (lambda size: ["a" * length + "b" for length in range(1, size, 50)], lambda size: ["a" * size] * 3),
        (lambda size: ["ab" * size], lambda size: ["ab" * (size // 2), "b", "aab" * size]),
    ],
)
def test_the_work_goes_with_the_length(strings: Callable[[int], list[str]], texts: Callable[[int], list[str]]) -> None:
    """A text that is nearly a stop string, again and again: what is held back is not looked at anew."""

    def feed(size: int) -> int:
        matcher = StopStringMatcher(strings(size))
        return counted_calls(lambda: [matcher.feed(text) for text in texts(size)])

    assert feed(2000) < 2.2 * feed(1000) + 50


def test_what_did_not_count_is_not_held_back() -> None:
    """The end of a whole stop string can become another one only as far as that begins with it."""
    matcher = StopStringMatcher(["stop", "opens"])
    assert [matcher.feed("a stop", armed=False), matcher.feed("s"), matcher.flush()] == ["a st", "op", "s"]


def test_making_goes_with_the_length() -> None:
    def make(size: int) -> int:
        return counted_calls(lambda: StopStrings([letter * size + "!" for letter in "abab"]))

    assert make(2000) < 2.2 * make(1000) + 50


def test_samples_share_what_looks_for_the_same_strings() -> None:
    first, second = (StopStringMatcher([text, "other"])._strings for text in ("shared", "".join(("sha", "red"))))
    assert first is second


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (["a" * (MAX_STOP_LENGTH + 1)], f"at most {MAX_STOP_LENGTH} characters, got one of {MAX_STOP_LENGTH + 1}"),
        (["a" * 300] * 64, f"at most {MAX_STOP_CHARACTERS} characters together, got 19200"),
    ],
)
def test_lengths_of_stop_strings(stop: list[str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        SamplingParams(stop=tuple(stop))
    assert caught.value.param == "stop"
    assert SamplingParams(stop=("a" * MAX_STOP_LENGTH,) * 4).stop
