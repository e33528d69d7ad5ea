"""--tp-size: the engine over several devices gives the tokens of one, with the collectives that the maths needs."""

import collections
import re
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from tests.many_devices import call_with_devices
from tests.runtime.core.collective_lines import collectives_by_kind
from tests.runtime.core.mesh_requests import REQUESTS, add, assert_same, drain, seen
from tests.runtime.tiny_engine import FLAGS, Collector, create_core

MESH_FLAGS = {
    "compile": "lazy",
    "fail_on_recompile": False,
    "compilation_cache_dir": "",
    "max_running_requests": 4,
    "cuda_graph_bs": (1,),
}
KINDS = ("forward", "forward prefill", "reset", "tables", "sample greedy", "score prefill")
TWO_LAYERS = '{"num_hidden_layers": 2, "vocab_size": 16384}'  # words in 128 blocks, as real models have hundreds


def run_requests(folder: str, tp_size: int) -> dict[str, Any]:
    core = create_core(Path(folder), tp_size=tp_size, **MESH_FLAGS)
    collector = Collector(core)
    add(collector, REQUESTS)
    drain(collector)
    return seen(collector, list(REQUESTS))


def run_on_meshes(folder: str, sizes: list[int]) -> list[dict[str, Any]]:
    return [run_requests(folder, size) for size in sizes]


@pytest.mark.slow  # test_expert_parallel.py and test_data_parallel.py have four devices, in other arrangements
def test_tokens_and_logprobs_are_those_of_one_device(tiny_dir: Path) -> None:
    one, four = call_with_devices(__name__, "run_on_meshes", str(tiny_dir), [1, 4])
    assert_same(four, one, num_logprobs=15)


def collectives(folder: str, tp_size: int) -> dict[str, list[list[Any]]]:
    """Of one program of each kind: opcode and shapes of each collective in its HLO."""
    flags = {**FLAGS, **MESH_FLAGS, "json_model_override_args": TWO_LAYERS, "skip_tokenizer_init": True}
    design = EnginePlan.of(EngineConfig.from_flags({"model_path": folder, **flags, "tp_size": tp_size}))
    return {
        kind: [[line[2], re.findall(r"\[([\d,]*)\]", line[1])] for line in lines]
        for kind, lines in collectives_by_kind(design, only=KINDS).items()
    }


def test_the_collectives_that_the_maths_needs_and_no_others(tiny_dir: Path) -> None:
    programs = call_with_devices(__name__, "collectives", str(tiny_dir), 4)
    num_layers, hidden_size, vocab_size = 2, 64, 16384
    for kind in ("forward", "forward prefill"):
        opcodes = collections.Counter(opcode for opcode, _ in programs[kind])
        assert opcodes == {"all-reduce": 2 * num_layers + 1}, kind  # and the embedding's
        assert all(shape.endswith(f",{hidden_size}") for _, shapes in programs[kind] for shape in shapes)
    for kind in ("reset", "tables"):
        assert programs[kind] == [], kind
    # The CPU's argmax of computed scores is a call that the compiler can't split: see sampler._argmax_of_computed.
    for kind in ("sample greedy", "score prefill"):
        gathered = [shape for opcode, shapes in programs[kind] for shape in shapes if opcode == "all-gather"]
        assert gathered, kind
        assert all(int(shape.split(",")[-1]) <= vocab_size // 128 for shape in gathered), (kind, gathered)


def more_devices_than_there_are(folder: str) -> str:
    with pytest.raises(ConfigError) as caught:
        EngineCore.create(EngineConfig.from_flags({"model_path": folder, "tp_size": 9}), lambda progress: None)
    return str(caught.value)


def test_more_devices_than_there_are(tiny_dir: Path) -> None:
    message = call_with_devices(__name__, "more_devices_than_there_are", str(tiny_dir))
    assert message == "--tp-size 9 needs that many devices, but jax finds 8 (cpu); use --tp-size 8 or less"
    with pytest.raises(ConfigError, match="--tp-size must be at least 1, got 0"):
        EngineConfig.from_flags({"model_path": "m", "tp_size": 0})
