"""ModelOpt's FP8 checkpoints: a float8 scale a tensor, and static scales of activations."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Self

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import ConfigError
from palladio.model.formats.fp8 import Fp8
from palladio.model.formats.stored_format import names_in


@dataclasses.dataclass(frozen=True)
class ModelOptFp8(Fp8):
    """A ModelOpt FP8 checkpoint, from quantization_config or the older hf_quant_config.json."""

    title: ClassVar[str] = "ModelOpt FP8"
    flags: ClassVar[tuple[str, ...]] = ("modelopt", "modelopt_fp8", "fp8", "w8a8_fp8")

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read quantization_config.

        Raises:
            ConfigError: it says something unsupported.
        """
        inner = keys.values.get("quantization")  # some have hf_quant_config.json's object there as a whole
        if isinstance(inner, Mapping):
            keys = Keys(inner, "quantization_config.quantization.")
        algorithm = keys.values.get("quant_algo")
        if algorithm != "FP8":
            raise ConfigError(
                f"quantization_config.quant_algo: {shown(algorithm)} is not supported in ModelOpt checkpoints; only "
                "'FP8'"
            )
        return cls(None, names_in(keys, "exclude_modules") + names_in(keys, "ignore"))
