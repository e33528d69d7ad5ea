"""The embedded default model: a small trained Qwen3 checkpoint in Hugging Face's layout, part of the package.

It lets anyone start the server without a download. `training/` makes it.
"""

from pathlib import Path
from typing import Final

from palladio.runtime.text.catalogue import CatalogueModel, catalogue

DEFAULT_MODEL_NAME: Final = "palladio-default-v3"
"""What it is served as: another version where its weights change."""


DEFAULT_MODEL_ALIASES: Final = (DEFAULT_MODEL_NAME, "palladio-default", "default")
"""What people may type in place of its directory."""

PUBLISHED_MODEL_NAME: Final = "smollm2"
"""Of the catalogue; the chat page, which cannot ask for it, says the same."""


def names_default_model(name: str) -> bool:
    """Whether it is one of its names, and no directory here is called so."""
    return name in DEFAULT_MODEL_ALIASES and not Path(name).exists()


def default_model_path() -> Path:
    """Its directory, which --model-path takes as it takes any other."""
    return Path(__file__).resolve().with_name("default_checkpoint")


def published_model() -> CatalogueModel:
    """The one of the catalogue that a first try may take instead."""
    return next(model for model in catalogue() if model.name == PUBLISHED_MODEL_NAME)


def larger_model_hint(command: str) -> str:
    """Says that it is tiny, and which command has a published model. Args: command: of `palladio`."""
    model = published_model()
    return (
        f"It is tiny and makes mistakes. For a published model: palladio {command} {model.name} ({model.title}, "
        f"a download of {model.package.size / 1e6:.0f} MB)"
    )
