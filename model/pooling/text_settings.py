"""What sentence-transformers' files say of texts: how long they are, and which prompts stand before them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.files.small_files import read_object
from palladio.model.pooling.pooling_files import read_modules
from palladio.model.spec.classifier import ClassActivation, class_activation

SETTINGS_FILE: Final = "config_sentence_transformers.json"
LENGTH_FILES: Final = (  # names that sentence-transformers has written over the years
    *("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json"),
    *("sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json"),
    "sentence_xlnet_config.json",
)
_MARKS: Final = {"query": "query_prefix", "document": "document_prefix"}  # PyLate's names
MAX_PROMPTS: Final = 1024
MAX_PROMPT: Final = 1 << 14  # characters
MAX_LENGTH: Final = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class TextSettings:
    """How a model's texts are prepared.

    Attributes:
        prompts: texts that stand before a text, by name.
        default_prompt: the name of the one that stands before a text for which no other is named.
        max_length: most tokens of a text, its special ones included; None: as many as the model has positions.
        lowers_case: texts are made lower case.
        similarity: the function that compares two vectors, such as "cosine"; None: not said.
        activation: from the logits of a cross-encoder to its scores; None: not said here.
    """

    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None
    max_length: int | None = None
    lowers_case: bool = False
    similarity: str | None = None
    activation: ClassActivation | None = None

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read the files of a model's folder; what is not there is as by default.

        Raises:
            ConfigError: a file cannot be read, or a value is wrong; the message names both.
        """
        max_length, lowers_case = _of_transformer(folder)
        content = read_object(folder, SETTINGS_FILE) or {}
        file = folder / SETTINGS_FILE
        prompts = _prompts(file, content)
        default = content.get("default_prompt_name")
        if default is not None and default not in prompts:
            names = ", ".join(prompts) or "none"
            raise ConfigError(f"{file}: default_prompt_name {shown(default)} is not one of its prompts ({names})")
        similarity, function = content.get("similarity_fn_name"), content.get("activation_fn")
        for key, value in (("similarity_fn_name", similarity), ("activation_fn", function)):
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{file}: {key} must be a text, found {shown(value)}")
        activation = None if function is None else class_activation(function)
        return cls(prompts, default, max_length, lowers_case, similarity, activation)


def _prompts(file: Path, content: Mapping[str, Any]) -> dict[str, str]:
    prompts = content.get("prompts") or {
        name: content[key] for name, key in _MARKS.items() if content.get(key) is not None
    }
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ConfigError(f"{file}: prompts must be an object of texts, found {shown(prompts)}")
    if len(prompts) > MAX_PROMPTS:
        raise ConfigError(f"{file}: prompts has {len(prompts)} texts, over the limit of {MAX_PROMPTS}")
    for name, text in prompts.items():
        if len(text) > MAX_PROMPT:
            size = f"{len(text)} characters, over the limit of {MAX_PROMPT}"
            raise ConfigError(f"{file}: prompt {shown(name)} has {size}")
    return prompts


def _of_transformer(folder: Path) -> tuple[int | None, bool]:
    """Read max_seq_length and do_lower_case, of the folder of the module Transformer."""
    modules = read_modules(folder) or ()
    names = [module.file(name) for module in modules if module.kind == "Transformer" for name in LENGTH_FILES]
    for name in names or LENGTH_FILES:
        content = read_object(folder, name)
        if content is None:
            continue
        length, lowers = content.get("max_seq_length"), content.get("do_lower_case")
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            file = folder / name
            raise ConfigError(f"{file}: max_seq_length must be a whole number of at least 1, found {shown(length)}")
        if lowers is not None and not isinstance(lowers, bool):
            raise ConfigError(f"{folder / name}: do_lower_case must be true or false, found {shown(lowers)}")
        return None if length is None else min(length, MAX_LENGTH), bool(lowers)
    return None, False
