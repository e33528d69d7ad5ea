"""Where a model lies on this machine, and the sampling defaults that its directory brings."""

import json
import logging
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from palladio.runtime.errors import ConfigError, InvalidRequestError
from palladio.runtime.sampling_params import SamplingParams

_PATTERNS = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt", "*.tiktoken", "*.py"]  # never *.bin
_DEFAULT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

logger = logging.getLogger(__name__)


def resolve_model_path(path: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """The directory of a model: `path` itself if it is one, else a hub id's snapshot (from the cache, or downloaded).

    Raises:
        ConfigError: no such directory, no such repository, or the hub cannot be reached.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if local.is_file():
        raise ConfigError(f"--model-path {path} is a file; give the directory that holds config.json and *.safetensors")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ConfigError(f"--model-path {path}: no such directory")
    cached: Path | None = None
    try:
        cached = _snapshot(path, revision, download_dir, offline=True)
        if _is_complete(cached):
            return cached
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass  # not in the local cache
    try:
        return _snapshot(path, revision, download_dir, offline=False)
    except HFValidationError:
        raise ConfigError(f"--model-path {path}: neither a directory here nor a hub id such as owner/name") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        if cached is not None:
            return cached  # an interrupted download: whoever needs what is missing says so
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"--model-path {path} is not a directory here, not in the local hub cache, and could not be downloaded "
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


def _snapshot(path: str, revision: str | None, download_dir: str | None, *, offline: bool) -> Path:
    return Path(
        snapshot_download(
            path, revision=revision, cache_dir=download_dir, local_files_only=offline, allow_patterns=_PATTERNS
        )
    )


def _is_complete(directory: Path) -> bool:
    if not (directory / "config.json").is_file():
        return False
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        return all((directory / name).is_file() for name in set(json.loads(index.read_text())["weight_map"].values()))
    return any(directory.glob("*.safetensors"))
