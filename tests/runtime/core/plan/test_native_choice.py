"""Which of our C++ a CPU's engine loads: what its layers multiply with, however the file stores them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from palladio.model.base.sharding import make_mesh
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig
from palladio.model.config.quantization_flag import MADE
from palladio.model.loading.load_model import abstract_model
from palladio.model.weights.kinds import WeightKind, WeightKinds
from palladio.model.weights.scaled import Scaled
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan import kernel_choice
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.kernel_choice import kernels_of
from palladio.runtime.execution.state.device_state import DeviceShape
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from tests.tiny_model import tiny_config

FLOAT32 = Dtypes(jnp.float32, jnp.float32, jnp.float32)
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
CHANNELS = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
INT8_FILE = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": CHANNELS, "input_activations": None}},
}


def model(size: int = 128, quantization: str | None = None, family: str = "qwen3", **config: Any) -> ModelConfig:
    hf = tiny_config(family, hidden_size=size, num_attention_heads=4, num_key_value_heads=2, **config)
    return ModelConfig.from_hf(hf).with_quantization(quantization)


def converted(kind: WeightKind) -> ModelConfig:
    """Of a folder that `palladio convert` wrote: nothing is left of how the file before it stored its weights."""
    return dataclasses.replace(model(), weight_kinds=WeightKinds(kind), converted_dtype="float32")


def chosen(served: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bool], Kernels]:
    """Whether each load asked for products of int8, and the kernels."""
    loads: list[bool] = []
    monkeypatch.setattr(kernel_choice, "load_native", lambda folder, int8: loads.append(int8))
    monkeypatch.setattr(Target, "of", lambda device: Target("cpu", "avx2"))
    cache = CacheLayout.of(served, page_size=16, dtype=jnp.float32)
    shape = DeviceShape(
        num_slots=9,
        num_columns=16,
        vocab_size=served.vocab_size,
        num_valid_tokens=served.vocab_size,
        num_decode_steps=1,
        checks_cache=False,
        dtype=jnp.float32,
        cache=cache,
        mesh=make_mesh(1),
    )
    return loads, kernels_of(ExecutionConfig(), jax.devices("cpu")[0], FLOAT32, served, shape)


def has_bytes(served: ModelConfig, kernels: Kernels) -> bool:
    """Whether a layer multiplies with int8, as the layers say."""
    layers = abstract_model(served, dtype=jnp.float32, mesh=make_mesh(1), kernels=kernels)
    return any(node.multiplies_bytes for _, node in nnx.iter_graph(layers) if isinstance(node, Scaled))


CASES = [
    (model(), False),
    *((model(quantization=name), name in ("int8", "w8a8_int8", "int4")) for name in MADE),
    (model(quantization="int4", tie_word_embeddings=True), True),
    (model(quantization="int4,embed_tokens=dense,lm_head=dense"), False),
    (model(quantization="fp8,lm_head=int8"), True),
    (model(quantization="int8", family="qwen3_moe"), True),
    (model(quantization_config=AWQ), False),
    (model(quantization_config=INT8_FILE), True),
    (model(quantization="dequantize", quantization_config=INT8_FILE), False),
    (converted(WeightKind("int8")), True),
    (converted(WeightKind("int8", group=32)), False),
]


@pytest.mark.parametrize(("served", "has_int8"), CASES, ids=[*map(str, range(len(CASES)))])
def test_products_of_int8_are_loaded_where_a_layer_has_them(
    served: ModelConfig, has_int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, kernels = chosen(served, monkeypatch)
    assert loads == [has_int8]
    assert (kernels.target.is_native, kernels.target.has_native_int8) == (True, has_int8)
    assert has_bytes(served, kernels) == has_int8


@pytest.mark.parametrize(
    ("quantization", "config", "loads"),
    [
        (None, {}, []),
        ("int8", {}, [True]),
        ("int4", {}, [True]),
        ("fp8", {}, []),
        (None, {"quantization_config": AWQ}, []),
        ("dequantize", {"quantization_config": INT8_FILE}, []),
    ],
)
def test_a_small_model_gains_from_our_code_by_what_its_layers_multiply_with(
    quantization: str | None, config: dict[str, Any], loads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plain product of one so small is worth the compiler's seconds."""
    assert chosen(model(64, quantization, **config), monkeypatch)[0] == loads
