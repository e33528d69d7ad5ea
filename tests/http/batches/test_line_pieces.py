"""Lines of a file that comes in pieces: they are the same wherever it is cut."""

import hypothesis
from hypothesis import strategies as st

from palladio.http.batches.batch_lines import _Splitter
from tests.properties import examples

MOST = 6  # bytes of a line


@examples(200)
@hypothesis.given(
    content=st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"abcdef", b"abcdefg"]), max_size=30).map(b"".join),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_lines_are_the_same_wherever_the_file_is_cut(content: bytes, cuts: list[int]) -> None:
    splitter, found = _Splitter(MOST), list[tuple[int, bytes | None]]()
    ends = sorted({*(min(cut, len(content)) for cut in cuts), len(content)})
    for begin, end in zip([0, *ends], ends, strict=False):
        found += splitter.feed(content[begin:end])
    found += splitter.end()
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    assert found == [
        (number, line if len(line.rstrip(b"\r")) <= MOST else None) for number, line in enumerate(lines, 1)
    ]


def test_a_line_without_an_end_takes_no_memory() -> None:
    splitter = _Splitter(MOST)
    for _ in range(100):
        assert list(splitter.feed(b"x" * 1000)) == []
    assert len(splitter._begun) <= MOST + 1
    assert list(splitter.feed(b"y\nz")) == [(1, None)]
    assert list(splitter.end()) == [(2, b"z")]
