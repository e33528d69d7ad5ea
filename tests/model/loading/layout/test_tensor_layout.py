"""Which heads lie where, and that a model over several devices computes what it computes on one."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.loading.layout.tensor_layout import TensorLayout
from tests import tiny_families
from tests.many_devices import call_with_devices
from tests.model.driver import Driver, greedy, load
from tests.tiny_model import make_checkpoint

PROMPTS = [[5, 6, 7, 8, 9] * 9, [11], [20, 21, 22] * 7]
HF = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "eos_token_id": 2,
}
MODEL = ModelConfig.from_hf(HF)
MIXTURE = HF | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 21,
    "shared_expert_intermediate_size": 50,
}


@given(kv_heads=st.integers(1, 20), group=st.integers(1, 17), num_shards=st.integers(1, 16))
def test_every_query_head_has_one_place_beside_its_kv_head(kv_heads: int, group: int, num_shards: int) -> None:
    model = dataclasses.replace(MODEL, num_heads=kv_heads * group, num_kv_heads=kv_heads)
    layout = TensorLayout.of(model, num_shards)
    seen = []
    for place in layout.places:
        if place is not None:
            queries = range(place.first_query, place.first_query + place.num_queries)
            assert 0 < place.num_queries <= layout.group
            assert all(head // group == place.kv_head for head in queries)
            seen += queries
    assert seen == list(range(kv_heads * group))
    config = layout.config
    assert config.num_kv_heads == len(layout.places)
    assert config.num_kv_heads % num_shards == config.intermediate_size % num_shards == 0
    assert config.vocab_size % num_shards == 0
    assert config.num_heads == config.num_kv_heads * layout.group
    assert config.num_kv_heads < kv_heads + num_shards  # never more padding than it takes


def test_one_device_pads_nothing() -> None:
    layout = TensorLayout.of(MODEL, 1)
    assert layout.is_plain
    assert layout.table() == []


def test_the_table_says_what_does_not_divide() -> None:
    assert TensorLayout.of(MODEL, 8).table() == [
        "KV heads: 2 stored as 8 (4 copies of each)",
        "MLP: 100 columns padded to 104",
        "vocabulary: 1000 rows padded to 1024",
    ]
    assert TensorLayout.of(dataclasses.replace(MODEL, num_heads=12, num_kv_heads=6), 4).table() == [
        "KV heads: 6 stored as 8 (the rest are padding)",
        "query heads: 12 padded to 16",
        "vocabulary: 1000 rows padded to 1024",
    ]
    wide = dataclasses.replace(MODEL, vocab_size=128 * 1024, num_kv_heads=8, intermediate_size=128)
    assert TensorLayout.of(wide, 8).is_plain


@pytest.mark.parametrize(
    ("num_shards", "num_parts", "sizes"),
    [(1, 1, (60, 21, 50)), (4, 1, (60, 24, 52)), (4, 4, (60, 21, 52)), (8, 8, (64, 21, 56)), (8, 4, (60, 22, 56))],
)
def test_experts_divide_over_parts_and_their_columns_over_the_devices_of_a_part(
    num_shards: int, num_parts: int, sizes: tuple[int, int, int]
) -> None:
    model = ModelConfig.from_hf(MIXTURE)
    layout = TensorLayout.of(model, num_shards, num_parts)
    experts = layout.config.experts
    assert experts is not None
    assert (experts.num_places, experts.intermediate_size, experts.shared_intermediate_size) == sizes
    assert experts.num_experts == 60  # that the router chooses from
    assert layout.config.intermediate_size == 100, "no layer has a plain MLP"
    lines = [line for line in layout.table() if "expert" in line]
    assert len(lines) == sum(size != stored for size, stored in zip(sizes, (60, 21, 50), strict=True))


def outputs(path: str, num_shards: int) -> dict[str, list]:
    """Last logits of each prompt, and tokens decoded after it; runs in a process with devices enough."""
    mesh = make_mesh(num_shards)
    config, model = load(Path(path), mesh=mesh)
    driver = Driver(TensorLayout.of(config, num_shards).config, model, len(PROMPTS), mesh=mesh)
    logits, tokens = greedy(driver, PROMPTS, 6)
    return {"logits": [row[: config.vocab_size].tolist() for row in logits], "tokens": tokens}


def many_outputs(path: str, sizes: list[int]) -> list[dict[str, list]]:
    return [outputs(path, size) for size in sizes]


def check_meshes(path: str, sizes: list[int]) -> None:
    one, *others = call_with_devices(__name__, "many_outputs", path, sizes)
    assert np.std(one["logits"]) > 0.1
    for other in others:
        # Rounding errors grow with the numbers: of nemotron's, which deviate by 3, torch in float32 is 2.9e-5 off.
        size = max(1.0, 1.5 * float(np.std(one["logits"])))
        np.testing.assert_allclose(other["logits"], one["logits"], rtol=0, atol=1e-5 * size)
        assert other["tokens"] == one["tokens"]


def test_four_devices_with_heads_that_do_not_divide(tmp_path) -> None:
    """2 kv heads in 4 places, 3 query heads of each in 2 · 2 places; biases, the head tied to the embedding."""
    make_checkpoint(tmp_path, "qwen2", num_hidden_layers=1)
    config = ModelConfig.from_hf(*read_model_dir(tmp_path))
    assert (config.num_heads, config.num_kv_heads) == (6, 2)
    check_meshes(str(tmp_path), [1, 4])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama3", "mistral", *tiny_families.CONFIGS])
def test_every_family_on_every_mesh(tmp_path, family: str) -> None:
    make_checkpoint(tmp_path, family)
    check_meshes(str(tmp_path), [1, 2, 4, 8])


def rounded_logits(path: str, sizes: list[int]) -> list[list[list[float]]]:
    """Of each token of a prompt, with w8a8_int8."""
    found = []
    for size in sizes:
        mesh = make_mesh(size)
        config, model = load(Path(path), mesh=mesh, quantization="w8a8_int8")
        driver = Driver(TensorLayout.of(config, size).config, model, 1, mesh=mesh)
        found.append(driver.step([list(range(3, 15))])[0][:, : config.vocab_size].tolist())
    return found


def test_heads_of_padding_are_no_part_of_a_rounded_row(tmp_path: Path) -> None:
    """A row of activations that is rounded to 8 bits takes its scale from its largest number. Real heads pass over the
    first token, whose value is large. The queries of padding are 0: such heads attend to all tokens alike."""
    path = make_checkpoint(tmp_path, "qwen2", num_hidden_layers=1)
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][:, 0] = 0
    tensors["model.embed_tokens.weight"][3, 0] = 100
    heads = {name: tensors[f"model.layers.0.self_attn.{name}_proj.weight"].reshape(-1, 8, 48) for name in "kv"}
    heads["k"][:, 7, 0] = -10  # of a head's 8 numbers, that which rotates least
    tensors["model.layers.0.self_attn.q_proj.bias"][7::8] = 10
    heads["v"][:, 0, 0] = 100
    save_file(tensors, path / "model.safetensors")
    one, four = call_with_devices(__name__, "rounded_logits", str(path), [1, 4])
    assert np.std(one) > 0.1
    np.testing.assert_allclose(four, one, atol=0.02, rtol=0)
