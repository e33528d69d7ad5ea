"""Every parameter comes from the checkpoint: a weight rule that is missing is an error, never zeros."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.errors import CheckpointError
from palladio.model.base.sharding import make_abstract_mesh, make_mesh
from palladio.model.config.architectures import ARCHITECTURES
from palladio.model.config.config import ModelConfig
from palladio.model.config.family import Family
from palladio.model.config.registry import find_family
from palladio.model.config.weight_rules import WeightRule
from palladio.model.loading import stored_weights
from palladio.model.loading.layout.coverage import covers
from palladio.model.loading.layout.parameters import Parameters
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.layout.tensor_part import Box
from palladio.model.loading.readers.safetensors_file import StoredTensor
from palladio.model.loading.stored_weights import _plan, rule_places, stored_arrays
from tests import tiny_families, tiny_others, tiny_relatives
from tests.tiny_model import FAMILIES, make_checkpoint, tiny_config, weight_shapes

# Every rule of every architecture holds in one of these: (its tiny family, keys of config.json, experts in one tensor).
VARIANTS: tuple[tuple[str, dict[str, Any], bool], ...] = (
    *((family, {}, False) for family in FAMILIES),
    ("qwen3", {"attention_bias": True}, False),
    ("qwen3_moe", {"attention_bias": True, "mlp_only_layers": [0]}, False),
    *((family, keys, False) for family, variants in tiny_families.VARIANTS.items() for keys in variants),
    *((family, {}, False) for family in (*tiny_relatives.REPACKED, *tiny_others.REPACKED)),
    ("mistral4", {}, True),
    *((family, {}, True) for family in ("qwen2_moe", "qwen3_moe", "mixtral", "glm4_moe", "minimax_m2")),
    *((family, {}, True) for family in ("olmoe", "ernie4_5_moe")),
    *((family, {}, True) for family in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "qwen3_next", "qwen3_5_moe")),
)

NUMBERS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
BIASES = {"qkv.bias", "output.bias", "gate_up.bias", "down.bias"}
NORMS = {"query_norm.scale", "key_norm.scale"}
NOT_THEIRS = {
    "LlamaForCausalLM": NORMS,
    "MistralForCausalLM": BIASES | NORMS,
    "MixtralForCausalLM": BIASES | NORMS | {"gate_up.kernel", "down.kernel"},
    "Qwen2ForCausalLM": (BIASES | NORMS) - {"qkv.bias"},
    "Qwen2MoeForCausalLM": (BIASES | NORMS) - {"qkv.bias"},
    "Qwen3ForCausalLM": {"gate_up.bias", "down.bias"},
    "Qwen3MoeForCausalLM": {"gate_up.bias", "down.bias", "shared.gate_up", "shared.down", "shared.gate"},
    **tiny_families.UNUSED_RULES,
}
"""Parameters that no model of an architecture has, though a rule names them: weight tables are shared."""


def shapes_of(config: dict[str, Any], *, stacked: bool) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint. Args: stacked: a layer's experts are one tensor, as transformers 5 writes them."""
    shapes = weight_shapes(config)
    if not stacked:
        return shapes
    D = config["hidden_size"]
    E = next(config[key] for key in NUMBERS_OF_EXPERTS if key in config)
    F = config.get("moe_intermediate_size") or config["intermediate_size"]
    plain = {n: s for n, s in shapes.items() if ".experts." not in n and "block_sparse_moe" not in n}
    for layer in {int(n.split(".")[2]) for n in shapes if ".experts." in n}:
        prefix = f"model.layers.{layer}.mlp"
        plain |= {f"{prefix}.experts.gate_up_proj": (E, 2 * F, D), f"{prefix}.experts.down_proj": (E, D, F)}
        plain[f"{prefix}.gate.weight"] = (E, D)
        if config["model_type"] == "minimax_m2":
            plain[f"{prefix}.e_score_correction_bias"] = (E,)
    return plain


def checkpoint_of(shapes: dict[str, tuple[int, ...]]) -> Any:
    file = Path("model.safetensors")
    return SimpleNamespace(tensors={n: StoredTensor(n, file, "F32", shape, 0, 0) for n, shape in shapes.items()})


def variants(architecture: str) -> Iterator[tuple[dict[str, Any], bool]]:
    for family, keys, stacked in VARIANTS:
        config = tiny_config(family, **keys)
        if config["architectures"] == [architecture]:
            yield config, stacked


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if not name.endswith("Generation")])
def test_each_rule_is_missed(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule, and with its tensor ignored, so that only the parameter can tell."""
    family, tried = find_family(architecture), set()
    for hf, stacked in variants(architecture):
        config = ModelConfig.from_hf(hf)
        layout = TensorLayout.of(config, 1)
        parameters = Parameters.of(layout, jnp.float32, make_mesh(1))
        checkpoint = checkpoint_of(shapes_of(hf, stacked=stacked))
        _plan(Path("x"), layout, parameters, checkpoint)
        for rule in family.weights:
            places = list(rule_places(rule, config, parameters.slots, "stacked" if stacked else "split"))
            if not places:
                continue
            tried.add(rule)
            monkeypatch.setattr(stored_weights, "find_family", lambda _, rule=rule: without(family, rule))
            with pytest.raises(CheckpointError) as error:
                _plan(Path("x"), layout, parameters, checkpoint)
            named = rule.param.format(layer=places[0][0])
            assert f"no tensor fills all of {named}" in str(error.value)
            monkeypatch.undo()
    others = {rule.param.split(".", 3)[-1] for rule in family.weights if rule not in tried}
    assert others <= NOT_THEIRS.get(architecture, set())


def without(family: Family, rule: WeightRule) -> Family:
    pattern = re.escape(rule.name).replace(r"\{layer\}", r"\d+").replace(r"\{expert\}", r"\d+")
    rules = tuple(other for other in family.weights if other is not rule)
    return dataclasses.replace(family, weights=rules, ignored=(*family.ignored, pattern))


@pytest.mark.parametrize(
    "num_shards", [*(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 3, 5, 6, 7)), 4, 8]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_no_hole(family: str, num_shards: int) -> None:
    hf = tiny_config(family)
    layout = TensorLayout.of(ModelConfig.from_hf(hf), num_shards)
    parameters = Parameters.of(layout, jnp.float32, make_abstract_mesh(num_shards))
    _plan(Path("x"), layout, parameters, checkpoint_of(shapes_of(hf, stacked=False)))


def test_a_part_that_is_taken_twice_does_not_make_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes add up: the up projection is in the gate's place too."""
    hf = tiny_config("llama_biased")
    family = find_family("LlamaForCausalLM")
    rules = tuple(
        dataclasses.replace(rule, transform="gate") if rule.transform == "up" else rule for rule in family.weights
    )
    monkeypatch.setattr(stored_weights, "find_family", lambda _: dataclasses.replace(family, weights=rules))
    layout = TensorLayout.of(ModelConfig.from_hf(hf), 1)
    parameters = Parameters.of(layout, jnp.float32, make_mesh(1))
    with pytest.raises(CheckpointError, match=r"no tensor fills all of layers\.0\.mlp\.gate_up\.kernel"):
        _plan(Path("x"), layout, parameters, checkpoint_of(weight_shapes(hf)))


def test_cells() -> None:
    layout = TensorLayout.of(ModelConfig.from_hf(tiny_config("qwen2")), 1)
    axes = (None, None)
    halves = [Box((2, 3), (0, 0), (0, 0)), Box((2, 3), (2, 0), (0, 0))]
    assert covers(halves, (4, 3), axes, layout)
    assert not covers(halves[:1], (4, 3), axes, layout)
    assert not covers([*halves, halves[0]], (4, 3), axes, layout)
    assert not covers([], (4, 3), axes, layout)


def test_a_dropped_rule_is_told_when_a_checkpoint_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path, "qwen2")
    family = find_family("Qwen2ForCausalLM")
    rule = next(rule for rule in family.weights if rule.param == "norm.scale")
    monkeypatch.setattr(stored_weights, "find_family", lambda _: without(family, rule))
    layout = TensorLayout.of(ModelConfig.from_hf(tiny_config("qwen2")), 1)
    parameters = Parameters.of(layout, jnp.float32, make_mesh(1))
    with pytest.raises(CheckpointError, match=r"norm\.scale; the weight rules of Qwen2ForCausalLM are"):
        list(stored_arrays(path, layout, parameters, make_mesh(1)))
    monkeypatch.undo()
    assert all(np.isfinite(array).all() for _, array in stored_arrays(path, layout, parameters, make_mesh(1)))
