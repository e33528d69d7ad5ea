"""The description of a model family: how to read its config.json, and where each of its tensors goes."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule
from palladio.model.config.weight_tables import ROTARY_BUFFERS
from palladio.model.spec.layer_spec import DecoderSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A decoder-only family.

    Attributes:
        describe: makes the specs of a model's layers from its config.json; raises ConfigError for values that specs
            cannot express.
        weights: the parameter of each tensor.
        defaults: values of keys that config.json leaves out, as in the family's config class of transformers.
        ignored: patterns (regular expressions, whole names) of tensors that carry nothing.
        usual_keys: returns config.json with the usual names for keys that this family names otherwise.
    """

    describe: Callable[[HfConfig], DecoderSpec]
    weights: tuple[WeightRule, ...]
    defaults: Mapping[str, object]
    ignored: tuple[str, ...] = ROTARY_BUFFERS
    usual_keys: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
