"""Whether config.json is of a model that can be served: what is asked before weights come, or a process starts."""

import contextlib
import json
from pathlib import Path
from typing import Final

from palladio.model.config.config import ModelConfig, read_config_file, read_model_dir
from palladio.model.config.config_overrides import overrides_of
from palladio.model.config.encoders import is_encoder
from palladio.model.gguf.gguf_file import is_gguf
from palladio.runtime.interface.errors import ConfigError

_ENCODERS: Final = frozenset({"vision_config", "audio_config", "thinker_config", "vision_tower", "mm_vision_tower"})


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


def is_of_encoder(path: Path, overrides: str = "{}") -> bool:
    """Whether a model's directory holds an encoder, which makes embeddings or classes alone. Who reads all of its
    config.json says what is wrong with it.

    Args:
        overrides: as of --json-model-override-args.
    """
    if not (path / "config.json").is_file():
        return False
    with contextlib.suppress(ConfigError):
        return is_encoder(read_model_dir(path, overrides_of(overrides))[0])
    return False


def check_text_only(path: Path, flag: str) -> None:
    """Check that a flag which asks to read pictures is of a model that has none, where it changes nothing.

    Args:
        path: a model's directory; another path is left alone.
        flag: as typed.

    Raises:
        ConfigError: config.json has an encoder of pictures or sound.
    """
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # the reader of the model says what is wrong
    found = sorted(_ENCODERS & config.keys()) if isinstance(config, dict) else []
    if found:
        raise ConfigError(
            f"{flag}: pictures and sound are not read, and this model has an encoder of them ({found[0]} in "
            f"config.json); leave {flag} out to serve its text"
        )


def check_folder(folder: Path, overrides: str = "{}", family_module: str | None = None) -> None:
    """All of a config.json.

    Args:
        overrides, family_module: as of --json-model-override-args and of --family-module.

    Raises:
        ConfigError: its model cannot be served.
    """
    ModelConfig.from_hf(*read_model_dir(folder, overrides_of(overrides)), family_module)
