"""What XLA is told: of steps of many tokens on the TPUs where it was measured, and nowhere else."""

import pytest

from palladio.pallas_kernels.target import Target
from palladio.runtime.execution.programs.program import LEAST_TOKENS, compiler_options


@pytest.mark.parametrize("kind", ["v5e", "v5p", "v6e"])
def test_large_steps_of_a_tpu_have_larger_tiles(kind):
    (name,) = compiler_options(Target("tpu", kind), LEAST_TOKENS)
    assert name == "xla_tpu_scoped_vmem_limit_kib"


@pytest.mark.parametrize("num_tokens", [0, LEAST_TOKENS - 1])
def test_small_steps_are_limited_by_reading_weights(num_tokens):
    assert compiler_options(Target("tpu", "v6e"), num_tokens) == {}


@pytest.mark.parametrize("target", [Target("cpu"), Target("gpu", "9.0"), Target("tpu", "7x"), Target("tpu", "")])
def test_other_devices_have_xlas_defaults(target):
    assert compiler_options(target, 8192) == {}
