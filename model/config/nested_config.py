"""Text models inside a larger config.json, as in models that take images: a config.json of the text model alone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.architectures import ARCHITECTURES, OWN

_PART, _KIND, _TIED = "text_config", "model_type", "tie_word_embeddings"
_THINKER = "thinker_config"  # the part of Qwen3-Omni that has `text_config`
_OUTER = ("architectures", _KIND)  # what the file as a whole says; the part's own names are of no class here
_GEMMA3 = ARCHITECTURES["Gemma3ForConditionalGeneration"].texts

TEXT_MODELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        **{name: found.texts for name, found in ARCHITECTURES.items() if found.texts},
        "Gemma3ForSequenceClassification": _GEMMA3,
        "Gemma3Model": _GEMMA3,
        "Qwen3_5Model": ARCHITECTURES["Qwen3_5ForConditionalGeneration"].texts,
        "Qwen3_5MoeModel": ARCHITECTURES["Qwen3_5MoeForConditionalGeneration"].texts,
    }
)
"""The architecture whose family reads each supported text model (text_config.model_type) of an architecture: others
have other layers."""

_LLAMA_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
_SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "llama": {**_LLAMA_SIZES, "intermediate_size": 11008},
        "mistral": {**_LLAMA_SIZES, "intermediate_size": 14336, "num_key_value_heads": 8},
        "qwen2": {**_LLAMA_SIZES, "intermediate_size": 22016, "vocab_size": 151936},
    }
)
"""What `text_config` leaves out where it is the default of transformers, as published files of LLaVA do."""

_TIED_BY_EITHER = (
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)


def text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of the text model alone: the values of `text_config`, and those that only the whole file
    has (token ids, dtype, quantization). A config.json without `text_config` already is the text model's.

    The model_type of `text_config` is dropped. The whole file says whether the head is tied, as in transformers.

    Raises:
        ConfigError: `text_config` is not an object, or is of a text model that its architecture cannot have.
    """
    if config.get(_THINKER) is not None:
        thinker = config[_THINKER]
        if not isinstance(thinker, Mapping):
            raise ConfigError(f"{_THINKER} must be an object, found {shown(thinker)}")
        own = {key: value for key, value in thinker.items() if key not in _OUTER}
        config = {key: value for key, value in config.items() if key != _THINKER} | own
    nested = config.get(_PART)
    if nested is None:
        return dict(config)
    if not isinstance(nested, Mapping):
        raise ConfigError(f"{_PART} must be an object, found {shown(nested)}")
    names, kind = config.get("architectures"), nested.get(_KIND)
    architecture = str(names[0]) if isinstance(names, list) and names else ""  # its reader reports the error
    kinds = TEXT_MODELS.get(architecture)
    if kinds is not None and kind is not None and kind not in list(kinds):  # a list, for it may be anything
        raise ConfigError(
            f"{_PART}.{_KIND}: {shown(kind)} is not supported in {architecture}; supported: {', '.join(kinds)}"
        )
    outer = {key: value for key, value in config.items() if key != _PART}
    inner = {
        key: value for key, value in nested.items() if key not in _OUTER and (value is not None or key not in outer)
    }
    if outer.get(_TIED) is not None and not (architecture in _TIED_BY_EITHER and inner.get(_TIED) is True):
        inner.pop(_TIED, None)
    sizes = {} if not kinds else _SIZES.get(next(iter(kinds)) if kind is None else str(kind), {})
    return {**sizes} | outer | inner | {_PART: {} if kind is None else {_KIND: kind}}


def described_by(config: Mapping[str, Any], architecture: str) -> str:
    """Return the architecture whose family reads a text model's keys and names its tensors: that of the text model, in
    models that have one as a part.

    Args:
        config: the result of `text_model`.
    """
    kinds = TEXT_MODELS.get(architecture)
    if kinds is None:
        return architecture
    found = kinds[config.get(_PART, {}).get(_KIND, next(iter(kinds)))]
    return architecture if found == OWN else found
