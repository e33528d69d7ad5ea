"""Kernels that are right pass their trials: those for TPUs and GPUs, interpreted, and our C++ for CPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.core.plan.engine_plan import ChosenKernels
from palladio.runtime.core.start.tried_plan import model_on_device
from palladio.runtime.core.trials.kernel_trials import KernelTrials, TrialPlace
from palladio.runtime.interface.config.config import EngineConfig
from tests.many_devices import call_with_devices
from tests.runtime.tiny_engine import FLAGS
from tests.tiny_model import tiny_config

SIZES: dict[str, Any] = {"page_size": 32, "context_length": 128, "max_running_requests": 2, "compilation_cache_dir": ""}
ATTENTION, UPDATE, LATENT = "ragged_paged_attention", "kv_cache_update", "latent_attention"
GROUPED = "grouped_matmul"
ROWS: list[tuple[str, str, dict[str, Any], set[str]]] = [
    ("tpu", "qwen2_windowed", {"kv_cache_dtype": "int8"}, {ATTENTION, UPDATE}),
    ("gpu_triton", "qwen2_windowed", {"kv_cache_dtype": "int8"}, {ATTENTION}),
    ("tpu", "qwen2", {}, {ATTENTION, UPDATE}),
    ("gpu_triton", "qwen2", {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"}, {ATTENTION}),
    ("tpu", "gpt_oss", {"dtype": "bfloat16"}, {ATTENTION, UPDATE}),
    ("gpu_triton", "gpt_oss", {}, {ATTENTION, GROUPED}),
    ("tpu", "gemma2", {"kv_cache_dtype": "fp8_e4m3"}, {ATTENTION, UPDATE}),
    ("gpu_triton", "gemma2", {}, {ATTENTION}),
    ("tpu", "deepseek_v3", {"dtype": "bfloat16"}, {LATENT, UPDATE}),
    ("gpu_triton", "deepseek_v3", {}, {LATENT, GROUPED}),
    ("tpu", "qwen3_next", {"dtype": "bfloat16"}, {ATTENTION, UPDATE}),
    ("gpu_triton", "qwen3_moe", {"quantization": "int4"}, {ATTENTION, GROUPED}),
    ("gpu_triton", "qwen2", {"quantization": "int4", "dtype": "bfloat16"}, {ATTENTION, GROUPED}),
    ("cpu_native", "qwen2", {}, {ATTENTION, UPDATE}),
]


def outcomes(folder: str, flags: dict[str, Any]) -> dict[str, str]:
    """Try the kernels of a model; return op → outcome, with what is wrong."""
    chosen = ChosenKernels.of(EngineConfig.from_flags({"model_path": folder, **FLAGS, **SIZES, **flags}))
    place = TrialPlace(device=chosen.device, target=chosen.kernels.target, folder=None, on_hung=pytest.fail)
    trials = KernelTrials(model_on_device(chosen).kernels_in_use(), place)
    trials.run()
    assert set(trials.verdicts) == set(trials.names), "one could not be tried"
    return {name.partition("/")[0]: f"{one.outcome} {one.text}" for name, one in trials.verdicts.items()}


def heads_of_trials(folder: str, flags: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of query heads and of kv heads in the trial of attention."""
    chosen = ChosenKernels.of(EngineConfig.from_flags({"model_path": folder, **FLAGS, **SIZES, **flags}))
    q, pages, *_ = model_on_device(chosen).kernels_in_use()[0].cases[0].abstract()
    return q.shape[1], pages.shape[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "family", "flags", "ops"), [pytest.param(*row, id=f"{row[0]} {row[1]} {row[2]}") for row in ROWS]
)
def test_a_right_kernel_passes(backend: str, family: str, flags: dict[str, Any], ops: set[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(family)))
    found = outcomes(str(tmp_path), {**flags, "attention_backend": backend, "skip_tokenizer_init": True})
    assert {op: one[:2] for op, one in found.items()} == dict.fromkeys(ops, "ok"), found


def test_devices_that_share_heads_try_their_own_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("qwen2")))
    flags = {"attention_backend": "tpu", "skip_tokenizer_init": True}
    assert heads_of_trials(str(tmp_path), flags) == (6, 2)
    assert call_with_devices(__name__, "heads_of_trials", str(tmp_path), {**flags, "tp_size": 2}) == (3, 1)
