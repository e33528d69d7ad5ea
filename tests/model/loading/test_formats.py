"""Quantized checkpoints in each format: the numbers are those of the format's definition, and keep their bits."""

import json
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.errors import ConfigError
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.quantization_config import QUANT_FILES
from palladio.model.functional import num_bytes
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import num_parameters, weight_bytes
from palladio.model.loading.manifest import MANIFEST
from palladio.model.weights.kinds import WeightKind
from tests.many_devices import call_with_devices
from tests.model import quantized_checkpoints as stored
from tests.model.driver import Driver, load, numbers
from tests.model.format_cases import AWQ, CASES, FOUR, GPTQ, STACKED, checkpoint, ct, stacked_checkpoint
from tests.model.loading.test_quantized_weights import (
    assert_as_transformers,
    assert_equal,
    convert,
    converted_numbers,
)
from tests.model.loading.test_quantized_weights import wide_logits as of_devices
from tests.model.make_goldens import prompts
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, write_json

ONE_BY_ONE = ("gptq 8 bits by channel", "ct 4 bits", "ct float8 in blocks")
FEW_LAYERS: dict[str, dict[str, Any]] = {"mxfp4": {"num_hidden_layers": 2}}
COMPARED = ("awq", "gptq 8 bits by channel", "ct 4 bits with zeros", "ct int8")


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_the_format(case: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, case)
    loaded = load(path)
    sizes = weight_bytes(loaded[1])
    assert CASES[case][2] in sizes, sizes
    wide = load(path / "wide")[1]
    assert_equal(numbers(loaded[1]), numbers(wide))
    assert num_parameters(loaded[1]) == num_parameters(wide)
    assert num_bytes((num_parameters(wide),), jnp.float32) == sum(weight_bytes(wide).values())
    by_config = ModelConfig.from_hf(json.loads((path / "config.json").read_text()))
    assert by_config.weight_kinds == loaded[0].weight_kinds  # what a plan without weights counts with
    if case in COMPARED:
        assert_as_transformers(path / "wide", loaded)


@pytest.mark.parametrize("case", ["awq", *(pytest.param(case, marks=pytest.mark.slow) for case in ONE_BY_ONE)])
def test_experts_one_by_one(case: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, case, "qwen3_moe", head_dim=16, moe_intermediate_size=32)
    loaded = load(path)
    assert CASES[case][2] in weight_bytes(loaded[1])
    assert_equal(numbers(loaded[1]), numbers(load(path / "wide")[1]))
    if case == "awq":
        assert_as_transformers(path / "wide", loaded)


@pytest.mark.parametrize("case", STACKED)
def test_experts_in_one_tensor(case: str, tmp_path: Path) -> None:
    path = stacked_checkpoint(tmp_path, case, **FEW_LAYERS.get(case, {}))
    loaded = load(path)
    assert STACKED[case][2] in weight_bytes(loaded[1])
    assert_equal(numbers(loaded[1]), numbers(load(path / "wide")[1]))
    if case == "mxfp4":
        assert_as_transformers(path / "wide", loaded)


def test_mxfp4_as_transformers_widens_it() -> None:
    """The oracle of this file against another one."""
    torch = pytest.importorskip("torch")
    oracle = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    made, wide = stored.experts_of(stored.mxfp4, np.random.default_rng(0), (2, 6, 64))
    blocks, scales = torch.from_numpy(made["_blocks"]), torch.from_numpy(made["_scales"])
    np.testing.assert_array_equal(oracle(blocks, scales, dtype=torch.float32).transpose(1, 2).numpy(), wide)


def test_modules_by_pattern(tmp_path: Path) -> None:
    """Other bits for some, none for others; a fused projection whose parts are of two kinds is dense."""
    dynamic = {
        r"-:model\.layers\.1\.self_attn\.o_proj": {},
        r"+:.*down_proj": {"bits": 8, "group_size": -1},
        r".*v_proj": {"bits": 8},
    }

    def make(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> stored.Stored | None:
        if name == "model.layers.1.self_attn.o_proj":
            return None
        if name.endswith("down_proj"):
            return stored.gptq(rng, shape, bits=8, group=None)
        return stored.gptq(rng, shape, bits=8 if name.endswith("v_proj") else 4)

    path = stored.rewrite(make_checkpoint(tmp_path, "qwen2"), make, GPTQ | {"dynamic": dynamic})
    config, model = load(path)
    assert_equal(numbers(model), numbers(load(path / "wide")[1]))
    kinds = config.weight_kinds
    assert kinds.dense == (
        "embedding.table",
        "layers.1.attention.output.kernel",
        "layers.{layer}.attention.qkv.kernel",
        "lm_head.table",
    )
    assert [(name, kind.name) for name, kind in kinds.others] == [
        ("layers.{layer}.mlp.down.kernel", "int8 W8A16, a scale per channel and zero points")
    ]
    assert ModelConfig.from_hf(json.loads((path / "config.json").read_text())).weight_kinds == kinds


def test_groups_of_modules_and_patterns_to_ignore(tmp_path: Path) -> None:
    """compressed-tensors: the first group that names a module; `re:` names what is plain."""
    config = ct("pack-quantized", **FOUR)
    eight = {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
    config["config_groups"] = {"eight": eight, **config["config_groups"]}
    config["ignore"] = ["lm_head", r"re:.*layers\.0\.self_attn.*"]

    def make(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> stored.Stored | None:
        if "layers.0.self_attn" in name:
            return None
        is_down = name.endswith("down_proj")
        return stored.ct_packed(rng, shape, **({"bits": 8, "group": None} if is_down else {}))

    path = stored.rewrite(make_checkpoint(tmp_path, "qwen2"), make, config)
    found, model = load(path)
    assert_equal(numbers(model), numbers(load(path / "wide")[1]))
    names = ("layers.0.attention.qkv.kernel", "layers.1.attention.qkv.kernel", "layers.0.mlp.down.kernel")
    kinds = [found.weight_kinds.of(name) for name in names]
    assert [kind and kind.bits for kind in kinds] == [None, 4, 8]
    assert ModelConfig.from_hf(json.loads((path / "config.json").read_text())).weight_kinds == found.weight_kinds


def test_an_order_of_inputs_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config, _ = load(checkpoint(tmp_path, "gptq act order"))
    assert (
        "14 matrices have their inputs in an order of their own (act order, desc_act) and become dense" in caplog.text
    )
    assert config.weight_kinds.kind is None


def wide_logits(path: str, sizes: list[int]) -> list[list[list[float]]]:
    """Of a prompt, on each number of devices."""
    return of_devices(path, sizes, None)


@pytest.mark.parametrize(
    ("case", "columns", "sizes"),
    [
        pytest.param("awq", 96, [1, 4], marks=pytest.mark.slow, id="768 over 4, of groups of 128"),
        pytest.param("ct int8", 96, [1, 4], id="zero points of channels, with padding among the heads"),
        pytest.param("awq", 96, [1, 2, 4, 8], marks=pytest.mark.slow, id="and over 2 and 8"),
        pytest.param("ct 4 bits with zeros", 720, [1, 2, 8], marks=pytest.mark.slow, id="2880 over 8, of groups of 64"),
        pytest.param("gptq 8 bits by channel", 96, [1, 4, 8], marks=pytest.mark.slow, id="by channel"),
    ],
)
def test_devices_that_cut_groups_in_two(case: str, columns: int, sizes: list[int], tmp_path: Path) -> None:
    """96 columns over 4 devices are 24 each, and a group is 16."""
    path = checkpoint(tmp_path, case, intermediate_size=columns, num_hidden_layers=1)
    one, *others = call_with_devices(__name__, "wide_logits", str(path), sizes)
    assert np.std(one) > 0.1
    for other in others:
        np.testing.assert_allclose(other, one, atol=2e-5, rtol=0)


def logits_in_parts(path: str, sizes: list[tuple[int, int]]) -> list[list[list[float]]]:
    """Of a prompt, with so many devices in so many parts that have experts of their own."""
    found = []
    for size, parts in sizes:
        mesh = make_mesh(size, ep_size=parts)
        config, model = load(Path(path), mesh=mesh)
        driver = Driver(TensorLayout.over(config, mesh).config, model, 1, mesh=mesh)
        found.append(driver.step(prompts()[:1])[0][:, : config.vocab_size].tolist())
    return found


@pytest.mark.slow  # test_dp_attention.py has experts over devices
@pytest.mark.parametrize("case", ["mxfp4", "float8 in blocks"])
def test_experts_over_devices(case: str, tmp_path: Path) -> None:
    """Two parts of two devices: each has 16 of an expert's 32 columns, half of a group."""
    path = stacked_checkpoint(tmp_path, case, **FEW_LAYERS.get(case, {}))
    one, *others = call_with_devices(__name__, "logits_in_parts", str(path), [(1, 1), (4, 2)])
    assert np.std(one) > 0.1
    for other in others:
        np.testing.assert_allclose(other, one, atol=2e-5, rtol=0)


def kept_and_made(source: str, out: str, size: int) -> dict[str, float]:
    """A converted checkpoint is its source, on any number of devices; sums of random weights of the same form."""
    converted_numbers(source, out, size)
    mesh = make_mesh(size)
    _, model = load(Path(source), load_format="dummy", mesh=mesh)
    return {name: float(np.abs(array).sum()) for name, array in numbers(model).items()}


@pytest.mark.slow  # test_gguf.py converts 4 bits, too
def test_a_converted_checkpoint_keeps_4_bits_and_random_weights_have_them(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", "awq", "llama3", intermediate_size=96, num_hidden_layers=1)
    convert(source, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["quantization"]["name"] == CASES["awq"][2]
    assert manifest["parameters"]["layers.0.mlp.down.kernel.zeros"] == {
        "shape": [6, 64],
        "dtype": "int8",
        "kind": CASES["awq"][2],
        "axes": ["ffw", None],
    }
    assert manifest["parameters"]["layers.0.mlp.down.kernel.values"]["dtype"] == "int4"
    one, four = (
        call_with_devices(__name__, "kept_and_made", str(source), str(tmp_path / "out"), size) for size in (1, 4)
    )
    assert one == pytest.approx(four)
    assert one["layers.0.mlp.down.kernel"] > 1


def test_bytes_of_4_bits_on_the_device(tmp_path: Path) -> None:
    """Two numbers share a byte: what the log, the plan and the compiler say."""
    _, model = load(checkpoint(tmp_path, "awq", intermediate_size=96))
    kernel = model.layers[0].mlp.down.kernel
    (values,) = (array for array in kernel.arrays() if array.dtype == jnp.int4)
    program = jax.jit(lambda array: array).lower(values).compile()
    assert program.memory_analysis().argument_size_in_bytes == 96 * 48 // 2
    assert num_bytes(values.shape, values.dtype) == 96 * 48 // 2
    numbers_of = 2 * (48 * (48 + 2 * 16) + 48 * 48 + 3 * 96 * 48)  # of both layers
    assert weight_bytes(model)[CASES["awq"][2]] == pytest.approx(numbers_of * (0.5 + 5 / 16), rel=0.05)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("quantize_config.json", {key: value for key, value in GPTQ.items() if key != "quant_method"}, GPTQ),
        ("quant_config.json", {"zero_point": True, "q_group_size": 16, "w_bit": 4, "version": "GEMM"}, AWQ),
        ("quantize_config.json", {"zero_point": True, "q_group_size": 16, "w_bit": 4, "version": "GEMM"}, AWQ),
    ],
)
def test_files_of_older_tools(name: str, content: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    """quantization_config of checkpoints whose config.json has none; else it is config.json's."""
    path = make_checkpoint(tmp_path, "qwen2")
    (path / name).write_text(json.dumps(content))
    config = json.loads((path / "config.json").read_text())
    found, wanted = ModelConfig.from_hf(*read_model_dir(path)), {**config, "quantization_config": expected}
    assert found.weight_kinds == ModelConfig.from_hf(wanted).weight_kinds
    assert found.weight_kinds.kind is not None
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    assert ModelConfig.from_hf(*read_model_dir(path)).weight_kinds.kind == WeightKind("float8_e4m3fn")


@pytest.mark.parametrize("name", QUANT_FILES)
@pytest.mark.parametrize(
    "content",
    [
        {"per_channel": True, "reduce_range": True, "per_model_config": {"model": {"op_types": ["MatMul"]}}},
        {"quant_method": ["gptq"], "bits": 4},
        {"group_size": 32, "quantization": "none"},
        ["gptq"],
        None,
    ],
    ids=["of transformers.js", "a list in it", "other keys", "a list", "null"],
)
def test_files_of_other_tools_with_these_names(name: str, content: Any, tmp_path: Path) -> None:
    """transformers.js writes quantize_config.json, of its ONNX files, beside the weights of a plain model."""
    path = make_checkpoint(tmp_path, "qwen2")
    write_json(path / name, content)
    config, _ = read_model_dir(path)
    assert "quantization_config" not in config
    assert ModelConfig.from_hf(config).weight_kinds.kind is None


def test_a_file_whose_method_is_another_one_is_refused_by_name(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen2")
    write_json(path / "quantize_config.json", {"quant_method": "eetq", "bits": 8, "group_size": -1})
    with pytest.raises(ConfigError, match=r"quant_method: 'eetq' is not supported"):
        ModelConfig.from_hf(*read_model_dir(path))


def test_modelopts_own_file_and_scales_of_a_cache(tmp_path: Path) -> None:
    """An older checkpoint's quantization_config is in a file beside config.json."""
    path = checkpoint(tmp_path, "modelopt")
    tensors = stored.read_all(path / stored.FILE)
    names = [f"model.layers.{layer}.self_attn.{x}_proj.{x}_scale" for layer in range(2) for x in "kv"]
    scales = {name: np.full((), 0.5, np.float32) for name in names}
    write_safetensors(path / stored.FILE, tensors | scales)
    config = json.loads((path / "config.json").read_text())
    quantization = config.pop("quantization_config")
    (path / "config.json").write_text(json.dumps(config))
    own = {"quant_algo": "FP8", "exclude_modules": quantization["ignore"]}
    (path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": own}))
    _, model = load(path)
    found = numbers(model)
    assert [float(found.pop(f"layers.{n}.attention.{x}_scale")[0]) for n in range(2) for x in ("key", "value")] == [
        0.5
    ] * 4
    assert_equal(found, numbers(load(path / "wide")[1]))
