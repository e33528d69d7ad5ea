"""Where models and tokenizers are found, with the hub's download replaced."""

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from palladio.runtime.interface.config import ModelSource
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text import hub
from palladio.runtime.text.hub import resolve_model_path, resolve_source


@pytest.fixture
def downloads(monkeypatch, tmp_path):
    """An empty cache, and a hub that has everything; what was asked of it."""
    asked = []

    def snapshot_download(repo, *, revision, cache_dir, local_files_only, allow_patterns):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        asked.append((repo, revision, cache_dir, allow_patterns))
        return str(tmp_path / repo)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return asked


def source(**fields):
    return ModelSource(**{"model_path": "m"} | fields)


def test_of_a_tokenizer_only_its_files_are_downloaded(downloads, tmp_path):
    given = source(model_path="a/model", tokenizer_path="b/tokenizer", revision="r", download_dir="/d")
    found = resolve_source(given)
    assert (found.model_path, found.tokenizer_path) == (str(tmp_path / "a/model"), str(tmp_path / "b/tokenizer"))
    (model, model_files), (tokenizer, tokenizer_files) = [(rest, files) for *rest, files in downloads]
    assert (model, tokenizer) == (["a/model", "r", "/d"], ["b/tokenizer", "r", "/d"])
    assert set(model_files) - set(tokenizer_files) == {"*.safetensors"}
    assert "*.bin" not in model_files


def test_no_tokenizer_of_its_own(downloads, tmp_path):
    assert resolve_source(source(model_path=str(tmp_path))) == source(model_path=str(tmp_path))
    unused = source(model_path=str(tmp_path), tokenizer_path="b/tokenizer", skip_tokenizer_init=True)
    assert resolve_source(unused).tokenizer_path is None
    assert downloads == []


@pytest.mark.parametrize("flag", ["--model-path", "--tokenizer-path"])
def test_errors_name_the_flag(flag, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "file").touch()
    for path, match in (
        (str(tmp_path / "file"), "is a file"),
        ("./nowhere", "no such directory"),
        ("a/b/c", "no such directory"),
        ("palladio-tests/does-not-exist", "local hub cache"),
        ("not a name", "neither a directory here nor a hub id"),
    ):
        paths = {"model_path": str(tmp_path)} | {flag.removeprefix("--").replace("-", "_"): path}
        with pytest.raises(ConfigError, match=match) as error:
            resolve_source(source(**paths, download_dir=str(tmp_path / "cache")))
        assert str(error.value).startswith(f"{flag} {path}")


def test_a_cached_tokenizer_needs_no_weights(monkeypatch, tmp_path):
    calls = []

    def snapshot_download(repo, *, local_files_only, **_):
        calls.append(local_files_only)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_text("{}")
    resolve_source(source(model_path=str(tmp_path), tokenizer_path="a/tokenizer"))
    assert calls == [True]
    resolve_model_path("a/tokenizer")  # as a model it lacks weights, so the hub is asked for them
    assert calls == [True, True, False]
