"""Pooling: how a checkpoint makes one vector of a text's hidden states, as sentence-transformers' files say it."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, Self

from palladio.model.base.config_keys import shown
from palladio.model.files.small_files import read_json
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.classes import ClassSpec

PoolingMethod = Literal["last", "mean", "cls"]

_METHODS: dict[str, PoolingMethod] = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
_FLAGS: dict[str, str] = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclasses.dataclass(frozen=True, slots=True)
class Pooling:
    """Attributes:
    method: of a text's hidden states after the final norm: that of its last token, the mean of all, or that of its
        first token.
    normalizes: embeddings have length 1.
    """

    method: PoolingMethod = "last"
    normalizes: bool = True

    @classmethod
    def of(cls, path: Path) -> Self:
        """Of a model directory: from `modules.json` and the `config.json` of its pooling module (`1_Pooling`).

        What they do not say is as SGLang has it: the last token, normalized.

        Raises:
            ConfigError: a file cannot be read, or asks for something else.
        """
        modules = _modules(path, "modules.json")
        folder = "1_Pooling" if modules is None else modules.get("Pooling")
        name = None if folder is None else f"{folder}/config.json"
        content = None if name is None else read_json(path, name)
        method: PoolingMethod = "last" if name is None or content is None else _method(path / name, content)
        return cls(method, modules is None or "Normalize" in modules)

    @property
    def reads_all(self) -> bool:
        """Whether it needs hidden states that were computed before a text's last step; what was cached has none."""
        return self.method != "last"


def _modules(path: Path, name: str) -> dict[str, str] | None:
    """The folder of each module by its class; None: there is no such file."""
    file, content = path / name, read_json(path, name)
    if content is None:
        return None
    folders: dict[str, str] = {}
    for entry in content if isinstance(content, list) else [content]:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("type", "path")):
            raise ConfigError(f"{file} must be a list of objects with `type` and `path`")
        name = entry["type"].rpartition(".")[2]
        if name not in _MODULES:
            raise ConfigError(f"{file}: type {shown(entry['type'])} is not supported; only {', '.join(_MODULES)} are")
        folders[name] = entry["path"]
    return folders


def _method(file: Path, content: Any) -> PoolingMethod:
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must be a JSON object")
    named = content.get("pooling_mode")
    if named is not None:
        if not isinstance(named, str) or named not in _METHODS:
            raise ConfigError(f"{file}: pooling_mode {shown(named)} is not supported; only {', '.join(_METHODS)} are")
        return _METHODS[named]
    wanted = [key for key, value in content.items() if key.startswith("pooling_mode_") and value is True]
    unknown = [key for key in wanted if key not in _FLAGS]
    if unknown:
        raise ConfigError(f"{file}: {unknown[0][:100]} is not supported; only {', '.join(_FLAGS)} are")
    if len(wanted) != 1:
        raise ConfigError(f"{file}: one of {', '.join(_FLAGS)} must be true, found {', '.join(wanted) or 'none'}")
    return _METHODS[_FLAGS[wanted[0]]]


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """The embeddings that an engine makes.

    Attributes:
        size: numbers of one.
        pooling: of which hidden states, see Pooling.
        normalized: their length is 1.
        classes: they are the logits of these classes; None: they are embeddings.
    """

    size: int
    pooling: PoolingMethod
    normalized: bool
    classes: ClassSpec | None = None
