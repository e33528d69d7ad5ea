"""What the log says of weights that a device's kernels refuse, with bytes."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from palladio.model.loading.load_model import unrounded, weight_bytes, widenings
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from tests.model.driver import load
from tests.model.format_cases import checkpoint, stacked_checkpoint
from tests.tiny_model import make_checkpoint

INT4 = "int4 W4A16, a scale per 16 inputs and zero points"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (Target("gpu", "9.0"), ""),
        (Target("cpu"), "there is no kernel for CPU"),
        (Target("tpu", "v6e"), "are smaller than a block of 128"),
        (Target("gpu", "7.5"), "compute capability"),
    ],
)
def test_groups(target: Target, told: str, tmp_path: Path) -> None:
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1}  # of 16
    path = checkpoint(tmp_path, "awq", intermediate_size=96, **heads)
    _, model = load(path, kernels=Kernels(target=target))
    lines = widenings(model, jnp.bfloat16)
    assert (lines == []) == (told == "")
    if told:
        assert told in " ".join(lines)
        assert sum(int(line.split()[0]) for line in lines) == 8  # four of each layer
        assert all(INT4 in line and " GB of bfloat16 at a time on a device" in line for line in lines)


@pytest.mark.parametrize(
    ("quantization", "dtype", "num_bytes"),
    [("fp8", jnp.float32, 4), ("fp8", jnp.bfloat16, 2), ("w8a8_fp8", jnp.bfloat16, 4), ("w8a8_int8", jnp.float32, 0)],
)
def test_channels_on_a_cpu(quantization: str, dtype: Any, num_bytes: int, tmp_path: Path) -> None:
    """What the log says is what XLA's product takes. A table that is only looked up is widened row by row."""
    path = make_checkpoint(tmp_path, "qwen2", num_hidden_layers=1, intermediate_size=4096)
    _, model = load(path, quantization=quantization)
    gate_up = model.layers[0].mlp.gate_up.kernel

    def multiply(x: jax.Array, arrays: tuple[jax.Array, ...]) -> jax.Array:
        return gate_up.matmul(x, arrays=arrays)

    x = jax.ShapeDtypeStruct((8, gate_up.values.shape[0]), dtype)
    scratch = jax.jit(multiply).lower(x, gate_up.arrays()).compile().memory_analysis().temp_size_in_bytes
    size = gate_up.values.size
    assert scratch // size == num_bytes
    lines = widenings(model, dtype)
    if not num_bytes:
        assert lines == []
        return
    (line,) = lines
    name = "float32" if num_bytes == 4 else "bfloat16"
    assert line.startswith(f"5 matrices ({gate_up.kind.name}) are widened in each product: ")  # with the head
    assert f" {num_bytes * size / 1e9:.3f} GB of {name} at a time" in line
    assert line.endswith("since XLA has no such product for CPU")


@pytest.mark.parametrize(
    ("target", "int8", "float8"),
    [
        (Target("tpu", "v4"), False, False),
        (Target("tpu", "7x"), False, True),
        (Target("gpu", "8.0"), True, False),
        (Target("gpu", "8.9"), True, True),
        *(  # test_the_table_of_devices_that_multiply_8_bits has them
            pytest.param(Target(*chip), *able, marks=pytest.mark.slow)
            for *chip, able in (
                ("tpu", "v5e", (True, False)),
                ("tpu", "v5p", (True, False)),
                ("tpu", "v6e", (True, False)),
                ("gpu", "12.0", (True, True)),
            )
        ),
    ],
)
def test_activations_keep_their_bits_where_no_unit_multiplies_8(
    target: Target, int8: bool, float8: bool, tmp_path: Path
) -> None:
    """Once they were rounded, and both sides widened again. The output head counts, a table that is looked up, too."""
    path = make_checkpoint(tmp_path, "qwen2", num_hidden_layers=1)
    for name, word, is_able in (("int8", "int8", int8), ("fp8", "float8", float8)):
        _, model = load(path, quantization=f"w8a8_{name}", kernels=Kernels(target=target))
        bits = 8 if is_able else 16
        assert f"{name} W8A{bits}, a scale per channel" in weight_bytes(model)
        assert model.layers[0].mlp.down.kernel.kind.activation_bits == bits
        told = f"since {target.platform.upper()} {target.kind} has no unit for products of {word}"
        lines = [f"6 matrices ({name} W8A16, a scale per channel) do not have activations rounded to 8 bits, {told}"]
        assert unrounded(model) == ([] if is_able else lines)
        _, model = load(path, quantization=name, kernels=Kernels(target=target))
        assert unrounded(model) == []


def test_channels_elsewhere_are_never_widened_and_experts_where_no_kernel_takes_them(tmp_path: Path) -> None:
    for target in (Target("tpu", "v5e"), Target("gpu", "9.0")):
        _, model = load(checkpoint(tmp_path / target.platform, "ct float8"), kernels=Kernels(target=target))
        assert widenings(model, jnp.bfloat16) == []
    path = stacked_checkpoint(tmp_path / "experts", "mxfp4")
    _, model = load(path, kernels=Kernels(target=Target("gpu", "9.0")))
    assert widenings(model, jnp.bfloat16) == []
    _, model = load(path)
    (line,) = widenings(model, jnp.bfloat16)
    assert line.startswith("12 matrices (fp4 W4A16, a scale per 32 inputs) are widened in each product")


_DEVICES = {
    "TPU v4": [("tpu", "v4")],
    "TPU v5e, v5p, v6e": [("tpu", "v5e"), ("tpu", "v5p"), ("tpu", "v6e")],
    "TPU 7x": [("tpu", "7x")],
    "NVIDIA T4, A100 (Turing, Ampere)": [("gpu", "7.5"), ("gpu", "8.0")],
    "NVIDIA L4, L40S, H100, H200, B200 (Ada, Hopper, Blackwell)": [("gpu", "8.9"), ("gpu", "9.0"), ("gpu", "10.0")],
    "CPU": [("cpu", "avx2")],
}


def test_the_table_of_devices_that_multiply_8_bits() -> None:
    page = (Path(__file__).parents[3] / "docs" / "quantization.md").read_text(encoding="utf-8")
    table = page.split("| device | `w8a8_int8` | `w8a8_fp8` |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = {row[0]: row[1:] for row in (line.strip("| ").split(" | ") for line in table.splitlines())}
    assert rows.keys() == _DEVICES.keys()
    for device, targets in _DEVICES.items():
        for platform, kind in targets:
            does = [Target(platform, kind).multiplies(storage) for storage in ("int8", "float8_e4m3fn")]
            assert rows[device] == ["W8A8" if one else "W8A16" for one in does], kind
