"""What a folder may have its reader open: regular files of its own, or of its repository in the hub cache."""

import os
from pathlib import Path

import pytest

from palladio.model.base.errors import CheckpointError
from palladio.model.files.folder_files import check_is_whole, find_file, find_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model" / "below").mkdir(parents=True)
    (tmp_path / "model" / "below" / "a.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Of a hub cache, as the hub's client lays it out."""
    repository = tmp_path / "hub" / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / "0123").write_text("{}")
    found = repository / "snapshots" / "abcd"
    found.mkdir(parents=True)
    (found / "a.json").symlink_to("../../blobs/0123")
    return found


def test_a_file_in_a_folder_below_is_found_and_one_that_is_not_there_is_none(folder: Path) -> None:
    assert find_file(folder, "below/a.json") == folder / "below" / "a.json"
    assert find_file(folder, "b.json") is None
    assert find_file(folder, "below/a.json/b.json") is None


@pytest.mark.parametrize("name", ["../other/a.json", "below/../../other/a.json", "/etc/passwd", "", "a\0b", "."])
def test_a_name_that_leads_out_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="no path below it"):
        find_file(folder, name)


@pytest.mark.parametrize("target", ["../other/a.json", "/etc/passwd"])
def test_a_link_out_of_the_folder_is_refused(folder: Path, target: str) -> None:
    (folder / "a.json").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"a\.json is a link to .* outside of"):
        find_file(folder, "a.json")


def test_a_folder_below_that_is_a_link_elsewhere_is_refused(folder: Path) -> None:
    (folder / "linked").symlink_to("../other")
    with pytest.raises(CheckpointError, match="outside of"):
        find_file(folder, "linked/a.json")


def test_links_within_the_folder_and_a_folder_that_is_a_link_are_fine(folder: Path, tmp_path: Path) -> None:
    (folder / "a.json").symlink_to("below/a.json")
    (tmp_path / "link").symlink_to("model")
    assert find_file(tmp_path / "link", "a.json") is not None


def test_the_hub_cache_and_a_users_folder_of_links_into_it_are_fine(snapshot: Path, folder: Path) -> None:
    assert find_files(snapshot, "*.json") == [snapshot / "a.json"]
    check_is_whole(snapshot, ["a.json"])
    (folder / "a.json").symlink_to(snapshot / "a.json")
    assert find_file(folder, "a.json") is not None
    with pytest.raises(CheckpointError, match=r"outside of .*: copy the file"):  # but not where a request names it
        check_is_whole(folder, ["a.json"])


def test_a_snapshot_that_leaves_its_repository_is_refused(snapshot: Path, folder: Path) -> None:
    (snapshot / "b.json").symlink_to(folder / "below" / "a.json")
    with pytest.raises(CheckpointError, match="outside of"):
        find_file(snapshot, "b.json")


def test_what_has_no_end_is_refused_unread(folder: Path) -> None:
    os.mkfifo(folder / "a.json")
    (folder / "b.json").symlink_to("/dev/zero")
    for name, kind in (("a.json", r"a pipe \(FIFO\)"), ("b.json", "a device"), ("below", "a directory")):
        with pytest.raises(CheckpointError, match=f"{name} is {kind}, not a regular file"):
            find_file(folder, name)
