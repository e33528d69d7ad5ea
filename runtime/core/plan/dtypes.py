"""The data types of weights, activations and the KV cache."""

import dataclasses
from typing import Self

import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.model.config.config import ModelConfig
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError

_DTYPES = {
    "half": jnp.float16,
    "float16": jnp.float16,
    "bfloat16": jnp.bfloat16,
    "bf16": jnp.bfloat16,
    "float": jnp.float32,
    "float32": jnp.float32,
    "fp8": jnp.float8_e4m3fn,
    "fp8_e4m3": jnp.float8_e4m3fn,
    "fp8_e5m2": jnp.float8_e5m2,
    "int8": jnp.int8,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Dtypes:
    """Attributes:
    weights: of parameters that are not quantized.
    activations: of hidden states.
    kv_cache: of keys and values.
    """

    weights: DTypeLike
    activations: DTypeLike
    kv_cache: DTypeLike

    @classmethod
    def of(cls, config: EngineConfig, target: Target, model: ModelConfig) -> Self:
        """Weights of a converted checkpoint stay as they were converted, unless a flag asks for something else.

        Raises:
            ConfigError: the model's activations, or what it caches, do not fit the dtype that a flag asks for.
        """
        dtype, kv_cache = config.source.dtype, config.cache.kv_cache_dtype
        wanted = PlatformDefaults.of(target.platform).dtype if dtype == "auto" else dtype
        # XLA:CPU has no bfloat16 scatter (it would convert the whole cache at every write), nor fast bfloat16 results.
        is_one_cpu = target.platform == "cpu" and config.parallel.tp_size * config.parallel.dp_size == 1
        activations = jnp.float32 if is_one_cpu and wanted == "bfloat16" else _DTYPES[wanted]  # see lies_narrow
        weights = _DTYPES[wanted]
        if dtype == "auto" and model.converted_dtype is not None:
            weights = _DTYPES[model.converted_dtype]
        elif dtype == "auto" and is_one_cpu and _gains_from_bfloat16(target, model):
            weights = jnp.bfloat16
        if activations == jnp.float16 and model.overflows_float16:
            raise ConfigError(
                f"--dtype {dtype}: activations of {model.architecture} exceed the range of float16; use "
                "--dtype bfloat16 or float32"
            )
        if model.latent is not None and kv_cache != "auto" and jnp.dtype(_DTYPES[kv_cache]).itemsize == 1:
            raise ConfigError(
                f"--kv-cache-dtype {kv_cache}: {model.architecture} keeps latents, which are not kept in 8 bits; use "
                "--kv-cache-dtype auto"
            )
        if kv_cache != "auto":
            return cls(weights, activations, _DTYPES[kv_cache])
        widens = target.platform == "cpu" and activations == jnp.bfloat16
        return cls(weights, activations, jnp.float32 if widens else activations)


def _gains_from_bfloat16(target: Target, model: ModelConfig) -> bool:
    """The checkpoint has bfloat16, so nothing is rounded by keeping it, and this kind of CPU multiplies it faster."""
    has_bfloat16 = (model.stored_dtype or model.dtype) == "bfloat16"
    smallest = NarrowProducts.of(target).min_hidden_size
    return has_bfloat16 and smallest is not None and model.hidden_size >= smallest
