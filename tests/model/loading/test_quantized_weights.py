"""Quantized checkpoints and quantizing while loading: the numbers are the oracle's, on any mesh and in any format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio import Engine
from palladio.model.base.errors import CheckpointError
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model
from palladio.model.loading import orbax_weights
from palladio.model.loading.layout.parameters import Parameters
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import weight_bytes
from palladio.model.loading.manifest import MANIFEST
from palladio.model.loading.stored_config import agree_with_weights
from palladio.model.weights.kinds import WeightKinds
from tests.many_devices import call_with_devices
from tests.model.driver import Driver, load, numbers
from tests.model.make_goldens import prompts
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, write_json

FILE = "model.safetensors"
PROJECTIONS = ("proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")
Tensors = dict[str, Any]


def is_matrix(name: str) -> bool:
    """Of a checkpoint: what --quantization int8 quantizes."""
    return name.endswith(("proj.weight", "embed_tokens.weight", "lm_head.weight"))


def int8_oracle(stored: Tensors) -> Tensors:
    """The numbers that int8 stands for."""
    wide = dict(stored)
    for name, matrix in stored.items():
        if is_matrix(name):
            scale = np.abs(matrix).max(1, keepdims=True) / np.float32(127)
            wide[name] = np.rint(matrix / scale) * scale
    return wide


def to_fp8(path: Path, form: str, keep: Callable[[str], bool] = lambda name: False) -> None:
    """Rewrites a checkpoint: every projection in float8, but for those to keep; and its dequantized copy in
    `path`/wide.

    Args:
        form: tensor, row or block (of 32 × 16, stated as MiniMax-M2 does).
    """
    stored = load_file(path / FILE)
    wide, rng = dict(stored), np.random.default_rng(3)
    for name in [name for name in stored if name.endswith(PROJECTIONS) and not keep(name)]:
        matrix = stored[name]
        rows, columns = {"tensor": matrix.shape, "row": (1, matrix.shape[1]), "block": (32, 16)}[form]
        grid = (-(-matrix.shape[0] // rows), -(-matrix.shape[1] // columns))
        scale = rng.uniform(0.5, 2.0, grid).astype(np.float32)
        full = np.repeat(np.repeat(scale, rows, 0), columns, 1)[: matrix.shape[0], : matrix.shape[1]]
        stored[name] = (matrix / full).astype(ml_dtypes.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale.reshape(()) if form == "tensor" else scale
        wide[name] = stored[name].astype(np.float32) * full
    write_safetensors(path / FILE, stored)
    config = json.loads((path / "config.json").read_text())
    (path / "wide").mkdir()
    write_json(path / "wide" / "config.json", config)
    save_file(wide, path / "wide" / FILE)
    quantization = {"quant_method": "fp8", "weight_block_size": None}
    if form == "block":
        plain = ["gate", "e_score_correction_bias", "lm_head"]
        quantization |= {"weight_block_size": [32, 16], "fmt": "float8_e4m3fn", "modules_to_not_convert": plain}
    write_json(path / "config.json", config | {"quantization_config": quantization})


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def assert_as_transformers(path: Path, loaded: tuple[Any, Any]) -> None:
    """Args: path: of the dequantized checkpoint."""
    hf_oracle = pytest.importorskip("tests.model.hf_oracle")
    expected, _ = hf_oracle.run(path, prompts()[:2], 1)
    found = Driver(*loaded, 2).step(prompts()[:2])
    for row, wanted in enumerate(expected):
        np.testing.assert_allclose(found[row], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["qwen2_tied", pytest.param("qwen2", marks=pytest.mark.slow), "qwen3_moe"])
def test_int8_is_made_while_loading(family: str, tmp_path: Path) -> None:
    """A tied table is both looked up and multiplied with."""
    path, wide = make_checkpoint(tmp_path / "source", family), make_checkpoint(tmp_path / "wide", family)
    save_file(int8_oracle(load_file(path / FILE)), wide / FILE)
    config, model = load(path, quantization="int8")
    assert_equal(numbers(model), numbers(load(wide)[1]))
    assert_as_transformers(wide, (config, model))
    sizes = weight_bytes(model)
    assert next(iter(sizes)) == "int8 W8A16, a scale per channel"
    dense = sum(array.nbytes for array in flatten_model(load(path)[1])[1])
    assert sum(sizes.values()) < 0.35 * dense  # of float32: a quarter, and scales


def groups_oracle(stored: Tensors, group: int) -> Tensors:
    """The numbers that int4 stands for: 4 bits in groups of inputs, tables in 8 bits."""
    wide = int8_oracle(stored)
    for name, matrix in stored.items():
        if name.endswith("proj.weight"):
            width = min(group, matrix.shape[1])
            assert matrix.shape[1] <= group or not matrix.shape[1] % group
            parts = matrix.reshape(len(matrix), -1, width)
            scale = np.abs(parts).max(2, keepdims=True) / np.float32(7)
            wide[name] = (np.rint(parts / scale) * scale).reshape(matrix.shape)
    return wide


def fp8_oracle(stored: Tensors) -> Tensors:
    """The numbers that fp8 stands for."""
    wide = dict(stored)
    for name, matrix in stored.items():
        if is_matrix(name):
            scale = np.abs(matrix).max(1, keepdims=True) / np.float32(448)
            wide[name] = (matrix / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    return wide


@pytest.mark.parametrize(
    ("quantization", "kind"),
    [
        ("int4", "int4 W4A16, a scale per 128 inputs"),
        ("fp8", "fp8 W8A16, a scale per channel"),
        ("w8a8_int8", "int8 W8A8, a scale per channel"),
    ],
)
def test_other_kinds_are_made_while_loading(quantization: str, kind: str, tmp_path: Path) -> None:
    """Heads are 16 inputs, so the groups of the projection back are no larger."""
    path, wide = (make_checkpoint(tmp_path / name, "qwen3_moe", head_dim=16) for name in ("source", "wide"))
    stored = load_file(path / FILE)
    made = {"int4": lambda: groups_oracle(stored, 128), "fp8": lambda: fp8_oracle(stored)}
    of_heads = groups_oracle({name: array for name, array in stored.items() if "o_proj" in name}, 16)
    expected = made.get(quantization, lambda: int8_oracle(stored))()
    save_file(expected | (of_heads if quantization == "int4" else {}), wide / FILE)
    _, model = load(path, quantization=quantization)
    sizes = weight_bytes(model)
    assert kind in sizes
    assert ("int8 W8A16, a scale per channel" in sizes) == (quantization != "fp8")  # tables or experts
    assert_equal(numbers(model), numbers(load(wide)[1]))


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *(("qwen2", "tensor"), ("qwen3_moe", "block")),
        *(
            pytest.param(*other, marks=pytest.mark.slow)
            for other in (("glm4", "row"), ("deepseek_v3", "block"), ("minimax_m2", "block"))
        ),
    ],
)
def test_float8_stays_float8(family: str, form: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, family)
    to_fp8(path, form)
    loaded = load(path)
    kinds = weight_bytes(loaded[1])
    assert any(kind.startswith("fp8 W8A16") for kind in kinds), kinds
    assert_equal(numbers(loaded[1]), numbers(load(path / "wide")[1]))
    assert_as_transformers(path / "wide", loaded)


def test_modules_that_are_stored_plainly_stay_so(tmp_path: Path) -> None:
    """By the tensors, whatever config.json says; a projection of which a part is plain is dense."""
    path = make_checkpoint(tmp_path, "qwen2")
    to_fp8(path, "block", keep=lambda name: name.endswith("layers.1.mlp.down_proj.weight") or ".k_proj." in name)
    config, model = load(path)
    assert config.weight_kinds.dense == (
        "embedding.table",
        "layers.1.mlp.down.kernel",
        "layers.{layer}.attention.qkv.kernel",
        "lm_head.table",
    )
    assert_equal(numbers(model), numbers(load(path / "wide")[1]))
    stated = json.loads((path / "config.json").read_text())
    stated["quantization_config"]["modules_to_not_convert"] = ["lm_head", "model.layers.1.mlp.down_proj", "k_proj"]
    assert ModelConfig.from_hf(stated).weight_kinds == config.weight_kinds


def wide_logits(path: str, sizes: list[int], quantization: str | None) -> list[list[list[float]]]:
    """Of a prompt, on each number of devices."""
    found = []
    for size in sizes:
        mesh = make_mesh(size)
        config, model = load(Path(path), mesh=mesh, quantization=quantization)
        driver = Driver(TensorLayout.of(config, size).config, model, 1, mesh=mesh)
        found.append(driver.step(prompts()[:1])[0][:, : config.vocab_size].tolist())
    return found


@pytest.mark.parametrize(
    ("family", "quantization", "columns"),
    [
        pytest.param("qwen2", "fp8", 192, marks=pytest.mark.slow, id="768 over 4, of blocks a quarter as large"),
        pytest.param("qwen2_tied", "fp8", 360, id="2880 over 8, of blocks an eighth as large"),
        pytest.param("qwen3_moe", "fp8", 80, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", "fp8", 80, marks=pytest.mark.slow),
        pytest.param("qwen2_tied", "int8", 90, marks=pytest.mark.slow, id="a tied table, split over devices"),
    ],
)
def test_devices_that_cut_groups_in_two(family: str, quantization: str, columns: int, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, family, intermediate_size=columns, num_hidden_layers=1)
    if quantization == "fp8":
        to_fp8(path, "block")
    one, *others = call_with_devices(__name__, "wide_logits", str(path), [1, 4, 8], quantization)
    assert np.std(one) > 0.1
    for other in others:
        np.testing.assert_allclose(other, one, atol=2e-5, rtol=0)


def tokens_of(path: str, sizes: list[tuple[int, int]]) -> list[list[list[int]]]:
    """Of two prompts, with each number of data-parallel ranks and of devices a rank."""
    limits: Any = {"max_total_tokens": 512, "max_running_requests": 2, "chunked_prefill_size": 32, "compile": "lazy"}
    found = []
    for dp_size, tp_size in sizes:
        flags: Any = {"skip_tokenizer_init": True, "dtype": "float32", "dp_size": dp_size, "tp_size": tp_size}
        with Engine(model_path=path, **limits, **flags) as engine:
            params = {"temperature": 0, "max_new_tokens": 8}
            results: Any = engine.generate(input_ids=[[5, 6, 7, 8], [9, 10, 11]], sampling_params=params)
            found.append([result["output_ids"] for result in results])
    return found


@pytest.mark.slow  # above are devices without ranks, and tests/runtime/core has ranks
def test_kernels_of_groups_run_in_data_parallel_ranks(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen2", intermediate_size=192)
    to_fp8(path, "block")
    one, four = call_with_devices(__name__, "tokens_of", str(path), [(1, 1), (2, 2)])
    assert one == four
    assert len({token for tokens in one for token in tokens}) > 8


def converted_numbers(source: str, out: str, size: int) -> None:
    """Those of a converted checkpoint are those of its source, laid out and split in the same way."""
    mesh = make_mesh(size)
    for wanted, found in zip(
        flatten_model(load(Path(source), mesh=mesh, quantization=None)[1])[1],
        flatten_model(load(Path(out), mesh=mesh)[1])[1],
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(wanted), np.asarray(found))
        assert (wanted.dtype, wanted.sharding) == (found.dtype, found.sharding)


def convert(source: Path, out: Path, quantization: str | None = None) -> None:
    config = agree_with_weights(source, ModelConfig.from_hf(*read_model_dir(source)), "auto", quantization)
    orbax_weights.convert(source, out, config, "float32", lambda *_: None)


def test_a_converted_checkpoint_keeps_its_bits(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", "qwen2", intermediate_size=192)
    to_fp8(source, "block")
    convert(source, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["parameters"]["layers.0.mlp.down.kernel.scales"] == {
        "shape": [12, 48],
        "dtype": "float32",
        "kind": "fp8 W8A16, a scale per 16 inputs",
        "axes": ["ffw", None],
    }
    for size in (1, 8):
        call_with_devices(__name__, "converted_numbers", str(source), str(tmp_path / "out"), size)


def test_a_converted_checkpoint_of_another_kind_is_an_error(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", "qwen2")
    convert(source, tmp_path / "int8", "int8")
    convert(source, tmp_path / "dense")
    assert_equal(numbers(load(tmp_path / "int8")[1]), numbers(load(source, quantization="int8")[1]))
    _, rounding = load(tmp_path / "int8", quantization="w8a8_int8")  # the same numbers, multiplied otherwise
    assert "int8 W8A8, a scale per channel" in weight_bytes(rounding)
    with pytest.raises(CheckpointError, match=r"^--quantization w8a8_fp8: .* are quantized to int8 W8A16, a scale per"):
        load(tmp_path / "int8", quantization="w8a8_fp8")
    with pytest.raises(CheckpointError, match=r"^--quantization int8: the weights in .* are not quantized; leave"):
        load(tmp_path / "dense", quantization="int8")
    config = ModelConfig.from_hf(*read_model_dir(source))
    for kinds, out in ((WeightKinds(), "int8"), (load(source, quantization="int8")[0].weight_kinds, "dense")):
        layout = TensorLayout.of(config.__class__(**vars(config) | {"weight_kinds": kinds}), 1)
        parameters = Parameters.of(layout, jnp.float32, make_mesh(1))
        with pytest.raises(CheckpointError, match="keys in checkpoint"):
            list(orbax_weights.restored_arrays(tmp_path / out, layout, parameters, make_mesh(1)))


def test_dummy_weights_are_random_numbers_quantized(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen3_moe")
    dense = numbers(load(path, load_format="dummy")[1])
    for name, wide in numbers(load(path, load_format="dummy", quantization="int8")[1]).items():
        error = np.abs(wide - dense[name]).max()
        assert error <= 0.004 * np.abs(dense[name]).max() + 1e-12, name
        assert np.std(wide) == pytest.approx(np.std(dense[name]), rel=0.02), name


def dummy_numbers(path: str, size: int) -> dict[str, float]:
    _, model = load(Path(path), load_format="dummy", mesh=make_mesh(size))
    return {name: float(np.abs(array).sum()) for name, array in numbers(model).items()}


@pytest.mark.slow  # one device is above
def test_dummy_weights_are_the_same_over_devices(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "llama3", intermediate_size=192)
    to_fp8(path, "block")
    one, four = (call_with_devices(__name__, "dummy_numbers", str(path), size) for size in (1, 4))
    assert one == pytest.approx(four)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scale_that_is_no_number_is_named(value: float, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen2")
    to_fp8(path, "tensor")
    stored = {**load_wide(path), "model.layers.1.mlp.up_proj.weight_scale_inv": np.float32(value).reshape(())}
    write_safetensors(path / FILE, stored)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight_scale_inv in .* not finite"):
        load(path)


def load_wide(path: Path) -> Tensors:
    """The float8 checkpoint's tensors once more, each scale being 1."""
    stored = load_file(path / "wide" / FILE)
    made: Tensors = {}
    for name, matrix in stored.items():
        is_projection = name.endswith("proj.weight")
        made[name] = matrix.astype(ml_dtypes.float8_e4m3fn) if is_projection else matrix
        if is_projection:
            made[f"{name}_scale_inv"] = np.ones((), np.float32)
    return made
