"""JSON of a folder: bounded in size and depth, and one error that names the file."""

from pathlib import Path

import pytest

from palladio.model.base.errors import CheckpointError
from palladio.model.files.small_files import MAX_DEPTH, parse_json, read_json, read_object, read_text


def test_json_and_text_are_read_and_what_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, Infinity]}')
    assert read_object(tmp_path, "a.json") == {"a": [1, float("inf")]}
    assert read_text(tmp_path, "a.json", 100) == '{"a": [1, Infinity]}'
    assert read_json(tmp_path, "b.json") is None
    assert read_object(tmp_path, "b.json") is None


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 200_000])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_deep_json_is_refused_at_any_depth(begin: str, end: str, depth: int) -> None:
    with pytest.raises(CheckpointError, match="x as JSON: it nests"):
        parse_json((begin * depth + "1" + end * depth).encode(), "x")
    parse_json((begin * MAX_DEPTH + "1" + end * MAX_DEPTH).encode(), "x")


@pytest.mark.parametrize("data", [b"{", b"", b"\xff\xfe", b'"\\ud800"', b"9" * 5000, b"\xef\xbb\xbf{}"])
def test_what_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"cannot read .*a\.json as JSON"):
        read_json(tmp_path, "a.json")


def test_pairs_of_surrogates_are_a_character(tmp_path: Path) -> None:
    assert parse_json(b'"\\ud83d\\ude00"', "x") == "\U0001f600"


def test_a_file_over_its_limit_and_one_that_holds_no_object_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    with pytest.raises(CheckpointError, match=r"a\.json has more than 5 bytes"):
        read_json(tmp_path, "a.json", 5)
    with pytest.raises(CheckpointError, match=r"a\.json must contain a JSON object, found list"):
        read_object(tmp_path, "a.json")


def test_a_repeated_key_counts_last_or_is_refused(tmp_path: Path) -> None:
    assert parse_json(b'{"a": 1, "a": 2}', "x") == {"a": 2}
    with pytest.raises(CheckpointError, match="the key 'a' twice"):
        parse_json(b'{"a": 1, "a": 2}', "x", repeats=False)
