"""Where models and tokenizers are found, with the hub's download replaced."""

from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
from huggingface_hub.utils._paths import filter_repo_objects

from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub import hub_download
from palladio.runtime.text.hub.embedded_model import DEFAULT_MODEL_ALIASES
from palladio.runtime.text.hub.hub import resolve_model_path, resolve_source

# gpt-oss has its weights three times.
REPOSITORY = (
    *("config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "chat_template.jinja"),
    *("original/config.json", "original/model.safetensors", "metal/model.bin", "metal/notes.txt"),
)


@pytest.fixture
def downloads(monkeypatch, tmp_path):
    """An empty cache, and a hub that has everything; what was asked of it."""
    asked = []

    def snapshot_download(repo_id, revision, cache_dir, allow_patterns, ignore_patterns, local_files_only=False, **how):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        if how.get("dry_run"):
            return []
        assert set(filter_repo_objects(REPOSITORY, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)) == {
            file for file in REPOSITORY if "/" not in file and any(fnmatch(file, each) for each in allow_patterns)
        }
        asked.append((repo_id, revision, cache_dir, allow_patterns))
        return str(tmp_path / repo_id)

    monkeypatch.setattr(hub_download, "snapshot_download", snapshot_download)
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

    def snapshot_download(*, local_files_only=False, dry_run=False, **_):
        if dry_run:
            return []
        calls.append(local_files_only)
        return str(tmp_path)

    monkeypatch.setattr(hub_download, "snapshot_download", snapshot_download)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / name).write_text("{}")
    resolve_source(source(model_path=str(tmp_path), tokenizer_path="a/tokenizer"))
    assert calls == [True]
    resolve_model_path("a/tokenizer")  # as a model it lacks weights, so the hub is asked for them
    assert calls == [True, True, False]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (("m.Q4_K_M.gguf", "m.Q8_0.gguf"), "is a directory of several GGUF models: give one of them: "),
        (("m.gguf", "n.gguf", "config.json"), "is a directory of several GGUF models: give one of them: "),
        (
            ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"),
            "is an adapter (LoRA), not a model: merge it into its base model (org/base) with peft",
        ),
        (("params.json", "consolidated.00.pth", "tokenizer.model"), "has Meta's or Mistral's original format (params"),
        (("params.json", "consolidated.safetensors"), "has Meta's or Mistral's original format (params.json)"),
        (("model_index.json", "unet/config.json"), "is a diffusers pipeline"),
        (("config.json", "model.onnx"), "holds an ONNX model: give the checkpoint that it was exported from"),
        (("config.json", "onnx/model.onnx"), "holds an ONNX model"),
        (("config.json", "onnx/model.onnx", "pytorch_model.bin"), "has pytorch_model.bin and no"),
        (("config.json", "pytorch_model-00001-of-00002.bin"), "has pytorch_model-00001-of-00002.bin and no"),
        (("refs/main", "snapshots/abc/config.json"), "has no config.json, but "),
    ],
)
def test_a_directory_in_another_form_is_told_with_what_to_do(files, told, tmp_path):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(ConfigError) as error:
        resolve_source(source(model_path=str(tmp_path)))
    assert str(error.value).startswith(f"--model-path {tmp_path} {told}")
    with pytest.raises(ConfigError):
        resolve_model_path(str(tmp_path))


def test_a_model_quantized_by_mlx_is_told(tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    (tmp_path / "config.json").write_text('{"quantization": {"group_size": 64, "bits": 4}}')
    with pytest.raises(ConfigError, match=r"is quantized by MLX, .* give the model that it was made of"):
        resolve_model_path(str(tmp_path))
    (tmp_path / "config.json").write_text('{"quantization": null}')
    assert resolve_model_path(str(tmp_path)) == tmp_path


def test_a_model_with_more_than_it_needs_is_a_model(tmp_path):
    for name in ("config.json", "model.safetensors", "m.gguf", "params.json", "adapter_config.json"):
        (tmp_path / name).write_text("{}")
    assert resolve_model_path(str(tmp_path)) == tmp_path
    (tmp_path / "model.safetensors").unlink()
    assert resolve_source(source(model_path=str(tmp_path), load_format="dummy")).model_path == str(tmp_path)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (
            "gs://bucket/model",
            "is a URL: mount the bucket (gcsfuse --implicit-dirs BUCKET DIR) or copy the model (gcloud storage cp "
            "--recursive …), and give the local directory",
        ),
        ("s3://bucket", "is a URL: mount the bucket (mount-s3 BUCKET DIR) or copy the model (aws s3 cp --recursive …)"),
        ("https://huggingface.co/org/model", "is a URL: download the model first, and give the local directory"),
        ("file:///models/a", "is a URL: give the path without file://"),
    ],
)
def test_a_url_is_no_path(path, told):
    with pytest.raises(ConfigError) as error:
        resolve_model_path(path)
    assert str(error.value).startswith(f"--model-path {path} {told}")


def test_a_gguf_file(tmp_path):
    (tmp_path / "m.gguf").touch()
    path = tmp_path / "m.gguf"
    assert resolve_model_path(str(path)) == path
    resolved = resolve_source(source(model_path=str(path), tokenizer_path=str(path)))
    assert (resolved.model_path, resolved.tokenizer_path) == (str(path), str(path))
    assert resolve_model_path(str(tmp_path)) == path


def test_a_gated_model_says_where_to_ask_and_what_to_set(monkeypatch):
    def snapshot_download(*, local_files_only=False, **_):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        raise GatedRepoError("403", response=httpx.Response(403, request=httpx.Request("GET", "https://hub")))

    monkeypatch.setattr(hub_download, "snapshot_download", snapshot_download)
    with pytest.raises(ConfigError, match=r"is gated: accept its conditions on https://.*/org/m, then set HF_TOKEN"):
        resolve_model_path("org/m")


def test_the_embedded_model_has_a_name_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in DEFAULT_MODEL_ALIASES:
        assert (Path(resolve_source(ModelSource(model_path=name)).model_path) / "model.safetensors").is_file()
    mine = tmp_path / "default"
    mine.mkdir()
    (mine / "config.json").write_text('{"model_type": "qwen3"}')
    assert resolve_source(ModelSource(model_path="default"), needs_weights=False).model_path == "default"
