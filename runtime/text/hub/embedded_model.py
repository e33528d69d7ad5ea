"""The embedded model: a small trained Qwen3 checkpoint in Hugging Face's layout, part of the package.

It lets anyone start without a download. `training/` makes it.
"""

import importlib.resources
from pathlib import Path
from typing import Final

DEFAULT_MODEL_NAME: Final = "palladio-default-v3"
"""What it is served as: another version where its weights change."""

DEFAULT_MODEL_ALIASES: Final = (DEFAULT_MODEL_NAME, "palladio-default", "default")
"""What people may type in place of its directory."""


def names_default_model(name: str) -> bool:
    """Whether it is one of its names, and no directory here is called so."""
    return name in DEFAULT_MODEL_ALIASES and not Path(name).exists()


def default_model_path() -> Path:
    """Its directory, which --model-path takes as it takes any other."""
    return Path(str(importlib.resources.files("palladio"))).resolve() / "default_checkpoint"
