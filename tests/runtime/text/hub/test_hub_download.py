"""Downloads from a small hub on this machine: sizes before the bar, progress, what is not fetched twice, refusals."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # public, but not in an __all__

from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub import hub_download
from palladio.runtime.text.hub.hub import pull_model, resolve_model_path, resolve_source
from palladio.runtime.text.hub.hub_download import DownloadListener, Repository
from palladio.runtime.text.hub.local_path import nearest
from tests.fake_hub import COMMIT, FakeHub, running_hub, use_hub
from tests.tiny_model import tiny_config

WEIGHTS = bytes(range(256)) * 400
FILES = {
    "config.json": json.dumps(tiny_config("qwen2")).encode(),
    "tokenizer.json": b"{ }",
    "model.safetensors": WEIGHTS,
    "original/model.safetensors": b"again",
    "pytorch_model.bin": b"again",
    "README.md": b"words",
}
SMALL = len(FILES["config.json"]) + len(FILES["tokenizer.json"])
WANTED = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(hub_download, "_INTERVAL", 0.01)
    with running_hub() as found:
        use_hub(found, str(tmp_path / "cache"), monkeypatch)
        found.repositories = {"org/model": FILES, "org/Big-8B": FILES, "org/closed": FILES}
        found.gated = {"org/closed"}
        yield found


def test_a_download_tells_its_size_and_how_far_it_is(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    use_hub(hub, str(tmp_path / "cache"), monkeypatch, child=True)
    listings, progress = [], []
    folder = resolve_model_path("org/model", listener=DownloadListener(progress.append, listings.append))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert sorted(hub.fetched()) == WANTED
    (listing,) = listings
    assert (listing.total, listing.missing) == (len(WEIGHTS) + SMALL,) * 2
    first, *_, last = progress
    assert (first.phase, first.done, first.total) == ("download", 0, listing.total)
    assert (last.done, last.total) == (listing.total, listing.total)
    assert [each.done for each in progress] == sorted(each.done for each in progress)
    hub.requests.clear()
    assert resolve_model_path("org/model") == folder
    assert hub.requests == [], "what is complete is served without asking the hub"


def test_whole_files_are_not_fetched_again(hub: FakeHub) -> None:
    folder = pull_model("org/model", None, None, DownloadListener())
    blob = (folder / "model.safetensors").resolve()
    (folder / "model.safetensors").unlink()
    blob.unlink()  # as a kill leaves it, while the last file was on its way
    hub.requests.clear()
    listings, progress = [], []
    pull_model("org/model", None, None, DownloadListener(progress.append, listings.append))
    assert hub.fetched() == ["model.safetensors"]
    assert listings[0].missing == len(WEIGHTS)
    assert progress[0].done == SMALL


@pytest.mark.parametrize("takes", [pull_model, resolve_model_path])
def test_weights_of_a_model_that_cannot_be_served_stay_where_they_are(takes: Any, hub: FakeHub) -> None:
    """A text model of another kind, and whatever else config.json says; twice, for the config.json is here then."""
    mamba = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"model_type": "mamba"}}
    for name, config, message in (
        ("org/model", mamba, r"text_config\.model_type: 'mamba' is not supported in Mistral3ForConditional"),
        ("org/Big-8B", tiny_config("qwen2", hidden_act="mish"), "hidden_act: 'mish' is not supported"),
    ):
        hub.repositories[name] = FILES | {"config.json": json.dumps(config).encode()}
        for _ in range(2):
            hub.requests.clear()
            with pytest.raises(ConfigError, match=message):
                takes(name, None, None, DownloadListener())
            assert "model.safetensors" not in hub.fetched()


def test_an_override_of_config_json_is_asked_before_weights_come(hub: FakeHub) -> None:
    hub.repositories["org/model"] = FILES | {
        "config.json": json.dumps(tiny_config("qwen2", hidden_act="mish")).encode()
    }
    source = ModelSource(
        model_path="org/model", skip_tokenizer_init=True, json_model_override_args='{"hidden_act": "silu"}'
    )
    assert (Path(resolve_source(source).model_path) / "model.safetensors").is_file()


def test_a_connection_that_breaks_is_continued_where_it_stopped(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    hub.break_after = 50_000
    folder = resolve_model_path("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [asked for method, path, asked in hub.requests if method == "GET" and path.endswith("model.safetensors")]
    assert ranges == [None, "bytes=50000-"]


def test_a_download_that_nobody_waits_for_ends_at_once(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at Ctrl-C; its client would go on until the file is there."""
    monkeypatch.undo()
    use_hub(hub, str(tmp_path / "cache"), monkeypatch, child=True)
    hub.hold, stop = "model.safetensors", threading.Event()
    failures = []

    def pull() -> None:
        try:
            pull_model("org/model", None, None, DownloadListener(stop=stop))
        except ConfigError as error:
            failures.append(str(error))

    thread = threading.Thread(target=pull)
    thread.start()
    assert hub.held.wait(60)
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    hub.release.set()
    assert "could not be downloaded (the download was stopped)" in failures[0]
    assert list(tmp_path.glob("cache/*/blobs/*.incomplete")) == []


def test_only_files_that_nobody_writes_or_continues_are_removed(tmp_path: Path) -> None:
    repository = Repository("org/model", None, str(tmp_path), ("*.json",))
    locks, blobs = tmp_path / ".locks" / repository.folder.name, repository.folder / "blobs"
    locks.mkdir(parents=True)
    blobs.mkdir(parents=True)
    for name in ("a.0123abcd.incomplete", "b.0123abcd.incomplete", "b.89efabcd.incomplete", "c.incomplete", "d"):
        (blobs / name).touch()
    with WeakFileLock(locks / "a.lock"):  # another process downloads this file
        hub_download._remove_unfinished(repository)
        assert len(list(blobs.iterdir())) == 5, "they were written a moment ago"
        hub_download._remove_unfinished(repository, [*blobs.glob("[ab].*")])
    assert sorted(file.name for file in blobs.iterdir()) == ["a.0123abcd.incomplete", "c.incomplete", "d"]


def test_refusals_say_what_was_looked_for_and_where(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull_model("org/Big-8B", None, None, DownloadListener())
    cache = tmp_path / "cache"
    with pytest.raises(ConfigError, match=r"^--model-path org/closed is gated: accept its conditions"):
        resolve_model_path("org/closed")
    with pytest.raises(ConfigError) as error:
        resolve_model_path("org/big-7b")
    assert f"{hub.url} has no such repository" in str(error.value)
    assert str(error.value).endswith(f"; did you mean org/Big-8B (in {cache})?")
    with pytest.raises(ConfigError, match=r"could not be downloaded \(the repository has no revision nowhere\)"):
        resolve_model_path("org/model", revision="nowhere")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    with pytest.raises(ConfigError) as error:
        pull_model("org/model", None, None, DownloadListener())
    assert str(error.value).startswith(
        f"MODEL org/model is not a directory here, and the local hub cache {cache} has no config.json and "
        "*.safetensors of it; HF_HUB_OFFLINE is set, so the hub was not asked: unset it"
    )
    assert pull_model("org/Big-8B", None, None, DownloadListener()).name == COMMIT
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"could not be downloaded \(http://127\.0\.0\.1:9 cannot be reached: "):
        resolve_model_path("org/model")


def test_a_pull_fetches_what_is_new_and_knows_paths(hub: FakeHub, tmp_path: Path) -> None:
    folder = pull_model("org/model", None, None, DownloadListener())
    shutil.rmtree(folder.parent)
    assert pull_model("org/model", "main", None, DownloadListener()) == folder
    with pytest.raises(ConfigError, match="is here already: palladio serve"):
        pull_model(str(tmp_path), None, None, DownloadListener())


def test_a_directory_that_is_misspelt(tmp_path: Path) -> None:
    (tmp_path / "Llama-8B").mkdir()
    with pytest.raises(ConfigError, match=r"no such directory; did you mean Llama-8B\?"):
        resolve_model_path(str(tmp_path / "lama-8b"))
    with pytest.raises(ConfigError, match=r"^HF_DIR .*lama-8b: no such directory"):
        resolve_model_path(str(tmp_path / "lama-8b"), flag="HF_DIR")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen3-8B", ["Qwen/Qwen3-8B"]),
        ("qwen/qwen3-8b", ["Qwen/Qwen3-8B"]),
        ("Qwen/Qwen3-8", ["Qwen/Qwen3-8B"]),
        ("mistral", []),
    ],
)
def test_the_nearest_names(name: str, found: list[str]) -> None:
    assert nearest(name, ["Qwen/Qwen3-8B", "meta/Llama", "org/x"]) == found
