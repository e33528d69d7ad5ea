"""What the log says of weights that a device's kernels refuse, with bytes."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from palladio.model.loading.load_model import widenings
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from tests.model.driver import load
from tests.model.format_cases import checkpoint, stacked_checkpoint

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


def test_channels_are_never_widened_and_experts_where_no_kernel_takes_them(tmp_path: Path) -> None:
    _, model = load(checkpoint(tmp_path / "channels", "ct float8"))
    assert widenings(model, jnp.bfloat16) == []
    path = stacked_checkpoint(tmp_path / "experts", "mxfp4")
    _, model = load(path, kernels=Kernels(target=Target("gpu", "9.0")))
    assert widenings(model, jnp.bfloat16) == []
    _, model = load(path)
    (line,) = widenings(model, jnp.bfloat16)
    assert line.startswith("12 matrices (fp4 W4A16, a scale per 32 inputs) are widened in each product")
