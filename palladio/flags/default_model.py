"""The models for a first try: the embedded one, and a published one of the catalogue."""

from typing import Final

from palladio.runtime.text.hub.catalogue import CatalogueModel, catalogue
from palladio.runtime.text.hub.embedded_model import DEFAULT_MODEL_ALIASES as DEFAULT_MODEL_ALIASES
from palladio.runtime.text.hub.embedded_model import DEFAULT_MODEL_NAME as DEFAULT_MODEL_NAME
from palladio.runtime.text.hub.embedded_model import default_model_path as default_model_path
from palladio.runtime.text.hub.embedded_model import names_default_model as names_default_model

PUBLISHED_MODEL_NAME: Final = "smollm2"
"""A name of the catalogue. The chat page has a copy of it, because it cannot ask."""


def published_model() -> CatalogueModel:
    """The one of the catalogue that a first try may take instead."""
    return next(model for model in catalogue() if model.name == PUBLISHED_MODEL_NAME)


def larger_model_hint(command: str) -> str:
    """Say that the embedded model is tiny, and which command takes a published one.

    Args:
        command: a command of `palladio`.
    """
    model = published_model()
    return (
        f"It is tiny and makes mistakes. For a published model: palladio {command} {model.name} ({model.title}, "
        f"a download of {model.package.size / 1e6:.0f} MB)"
    )
