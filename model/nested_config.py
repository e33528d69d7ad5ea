"""A config.json whose text model is one part of it, as of models that take images: that part, as one of its own."""

from collections.abc import Mapping
from typing import Any

from palladio.model.config_keys import shown
from palladio.model.errors import ConfigError

_OUTER = ("architectures", "model_type")  # what the file as a whole says; the part's own names are of no class here


def text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of the text model alone: what `text_config` says, and what only the whole file says (token ids,
    dtype, quantization). A config.json without `text_config` is the text model's already.

    Raises:
        ConfigError: `text_config` is not an object.
    """
    nested = config.get("text_config")
    if nested is None:
        return dict(config)
    if not isinstance(nested, Mapping):
        raise ConfigError(f"text_config must be an object, found {shown(nested)}")
    outer = {key: value for key, value in config.items() if key != "text_config"}
    inner = {
        key: value for key, value in nested.items() if key not in _OUTER and (value is not None or key not in outer)
    }
    return outer | inner
