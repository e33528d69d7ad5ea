"""What a plan takes programs to need, against what compilers of TPUs and GPUs said (benchmarks/aot/workspace.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

from palladio.model.config.config import ModelConfig
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.compiled.workspace import ProgramMemory, workspace_of
from palladio.runtime.execution.programs.program import ProgramDesign, ProgramKey
from palladio.runtime.execution.programs.programs import declare_programs
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.planning.deployment import Deployment
from palladio.runtime.planning.hardware import find_slice

KEPT = json.loads(
    (Path(__file__).resolve().parents[3] / "benchmarks/results/aot-2026-11-22/workspace.json").read_text()
)
KINDS = {  # of the largest programs
    str(key): key
    for key in (
        ProgramKey("forward", 256, 8192),
        ProgramKey("forward", 256),
        ProgramKey("score", 0, 8192),
        ProgramKey("sample", 256, tier="full"),
    )
}
WITHOUT_LAYERS = tuple(KINDS)[2:]
Sizes = dict[str, dict[str, int]]


def deployment(topology: str, model: dict[str, Any], **flags: object) -> Deployment:
    place = find_slice(topology)
    config = EngineConfig.from_flags({"model_path": "m", "tp_size": place.num_devices, **flags})
    return Deployment.of(config, ModelConfig.from_hf(model), place)


def declared(one: Deployment) -> list[ProgramKey]:
    """The closed set."""
    built: ProgramCache[ProgramKey] = ProgramCache(CompileMonitor())
    state = one.shape.abstract(one.weights, 2)
    StepPrograms(one.static_model, state, one.shape, one.buckets, built)
    return built.declared


def measured() -> list[tuple[str, str, int, Sizes]]:
    """Topology, model, layers and the largest programs. Sampling and scoring have no layers: where they were left out,
    those of a model with the same vocabulary stand for them."""
    rows, found = KEPT["measured"], []
    for row in rows:
        vocab = KEPT["models"][row["model"]]["vocab_size"]
        others = [
            other["programs"]
            for other in rows
            if other["topology"] == row["topology"] and KEPT["models"][other["model"]]["vocab_size"] == vocab
        ]
        shared = {key: sizes for programs in others for key, sizes in programs.items() if key in WITHOUT_LAYERS}
        if {"forward[bs=256]", "forward[bs=256,tok=8192]"} <= row["programs"].keys():
            found.append((row["topology"], row["model"], row["layers"], shared | row["programs"]))
    return found


@pytest.mark.parametrize(
    ("topology", "model", "layers", "programs"),
    [pytest.param(*row, marks=() if number % 3 == 0 else pytest.mark.slow) for number, row in enumerate(measured())],
)
def test_no_estimate_is_below_what_a_compiler_said(topology: str, model: str, layers: int, programs: Sizes) -> None:
    one = deployment(topology, KEPT["models"][model] | {"num_hidden_layers": layers}, chunked_prefill_size=8192)
    known = {
        key: ProgramMemory(programs[name]["scratch"], programs[name]["results"], programs[name]["code"])
        for name, key in KINDS.items()
        if name in programs
    }
    assert len(known) == len(KINDS) or one.place.chip.platform == "gpu"  # whose code is not counted
    estimate = one.workspace_estimate()
    assert estimate.prefill >= programs["forward[bs=256,tok=8192]"]["scratch"]
    assert estimate.sampling >= programs["sample[bs=256,full]"]["scratch"]
    assert estimate.results == pytest.approx(max(need.results for need in known.values()), rel=0.01)
    said = workspace_of(known, declared(one))
    assert 1 <= one.estimated_workspace() / said < 1.5


@pytest.mark.parametrize(
    "flags",
    [
        *({}, {"num_continuous_decode_steps": 3}, {"cache_self_check": 0.5}, {"deterministic": True}),
        *({"is_embedding": True}, {"speculative_algorithm": "NGRAM"}),
    ],
)
def test_the_programs_that_are_counted_are_those_of_the_closed_set(flags: dict[str, Any]) -> None:
    one = deployment("v6e-1", KEPT["models"]["qwen2.5-0.5b"] | {"num_hidden_layers": 1}, **flags)
    programs = declare_programs(ProgramDesign(one.static_model, len(one.weights), one.shape, one.buckets))
    assert [program.key for program in programs] == declared(one)
    for program in programs:
        assert program.runs_layers == (program.key.kind in ("forward", "decode")), program.key
    prefill = sum(program.key.family == ("forward", True) for program in programs)
    assert prefill == len(one.buckets.prefill)


@pytest.mark.parametrize("topology", ["v5e-4", "v6e-1", "tpu7x-8", "h200-1"])
def test_the_default_configuration_has_few_programs_that_run_the_model(topology: str) -> None:
    """Each takes the compiler seconds to minutes. Those of a CPU: tests/runtime/core/plan/test_engine_plan.py."""
    one = deployment(topology, KEPT["models"]["qwen2.5-0.5b"])
    programs = declare_programs(ProgramDesign(one.static_model, len(one.weights), one.shape, one.buckets))
    assert sum(program.runs_layers for program in programs) <= 38


def test_more_of_anything_needs_more() -> None:
    qwen = KEPT["models"]["qwen2.5-0.5b"]
    least = deployment("v6e-1", qwen).estimated_workspace()
    assert deployment("v6e-1", qwen | {"num_hidden_layers": 48}).estimated_workspace() > least
    assert deployment("v6e-1", qwen, max_running_requests=512).estimated_workspace() > least
    assert deployment("v6e-1", qwen | {"vocab_size": 300_000}).estimated_workspace() > least
    few = deployment("h200-1", qwen, max_running_requests=8).estimated_workspace()
    assert deployment("h200-1", qwen, max_running_requests=8, chunked_prefill_size=4096).estimated_workspace() < few
