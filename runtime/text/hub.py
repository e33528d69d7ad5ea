"""Where a model and its tokenizer lie on this machine, and the sampling defaults that the model's directory brings."""

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from palladio.model.gguf.gguf_file import is_gguf
from palladio.runtime.interface.config import ModelSource
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.generation_request import SamplingParams
from palladio.runtime.text.foreign_models import describe_address, describe_folder

_TOKENIZER_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
_MODEL_FILES = (*_TOKENIZER_FILES, "*.safetensors")  # never *.bin
_OTHER_FORMS = ("original/*", "metal/*")  # of the same weights: patterns match in folders too
_DEFAULT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

logger = logging.getLogger(__name__)


def resolve_source(source: ModelSource, *, needs_weights: bool = True) -> ModelSource:
    """The same source, with local directories for its model and its tokenizer.

    Without a tokenizer of its own (or any), `tokenizer_path` is None.

    Args:
        needs_weights: else a hub id's are not downloaded.

    Raises:
        ConfigError: see resolve_model_path.
    """
    place = (source.revision, source.download_dir)
    needs_weights = needs_weights and source.load_format != "dummy"
    model = str(_resolve_model(source.model_path, *place, needs_weights=needs_weights))
    tokenizer = None
    if source.tokenizer_path is not None and not source.skip_tokenizer_init:
        tokenizer = str(_resolve(source.tokenizer_path, *place, _TOKENIZER))
    return dataclasses.replace(source, model_path=model, tokenizer_path=tokenizer)


def resolve_model_path(path: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """The directory of a model, or its GGUF file: `path` itself if it is one, else a hub id's snapshot (from the cache,
    or downloaded).

    Raises:
        ConfigError: no such directory, no such repository, the hub cannot be reached, or what is there has another
            form than a Hugging Face model.
    """
    return _resolve_model(path, revision, download_dir, needs_weights=True)


def _resolve_model(path: str, revision: str | None, download_dir: str | None, *, needs_weights: bool) -> Path:
    folder = _resolve(path, revision, download_dir, _MODEL if needs_weights else _CONFIG)
    refusal = describe_folder(folder, needs_weights=needs_weights)
    if refusal is not None:
        raise ConfigError(f"--model-path {refusal}")
    return folder


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    """What a path is to lead to.

    Attributes:
        flag: that gave the path.
        files: patterns of what is downloaded; holds: what the directory must hold, in words.
        is_complete: whether a snapshot in the local cache holds it.
    """

    flag: str
    files: tuple[str, ...]
    holds: str
    is_complete: Callable[[Path], bool]


def _resolve(path: str, revision: str | None, download_dir: str | None, wanted: _Wanted) -> Path:
    flag = wanted.flag
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if local.is_file():
        if is_gguf(local):
            return local
        raise ConfigError(f"{flag} {path} is a file; give the directory that holds {wanted.holds}, or a GGUF file")
    refusal = describe_address(path)
    if refusal is not None:
        raise ConfigError(f"{flag} {refusal}")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ConfigError(f"{flag} {path}: no such directory")
    cached: Path | None = None
    try:
        cached = _snapshot(path, revision, download_dir, wanted, offline=True)
        if wanted.is_complete(cached):
            return cached
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass  # not in the local cache
    try:
        return _snapshot(path, revision, download_dir, wanted, offline=False)
    except HFValidationError:
        raise ConfigError(f"{flag} {path}: neither a directory here nor a hub id such as owner/name") from None
    except GatedRepoError as error:
        raise ConfigError(
            f"{flag} {path} is gated: accept its conditions on https://huggingface.co/{path}, then set HF_TOKEN to a "
            "token of that account"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        if cached is not None:
            return cached  # an interrupted download: whoever needs what is missing says so
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{flag} {path} is not a directory here, not in the local hub cache, and could not be downloaded "
            f"({reason}); download it first and give its directory, or check the name, --revision and HF_TOKEN"
        ) from error


def read_sampling_defaults(model_dir: Path) -> dict[str, Any]:
    """Default sampling fields from generation_config.json: its temperature, top_p, top_k, min_p, repetition_penalty.

    `"do_sample": false` means temperature 0. A file that makes no sense is ignored with a warning.
    """
    file = model_dir / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text())
        defaults = {name: content[name] for name in _DEFAULT_FIELDS if content.get(name) is not None}
        if content.get("do_sample") is False:
            defaults["temperature"] = 0.0
        SamplingParams.from_dict(defaults)
    except (ValueError, AttributeError, InvalidRequestError) as error:
        logger.warning("%s is ignored: %s", file, error)
        return {}
    return defaults


def _snapshot(path: str, revision: str | None, download_dir: str | None, wanted: _Wanted, *, offline: bool) -> Path:
    return Path(
        snapshot_download(
            path,
            revision=revision,
            cache_dir=download_dir,
            local_files_only=offline,
            allow_patterns=list(wanted.files),
            ignore_patterns=list(_OTHER_FORMS),
        )
    )


def _has_weights(directory: Path) -> bool:
    if not (directory / "config.json").is_file():
        return False
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        return all((directory / name).is_file() for name in set(json.loads(index.read_text())["weight_map"].values()))
    return any(directory.glob("*.safetensors"))


def _has_tokenizer(directory: Path) -> bool:
    names = ("tokenizer.json", "*.model", "tekken.json", "vocab.*", "*.tiktoken")
    return (directory / "tokenizer_config.json").is_file() and any(any(directory.glob(name)) for name in names)


_MODEL = _Wanted("--model-path", _MODEL_FILES, "config.json and *.safetensors", _has_weights)
_CONFIG = _Wanted("--model-path", _TOKENIZER_FILES, "config.json", lambda path: (path / "config.json").is_file())
_TOKENIZER = _Wanted("--tokenizer-path", _TOKENIZER_FILES, "tokenizer.json and tokenizer_config.json", _has_tokenizer)
