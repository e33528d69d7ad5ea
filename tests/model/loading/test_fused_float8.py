"""FP8 checkpoints whose fused tensors have a scale for each of their parts."""

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.model.base.errors import CheckpointError
from palladio.model.weights.kinds import WeightKind
from tests.model.driver import load, numbers
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, write_json

FUSED_ROWS = {"qkv_proj": (48, 16, 16), "gate_up_proj": (80, 80)}  # of the tiny Phi-3


def fused_float8(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    """A checkpoint in float8 whose fused tensors have a scale for each part. Returns: the numbers of its plain copy."""
    make_checkpoint(path, "phi3")
    file, config = path / "model.safetensors", json.loads((path / "config.json").read_text(encoding="utf-8"))
    stored = load_file(file)
    widened = dict(stored)
    names = [name for name in stored if name.endswith(tuple(f"{module}.weight" for module in FUSED_ROWS))]
    assert len(names) == 4
    for number, name in enumerate(names):
        rows = FUSED_ROWS[name.split(".")[-2]]
        scales = np.arange(1, len(rows) + 1, dtype=np.float32) * (0.5 + number / 8)
        stored[name] = (stored[name] / 2).astype(ml_dtypes.float8_e4m3fn)
        stored[f"{name}_scale"] = change(scales)
        parts = np.split(stored[name].astype(np.float32), np.cumsum(rows)[:-1])
        widened[name] = np.concatenate([part * scale for part, scale in zip(parts, scales, strict=True)])
    save_file(widened, file)
    expected = numbers(load(path)[1])
    write_safetensors(file, stored)
    write_json(path / "config.json", config | {"quantization_config": {"quant_method": "fp8"}})
    return expected


def test_float8_with_a_scale_for_each_part_of_a_fused_tensor(tmp_path: Path) -> None:
    expected = fused_float8(tmp_path, lambda scales: scales)
    config, model = load(tmp_path)
    assert config.weight_kinds.kind == WeightKind("float8_e4m3fn")
    found = numbers(model)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def test_a_fused_tensor_with_too_many_scales_is_refused(tmp_path: Path) -> None:
    fused_float8(tmp_path, lambda scales: np.append(scales, np.float32(1)))
    expected = (
        r"_proj\.weight_scale .* has shape \(\d,\); .* needs \(\), or \(\d,\) with a scale for each part: .*again$"
    )
    with pytest.raises(CheckpointError, match=expected):
        load(tmp_path)
