"""What a platform's defaults make of the flags."""

from typing import Any

import pytest

from palladio.default_model import default_model_path
from palladio.model.config import ModelConfig, read_model_dir
from palladio.runtime.core.sizing import EngineLimits, PlatformDefaults
from palladio.runtime.interface.config import EngineConfig

MODEL = default_model_path()


def decode_sizes(platform: str, **flags: Any) -> tuple[int, ...]:
    config, defaults = EngineConfig.from_flags({"model_path": str(MODEL), **flags}), PlatformDefaults.of(platform)
    limits = EngineLimits.of(config, ModelConfig.from_hf(*read_model_dir(MODEL, {})), defaults)
    return limits.buckets(config, defaults).decode


@pytest.mark.parametrize(
    ("platform", "flags", "sizes"),
    [
        ("gpu", {"max_running_requests": 16}, (2, 4, 8, 16)),
        ("tpu", {"max_running_requests": 16}, (1, 2, 4, 8, 16)),
        ("cpu", {"max_running_requests": 16}, (1, 2, 4, 8, 16)),
        ("gpu", {"max_running_requests": 1}, (1,)),
        ("gpu", {"max_running_requests": 16, "cuda_graph_bs": (1, 4)}, (1, 4, 16)),
        ("gpu", {"max_running_requests": 16, "cuda_graph_max_bs": 1}, (1, 16)),
        ("gpu", {"max_running_requests": 16, "deterministic": True}, ()),
    ],
    ids=str,
)
def test_the_smallest_decode_step_of_a_gpu_has_two_rows_unless_flags_say_otherwise(
    platform: str, flags: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert decode_sizes(platform, **flags) == sizes
