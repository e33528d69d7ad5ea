from hypothesis import given
from hypothesis import strategies as st

from palladio.runtime.text.tokenizers.detokenizer import ByteDetokenizer, WindowDetokenizer

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
