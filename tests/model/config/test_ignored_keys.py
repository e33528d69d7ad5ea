"""config.json as transformers reads it: keys that it does not look at change nothing, others do what they do there."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palladio.model.config.config import ModelConfig
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.registry import find_family
from palladio.model.layers.mlp import ACTIVATIONS
from palladio.model.spec.layer_spec import DenseSpec
from tests.model.driver import Driver, load
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint, tiny_config

SLOW = pytest.mark.slow
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")


def read(family: str, **overrides: Any) -> ModelConfig:
    return ModelConfig.from_hf(tiny_config(family, **overrides))


def check_logits(path: Path) -> None:
    """Against transformers, at every position of two prompts."""
    from tests.model import hf_oracle

    chosen = [prompts()[4], prompts()[7]]
    found = Driver(*load(path), num_sequences=2).step(chosen)
    wanted, _ = hf_oracle.run(path, chosen, 1)
    for b, expected in enumerate(wanted):
        np.testing.assert_allclose(found[b], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama3", {"pretraining_tp": 2}),  # Llama 2 13B
        ("smollm3", {"pretraining_tp": 2}),  # SmolLM3-3B
        ("llama3", {"pretraining_tp": None, "add_cross_attention": True}),
        ("gemma3", {"attn_logit_softcapping": 3.0}),
        ("gpt_oss", {"hidden_act": "gelu"}),
        ("deepseek_v3", {"scoring_func": "softmax", "topk_method": "greedy", "moe_layer_freq": 2, "mlp_bias": True}),
        ("deepseek_v2", {"scoring_func": "sigmoid", "norm_topk_prob": True, "moe_layer_freq": 2}),
        ("glm4_moe", {"scoring_func": "softmax", "topk_method": "greedy"}),
        ("minimax_m2", {"use_qk_norm": False, "qk_norm_type": "per_head", "scoring_func": "softmax"}),
        ("minimax_m2", {"use_routing_bias": False, "shared_intermediate_size": 8}),
        ("llama3", {"bos_token_id": -1, "pad_token_id": -1}),
    ],
)
def test_keys_that_transformers_does_not_read(family: str, overrides: dict[str, Any]) -> None:
    assert read(family, **overrides) == read(family)


@pytest.mark.parametrize(
    ("family", "published"),
    [
        ("llama3", {"pretraining_tp": 2, "mlp_bias": False, "use_cache": True}),  # Llama 2 13B
        ("deepseek_v3", {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "ep_size": 1}),
        ("minimax_m2", {"qk_norm_type": "per_layer", "use_routing_bias": True, "shared_intermediate_size": 0}),
        ("qwen3_5", {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1}),
        ("gpt_oss", {"hidden_act": "silu", "initial_context_length": 4096, "output_router_logits": False}),
        ("smollm3", {"pretraining_tp": 2, "use_sliding_window": False, "sliding_window": None}),
    ],
)
def test_keys_of_published_models_are_taken(family: str, published: dict[str, Any]) -> None:
    assert read(family, **published) == read(family)


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        (
            "qwen2",
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor has no effect: this architecture rotates whole",
        ),
        (
            "gemma3",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 9e4}},
            "in rope_parameters has no effect",
        ),
    ],
)
def test_what_would_be_large_if_it_had_an_effect_is_told(
    family: str, overrides: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(family, **overrides) == read(family)
    assert [message in told for told in caplog.messages] == [True]


def test_token_ids_below_0_are_none() -> None:
    """As Llama 1 says of padding."""
    assert read("llama3", bos_token_id=-1).bos_token_id is None
    assert read("llama3", eos_token_id=[-1, 2]).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("torch.float32", "float32"),
        ("torch.bfloat16", "bfloat16"),
        ("torch.float16", "float16"),
        ("half", "float16"),
        ("float", "float32"),
    ],
)
def test_names_that_torch_has_for_a_dtype(name: str, dtype: str) -> None:
    for key in ("dtype", "torch_dtype"):
        assert read("qwen2", **{"torch_dtype": None, key: name}).dtype == dtype


@needs_torch
@pytest.mark.torch
def test_activations_are_those_of_transformers() -> None:
    import torch
    from transformers.activations import ACT2FN

    x = np.linspace(-6, 6, 241, dtype=np.float32)
    names = "silu swish gelu gelu_python gelu_new gelu_fast gelu_pytorch_tanh gelu_python_tanh gelu_accurate quick_gelu"
    for name in (*names.split(), "relu", "relu2"):
        config = HfConfig(tiny_config("llama3", hidden_act=name), find_family("LlamaForCausalLM").defaults)
        found = np.asarray(ACTIVATIONS[config.activation()](x))
        np.testing.assert_allclose(found, ACT2FN[name](torch.tensor(x)).numpy(), atol=2e-6, err_msg=name)


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama3", "gelu"),
        *(pytest.param("llama_biased", name, marks=SLOW) for name in ("gelu_new", "relu", "quick_gelu")),
        pytest.param("mixtral", "gelu", marks=SLOW),
        pytest.param("nemotron", "silu", marks=SLOW),
        pytest.param("starcoder2", "relu", marks=SLOW),
        pytest.param("cohere2", "gelu_fast", marks=SLOW),
        pytest.param("glm4_moe", "relu2", marks=SLOW),
    ],
)
def test_logits_with_other_activations(family: str, name: str, tmp_path: Path) -> None:
    check_logits(make_checkpoint(tmp_path, family, hidden_act=name, num_hidden_layers=2))


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("smollm3", {"use_sliding_window": True, "sliding_window": 12, "num_hidden_layers": 2}),
        pytest.param(
            "smollm3", {"sliding_window": 12, "layer_types": ["sliding_attention", *["full_attention"] * 2]}, marks=SLOW
        ),
        pytest.param("qwen2_moe", {"qkv_bias": False}, marks=SLOW),
        pytest.param("deepseek_v3", {"scoring_func": "softmax", "topk_method": "greedy"}, marks=SLOW),
        pytest.param("deepseek_v2", {"scoring_func": "sigmoid", "norm_topk_prob": True}, marks=SLOW),
        pytest.param("glm4_moe", {"scoring_func": "softmax", "topk_method": "greedy"}, marks=SLOW),
        pytest.param("minimax_m2", {"qk_norm_type": "per_head", "scoring_func": "softmax"}, marks=SLOW),
        pytest.param(
            "llama3",  # with scaling, transformers does ask for partial_rotary_factor
            {"partial_rotary_factor": 0.5, "rope_scaling": None},
            marks=SLOW,
        ),
        pytest.param("gpt_oss", {"hidden_act": "gelu"}, marks=SLOW),
    ],
)
def test_logits_with_what_was_refused(family: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    check_logits(make_checkpoint(tmp_path, family, **overrides))


def test_an_activation_of_a_layer_with_and_without_a_gate() -> None:
    assert read("llama3", hidden_act="gelu").layers[0].mlp == DenseSpec(activation="gelu")
    assert read("nemotron", hidden_act="swish", mlp_bias=False).layers[0].mlp == DenseSpec(is_gated=False)


_FLAT = {"rope_type": "default", "rope_theta": 9e5}
_BY_TYPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    "full_attention": {"rope_type": "yarn", "rope_theta": 3e4, "factor": 4.0, "original_max_position_embeddings": 32},
}


@pytest.mark.slow  # test_rope_scaling.py has both objects
@needs_torch
@pytest.mark.torch
def test_logits_of_olmo3_with_flat_rope_parameters_beside_those_by_type(tmp_path: Path) -> None:
    """transformers looks at the latter alone."""
    check_logits(make_checkpoint(tmp_path, "olmo3", rope_scaling=None, rope_parameters=_FLAT | _BY_TYPE))


@pytest.mark.slow  # a golden of gemma2 has caps
@needs_torch
@pytest.mark.torch
def test_logits_of_gemma3_with_a_cap_on_scores(tmp_path: Path) -> None:
    check_logits(make_checkpoint(tmp_path, "gemma3", attn_logit_softcapping=3.0, num_hidden_layers=3))
