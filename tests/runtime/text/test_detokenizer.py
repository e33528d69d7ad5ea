import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.runtime.text.detokenizer import ByteDetokenizer, WindowDetokenizer
from palladio.runtime.text.stop_strings import StopStringMatcher
from tests.properties import examples

CHUNKS = [b"a", "é".encode(), *(bytes((b,)) for b in "日本👨‍👩‍👧".encode()), b"\xff", b" b", b""]


def run(detokenizer, ids):
    return [detokenizer.push(i) for i in ids] + [detokenizer.flush()]


@given(st.binary(max_size=40))
def test_bytes_one_by_one_equal_whole_decode(data):
    pieces = run(ByteDetokenizer(lambda i: bytes((i,))), data)
    assert "".join(pieces) == data.decode("utf-8", "replace")


@given(st.text(max_size=20))
def test_valid_text_never_shows_half_a_code_point(text):
    pieces = run(ByteDetokenizer(lambda i: bytes((i,))), text.encode())
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_unfinished_tail_comes_out_at_flush():
    detokenizer = ByteDetokenizer(lambda i: bytes((i,)))
    assert [detokenizer.push(b) for b in "日".encode()[:2]] == ["", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_leading_space_is_stripped_once():
    words = [b"", b" Hello", b" world"]
    assert (
        "".join(run(ByteDetokenizer(words.__getitem__, strip_leading_space=True), [0, 1, 2, 1])) == "Hello world Hello"
    )


@given(st.lists(st.integers(0, len(CHUNKS) - 1), max_size=25), st.lists(st.integers(0, 1), max_size=3))
def test_window_equals_whole_decode(ids, context):
    def decode(tokens):
        return b"".join(CHUNKS[i] for i in tokens).decode("utf-8", "replace")

    whole = decode(context + ids)
    text = "".join(run(WindowDetokenizer(decode, context), ids))
    if "\ufffd" not in whole:
        assert text == whole[len(decode(context)) :]
    else:  # garbage: nothing is held for ever, and what is valid comes through
        assert text.replace("\ufffd", "") in whole.replace("\ufffd", "") or "\ufffd" in text


def test_window_shows_endless_garbage():
    detokenizer = WindowDetokenizer(lambda tokens: (b"\xff" * len(tokens)).decode("utf-8", "replace"), [])
    assert sum(len(detokenizer.push(0)) for _ in range(100)) > 80


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
