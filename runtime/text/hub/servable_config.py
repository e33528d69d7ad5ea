"""Whether config.json is of a model that can be served: what is asked before weights come, or a process starts."""

from pathlib import Path

from palladio.model.config.config import ModelConfig, read_config_file, read_model_dir
from palladio.model.config.config_overrides import overrides_of
from palladio.model.gguf.gguf_file import is_gguf


def glance_at(path: Path, overrides: str = "{}") -> None:
    """At a directory or a config.json, before a process takes seconds to start: which text model a model with images
    has. The process checks all of it, and warns of what it says; a GGUF file has no config.json.

    Args:
        overrides: as of --json-model-override-args.

    Raises:
        ConfigError: it is of a model that cannot be served.
    """
    if (path / "config.json").is_file() or (path.is_dir() and not any(path.glob("*.gguf"))):
        read_model_dir(path, overrides_of(overrides))
    elif path.suffix == ".json" and path.is_file() and not is_gguf(path):
        read_config_file(path, overrides_of(overrides))


def check_folder(folder: Path, overrides: str = "{}", family_module: str | None = None) -> None:
    """All of a config.json.

    Args:
        overrides, family_module: as of --json-model-override-args and of --family-module.

    Raises:
        ConfigError: its model cannot be served.
    """
    ModelConfig.from_hf(*read_model_dir(folder, overrides_of(overrides)), family_module)
