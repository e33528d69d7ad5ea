"""Text models inside a larger config.json, as in models that take images: a config.json of the text model alone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError

_PART, _KIND, _TIED = "text_config", "model_type", "tie_word_embeddings"
_OUTER = ("architectures", _KIND)  # what the file as a whole says; the part's own names are of no class here
_GEMMA3, _MISTRAL = ("gemma3_text",), ("mistral", "ministral3")

TEXT_MODELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Gemma3ForConditionalGeneration": _GEMMA3,
        "Gemma3ForSequenceClassification": _GEMMA3,
        "Gemma3Model": _GEMMA3,
        "Mistral3ForConditionalGeneration": _MISTRAL,
        "Qwen2VLForConditionalGeneration": ("qwen2_vl_text", "qwen2_vl", "qwen2"),
        "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl_text", "qwen2_5_vl", "qwen2"),
        "Qwen3VLForConditionalGeneration": ("qwen3_vl_text", "qwen3_vl", "qwen3"),
        "Qwen3_5ForConditionalGeneration": ("qwen3_5_text",),
        "Qwen3_5Model": ("qwen3_5_text",),
        "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe_text",),
        "Qwen3_5MoeModel": ("qwen3_5_moe_text",),
    }
)
"""Supported text models (text_config.model_type) of each architecture: others have other layers."""

_OWN_DEFAULTS = {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM"}
_TIED_BY_EITHER = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


def text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of the text model alone: the values of `text_config`, and those that only the whole file
    has (token ids, dtype, quantization). A config.json without `text_config` already is the text model's.

    The model_type of `text_config` is dropped. The whole file says whether the head is tied, as in transformers.

    Raises:
        ConfigError: `text_config` is not an object, or is of a text model that its architecture cannot have.
    """
    nested = config.get(_PART)
    if nested is None:
        return dict(config)
    if not isinstance(nested, Mapping):
        raise ConfigError(f"{_PART} must be an object, found {shown(nested)}")
    names, kind = config.get("architectures"), nested.get(_KIND)
    architecture = str(names[0]) if isinstance(names, list) and names else ""  # its reader reports the error
    kinds = TEXT_MODELS.get(architecture)
    if kinds is not None and kind is not None and kind not in kinds:
        raise ConfigError(
            f"{_PART}.{_KIND}: {shown(kind)} is not supported in {architecture}; supported: {', '.join(kinds)}"
        )
    outer = {key: value for key, value in config.items() if key != _PART}
    inner = {
        key: value for key, value in nested.items() if key not in _OUTER and (value is not None or key not in outer)
    }
    if outer.get(_TIED) is not None and not (architecture in _TIED_BY_EITHER and inner.get(_TIED) is True):
        inner.pop(_TIED, None)
    return outer | inner | {_PART: {} if kind is None else {_KIND: kind}}


def described_by(config: Mapping[str, Any], architecture: str) -> str:
    """Return the architecture whose family reads a text model's keys: that of the text model, where several are
    possible.

    Args:
        config: the result of `text_model`.
    """
    if TEXT_MODELS.get(architecture) != _MISTRAL or _PART not in config:
        return architecture
    return _OWN_DEFAULTS[config[_PART].get(_KIND, _MISTRAL[0])]
