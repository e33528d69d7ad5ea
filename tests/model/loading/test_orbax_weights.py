"""Converted checkpoints: the weights of the safetensors, on any mesh; damaged and unfinished ones are refused."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.errors import CheckpointError
from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import DType, ModelConfig, read_model_dir
from palladio.model.functional import flatten_model
from palladio.model.loading import orbax_weights
from palladio.model.loading.load_model import load_model
from palladio.model.loading.manifest import Manifest
from palladio.model.weights.kinds import WeightKind, WeightKinds
from tests.many_devices import call_with_devices
from tests.tiny_model import make_checkpoint


def convert(source: Path, out: Path, dtype: DType = "float32") -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    config = ModelConfig.from_hf(*read_model_dir(source))
    orbax_weights.convert(source, out, config, dtype, lambda *step: steps.append(step))
    return steps


def weights(path: Path, num_devices: int = 1, load_format: str = "auto", dtype: jnp.dtype = jnp.float32) -> list:
    config = ModelConfig.from_hf(*read_model_dir(path))
    model = load_model(path, config, dtype=dtype, mesh=make_mesh(num_devices), load_format=load_format)
    return list(flatten_model(model)[1])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("source"), "qwen2")


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted")
    assert convert(source, out)[-1] == (5, 5)  # embedding, two layers, norm, and the head that is not tied
    return out


def test_the_same_weights(source: Path, converted: Path) -> None:
    for wanted, found in zip(weights(source), weights(converted), strict=True):
        np.testing.assert_array_equal(wanted, found)
    assert not list(converted.glob("*.safetensors*"))
    assert json.loads((converted / "config.json").read_text()) == json.loads((source / "config.json").read_text())


def test_another_dtype_than_it_was_written_in_is_an_error_and_no_cast(converted: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"was converted with --dtype float32: .* bfloat16 is asked for\. Use --d"
    ):
        weights(converted, dtype=jnp.bfloat16)


def compare_on_four_devices(source: str, converted: str) -> list[list[int]]:
    pairs = zip(weights(Path(source), 4), weights(Path(converted), 4), strict=True)
    shapes = []
    for wanted, found in pairs:
        np.testing.assert_array_equal(wanted, found)
        assert found.sharding == wanted.sharding
        shapes.append(list(found.addressable_shards[0].data.shape))
    return shapes


def test_four_devices_with_heads_that_do_not_divide(source: Path, converted: Path) -> None:
    shapes = call_with_devices(__name__, "compare_on_four_devices", str(source), str(converted))
    assert [48, 1, 4, 8] in shapes  # one of four places for two kv heads: two queries, key and value


def test_a_conversion_that_was_cut_short_goes_on(source: Path, converted: Path, tmp_path: Path, monkeypatch) -> None:
    save, saved = orbax_weights._save, []

    def save_two(target: Path, arrays: dict, axes: dict) -> None:
        if len(saved) == 2:
            raise OSError("no space left on device")
        saved.append(target.name)
        save(target, arrays, axes)

    monkeypatch.setattr(orbax_weights, "_save", save_two)
    with pytest.raises(OSError, match="no space"):
        convert(source, tmp_path)
    with pytest.raises(CheckpointError, match=r"the conversion did not finish.*`palladio convert` again"):
        weights(tmp_path)
    monkeypatch.setattr(orbax_weights, "_save", lambda target, *args: saved.append(target.name) or save(target, *args))
    convert(source, tmp_path)
    assert len(saved) == len(set(saved)) == 5  # none twice
    for wanted, found in zip(weights(converted), weights(tmp_path), strict=True):
        np.testing.assert_array_equal(wanted, found)


@pytest.mark.parametrize("is_finished", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_directory_of_another_dtype_or_quantization_is_not_gone_on_with(
    source: Path, tmp_path: Path, is_finished: bool, monkeypatch
) -> None:
    if not is_finished:
        monkeypatch.setattr(Manifest, "write", lambda self, path: None)  # cut short at the end
    convert(source, tmp_path)
    with pytest.raises(CheckpointError, match="holds a conversion with another dtype: give an empty directory"):
        convert(source, tmp_path, "bfloat16")
    config = ModelConfig.from_hf(*read_model_dir(source))
    config = dataclasses.replace(config, weight_kinds=WeightKinds(WeightKind("int8")))
    with pytest.raises(CheckpointError, match="holds a conversion with another quantization"):
        orbax_weights.convert(source, tmp_path, config, "float32", lambda *_: None)
    monkeypatch.undo()
    convert(source, tmp_path)
    weights(tmp_path)


@pytest.mark.parametrize(
    "damage", ["changed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cut", "gone"))]
)
def test_damage_is_found_before_anything_is_served(source: Path, tmp_path: Path, damage: str) -> None:
    convert(source, tmp_path)
    largest = max((tmp_path / "parameters").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(largest.read_bytes())
    if damage == "gone":
        largest.unlink()
    elif damage == "cut":
        largest.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    words = {"cut": "truncated or was replaced", "changed": "is corrupt", "gone": "cannot read"}[damage]
    with pytest.raises(CheckpointError, match=words) as error:
        weights(tmp_path)
    assert str(largest) in str(error.value)


def test_another_model_and_another_format(converted: Path, source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(CheckpointError, match=r"keys in checkpoint .*mlp"):
        weights(tmp_path)
    manifest = json.loads((tmp_path / "palladio_checkpoint.json").read_text())
    (tmp_path / "palladio_checkpoint.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(CheckpointError, match="has format 99; this version reads 5"):
        weights(tmp_path)
    with pytest.raises(CheckpointError, match="the conversion did not finish"):
        weights(source, load_format="orbax")


def test_a_parameter_that_was_never_written_is_named(source: Path, tmp_path: Path, monkeypatch) -> None:
    """The manifest promises it; what is on the disk is whole, and does not have it."""
    save = orbax_weights._save

    def save_less(target: Path, arrays: dict, axes: dict) -> None:
        save(target, {name: array for name, array in arrays.items() if name != "layers.1.mlp.down.kernel.values"}, axes)

    monkeypatch.setattr(orbax_weights, "_save", save_less)
    convert(source, tmp_path)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down\.kernel"):
        weights(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "olmo2", "cohere", "phi3", "starcoder2", "deepseek_v3"])
def test_families_on_one_device_and_on_four(family: str, tmp_path: Path) -> None:
    """Scales of each head, fused tensors, biases of norms."""
    source, out = make_checkpoint(tmp_path / "source", family), tmp_path / "out"
    convert(source, out)
    for wanted, found in zip(weights(source), weights(out), strict=True):
        np.testing.assert_array_equal(wanted, found)
    call_with_devices(__name__, "compare_on_four_devices", str(source), str(out))


def test_chunks_are_neither_rows_nor_whole_matrices(tmp_path):
    """Cut along an axis into single places, a matrix of int8 had a file's page for each row, and half of them twice."""
    names = {"table": ((8192, 512), ("vocab", None)), "scales": ((8192,), ("vocab",))}
    arrays = {
        name: jnp.asarray(np.random.default_rng(0).integers(-127, 128, shape), "int8")
        for name, (shape, _) in names.items()
    }
    orbax_weights._save(tmp_path / "saved", arrays, {name: axes for name, (_, axes) in names.items()})
    size = sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*") if file.is_file())
    assert size < 1.05 * sum(array.size for array in arrays.values())


@pytest.mark.parametrize(
    ("shape", "axes", "chunk"),
    [
        ((128_256, 4096), ("vocab", None), (32_833_536, ())),  # the longest: cut by itself
        ((4096, 8, 6, 128), (None, "kv_heads", None, None), (2**26, (1,))),
        ((128, 2048, 768), (None, None, "expert_ffw"), (2**26, (2,))),  # else the inputs would be cut
        ((4096,), (None,), (2**20, ())),
        ((28_672,), ("ffw",), (2**20, ())),
        ((), (), (2**20, ())),
    ],
)
def test_what_devices_share_is_cut(shape, axes, chunk):
    assert orbax_weights._chunks(shape, 1, axes) == chunk
