"""Routers as DeepSeek and GLM have them: scores, biases, groups and factors; layers that differ from the others: the
first ones, without experts, and those that predict further tokens."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.model.base.errors import CheckpointError
from palladio.model.layers.moe import choose_experts
from palladio.model.spec.layer_spec import RouterGroups, RouterSpec, SparseSpec
from tests.model.driver import load
from tests.model.layers.test_experts import MLP_1, arrays, assert_same, read
from tests.tiny_model import make_checkpoint, tiny_config, tiny_weights


def test_first_layers_without_experts():
    config = read("glm4_moe", num_hidden_layers=4, first_k_dense_replace=2)
    assert [isinstance(layer.mlp, SparseSpec) for layer in config.layers] == [False, False, True, True]
    assert len(set(config.layers)) == 2, "equal layers are compiled once"
    sparse = config.layers[-1].mlp
    assert sparse.shared_expert == "plain"
    assert config.experts.shared_intermediate_size == 40, "two experts of 20 columns are one of 40"
    groups = RouterGroups(number=4, kept=2, score="best_two")
    assert sparse.router == RouterSpec(renormalize=True, score="sigmoid", bias="choice", groups=groups, scale=1.7)
    assert read("glm4_moe", n_group=1, topk_group=1).layers[-1].mlp.router.groups is None
    assert read("glm4_moe", first_k_dense_replace=3).experts is None
    plain = read("glm4_moe", n_shared_experts=0)
    assert (plain.layers[-1].mlp.shared_expert, plain.experts.shared_intermediate_size) == (None, None)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path, caplog):
    path = make_checkpoint(tmp_path, "glm4_moe", num_nextn_predict_layers=1)
    expected = arrays(path)
    stored = load_file(path / "model.safetensors")
    drafts = {"eh_proj.weight": (48, 96), "self_attn.q_proj.weight": (96, 48), "shared_head.norm.weight": (48,)}
    extra = {f"model.layers.3.{name}": np.ones(shape, np.float32) for name, shape in drafts.items()}
    save_file(stored | extra, path / "model.safetensors")
    with caplog.at_level("INFO"):
        assert_same(arrays(path), expected)
    assert "layers from 3 on predict tokens further ahead" in caplog.text
    assert "Ignored tensors: 3" in caplog.text
    save_file(stored | {name.replace(".3.", ".4."): value for name, value in extra.items()}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected keys in checkpoint .*layers\.4\."):
        load(path)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("groups", [None, ("best", 1), ("best_two", 2)])
def test_routers_against_a_loop(score, groups):
    """Score, bias, groups, sum and factor, token by token in float64. The bias turns scores negative."""
    rng = np.random.default_rng(3)
    x, router, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((30, 16), (16, 12), (12,)))
    spec = RouterSpec(
        renormalize=score == "sigmoid",
        score=score,
        bias="choice",
        groups=groups and RouterGroups(number=4, kept=2, score=groups[0]),
        scale=2.5,
    )
    weights, chosen = choose_experts(jnp.asarray(x), jnp.asarray(router), 4, spec, jnp.asarray(bias))
    for row, logits in enumerate(x.astype(np.float64) @ router):
        scores = 1 / (1 + np.exp(-logits)) if score == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
        choice = scores + bias
        if groups:
            best = [np.sort(choice[start : start + 3])[-groups[1] :].sum() for start in range(0, 12, 3)]
            kept = np.argsort(best)[-2:]
            choice = np.where(np.isin(np.arange(12) // 3, kept), choice, -np.inf)
        expected = np.argsort(-choice)[:4]
        np.testing.assert_array_equal(chosen[row], expected)
        total = scores[expected].sum() if score == "sigmoid" else 1.0
        np.testing.assert_allclose(weights[row], 2.5 * scores[expected] / total, rtol=1e-5)


def test_the_bias_of_a_router_stays_float32(tmp_path):
    """Small differences choose other experts."""
    path = make_checkpoint(tmp_path, "glm4_moe")
    _, model = load(path, dtype=jnp.bfloat16)
    mlp = model.layers[1].mlp
    assert (mlp.router.dtype, mlp.router_bias.dtype) == (jnp.bfloat16, jnp.float32)
    stored = tiny_weights(tiny_config("glm4_moe"))[f"{MLP_1}.gate.e_score_correction_bias"]
    np.testing.assert_array_equal(mlp.router_bias[...], stored)
