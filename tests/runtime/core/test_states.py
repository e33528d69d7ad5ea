"""Layers that keep states: slots that change hands, steps that are void, meshes, a reset, and flags."""

import dataclasses
import logging
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from palladio.model.cache import groups as cache_groups
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.hf_config import FULL, LINEAR, HfConfig
from palladio.model.families import qwen3_5
from palladio.model.families.qwen3_next import describe_hybrid
from palladio.model.loading import orbax_weights
from palladio.model.spec.layer_spec import DecoderSpec
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.plan.sizing import check_states
from palladio.runtime.execution.programs.cache_programs import CopyStates
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from tests.many_devices import call_with_devices
from tests.model.driver import MAX_LEN
from tests.model.make_goldens import GOLDENS, prompts_of
from tests.runtime.core import mesh_requests
from tests.runtime.core.mesh_requests import assert_same, drain
from tests.runtime.tiny_engine import Collector, create_core
from tests.tiny_model import make_checkpoint, tiny_config

WINDOW = 10
FLAGS: dict[str, Any] = {
    "load_format": "auto",
    "context_length": MAX_LEN,
    "max_total_tokens": 640,
    "compile": "lazy",
    "chunked_prefill_size": 32,
    "enable_mixed_chunk": True,
}
SNAPSHOTS = {"state_snapshot_interval": 8, "state_snapshot_bytes": 2**20}


def test_slots_change_hands_while_steps_are_void(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests end by a stop token that the host reads a step late, and by an abort, while others go on beside them;
    the next ones get their slots. Tokens are those of transformers."""
    golden, chosen = np.load(GOLDENS / "qwen3_5.npz")["tokens"], prompts_of("qwen3_5")
    flags = FLAGS | SNAPSHOTS | {"max_running_requests": 2, "cuda_graph_bs": (2,), "cache_self_check": 1.0}
    with caplog.at_level(logging.INFO, "palladio.engine"):
        core = create_core(make_checkpoint(tmp_path, "qwen3_5"), **flags)
    assert "Prefix cache of a model with states: 65 snapshots of" in caplog.text
    collector, expected = Collector(core), {}
    for number, count in ((8, 24), (3, 24), (5, 24), (6, 24), (7, 24)):
        tokens = golden[number].tolist()
        stop = next(place for place in range(5, count) if tokens[place] not in tokens[:place])
        ends = number in (3, 6)
        collector.add(str(number), chosen[number], max_tokens=count, stop_ids=(tokens[stop],) if ends else ())
        expected[str(number)] = tokens[: stop + 1] if ends else tokens[:count]
    collector.add("doomed", chosen[4], max_tokens=64)
    while len(collector.tokens["doomed"]) < 3:
        collector.step()
    core.abort("doomed")
    collector.add("last", chosen[2], max_tokens=24)
    expected["last"] = golden[2][:24].tolist()
    collector.run()
    collector.add("again", chosen[8], max_tokens=24)  # whose pages and states were computed before
    expected["again"] = golden[8][:24].tolist()
    go_on(collector, expected, golden, chosen)
    assert {name: collector.tokens[name] for name in expected} == expected
    stats = core.stats(check_integrity=True)
    assert stats.total.num_hit_tokens > 0
    assert stats.integrity_error is None
    assert stats.total.num_snapshot_hits == 5  # one when the request that was retracted went on
    assert (stats.num_self_checks, stats.num_self_check_failures) == (4, 0)
    find_a_spoiled_snapshot(collector, chosen[8])


def go_on(
    collector: Collector, expected: dict[str, list[int]], golden: np.ndarray[Any, Any], chosen: list[list[int]]
) -> None:
    """The next turns of chats begin behind what was computed of the last ones, one of them twice: it is retracted."""
    scheduler = collector.core._scheduler.schedulers[0]
    for number in (3, 5, 7):
        collector.add(f"turn {number}", [*chosen[number], *golden[number][:20].tolist()], max_tokens=20)
        expected[f"turn {number}"] = golden[number][20:40].tolist()
    while len(collector.tokens["turn 5"]) < 6:
        collector.step()
    request = next(one for one in scheduler.running if one.given.request_id == "turn 5")
    assert 0 < (lost := scheduler.cache.num_lost_tokens(request)) <= 12  # 8, and a step of four
    begun, computed = request.num_cached_tokens, request.num_computed
    scheduler.retractor.retract(request)
    drain(collector)
    trace = collector.traces["turn 5"]
    assert [(one.tokens, one.snapshot_tokens) for one in trace.retractions] == [(lost, computed - lost)]
    assert [hit.tokens for hit in trace.snapshots] == [begun, computed - lost]
    assert trace.snapshots[0].slot != trace.snapshots[1].slot > 2, "slots of snapshots lie behind those of requests"
    assert all(collector.cached_tokens[name] >= 8 for name in ("again", "turn 3", "turn 5", "turn 7"))


def find_a_spoiled_snapshot(collector: Collector, prompt: list[int]) -> None:
    """The self-check compares states too: all pages are right."""
    core, slots = collector.core, collector.core._scheduler.schedulers[0].cache.groups.snapshots
    assert slots is not None
    for slot in slots.numbers:
        core._runner.executor.run(CopyStates.key_of(1), [np.array([[1], [slot]], np.int32)])
    collector.add("spoiled", prompt, max_tokens=4)
    drain(collector)
    stats = core.stats()
    assert (stats.num_self_check_failures, stats.cache_enabled, stats.total.num_snapshots) == (1, False, 0)


def core_on(folder: str, dp_size: int, tp_size: int, **flags: Any) -> EngineCore:
    few = {"fail_on_recompile": False, "max_running_requests": 4, "cuda_graph_bs": (1,), "skip_tokenizer_init": True}
    routing = {"load_balance_method": "prefix", "cache_self_check": 1.0}
    return create_core(Path(folder), dp_size=dp_size, tp_size=tp_size, **FLAGS | SNAPSHOTS | routing | few | flags)


def run_and_reset(core: EngineCore) -> dict[str, list[int]]:
    """Tokens of requests of which all are computed anew in the middle, since the device has lost its state."""
    collector, cache = Collector(core), core._runner.shape.cache
    for number in range(4):
        collector.add(str(number), prompts_of("qwen3_next")[-1 - number], max_tokens=12)
    for _ in range(6):
        collector.step()
    collector.take(core._process(keep=0))
    assert collector.tokens
    assert all(np.asarray(array).any() for layer in kept_by(core) for array in layer)
    for after in core._hooks.after_loss:
        after()
    core._scheduler.start_over()
    core._runner.executor.reset_state()
    assert len(kept_by(core)) == len(cache.groups.states) > 0
    assert not any(np.asarray(array).any() for layer in kept_by(core) for array in layer)
    drain(collector)
    for number in range(4):
        collector.add(f"{number} again", prompts_of("qwen3_next")[-1 - number], max_tokens=12)
    drain(collector)
    assert all(collector.tokens[f"{number} again"] == collector.tokens[str(number)] for number in range(4))
    assert all(collector.cached_tokens[f"{number} again"] >= 8 for number in range(4))
    return {name: collector.tokens[name] for name in map(str, range(4))}


def kept_by(core: EngineCore) -> tuple[Any, ...]:
    """The states of each layer that has any."""
    return core._runner.shape.cache.states(core._runner.executor.state.kv_cache)


def run_on(folder: str, dp_size: int, tp_size: int) -> dict[str, list[int]]:
    return run_and_reset(core_on(folder, dp_size, tp_size))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [[2, 2], [1, 4]], ids=str)
def test_ranks_and_a_reset(tmp_path: Path, mesh: list[int]) -> None:
    """Four devices: two ranks, whose devices share the heads; or one, and a key head's value heads are divided, too, as
    a converted checkpoint is loaded."""
    folder = make_checkpoint(tmp_path / "model", "qwen3_next")
    if mesh == [1, 4]:
        config = ModelConfig.from_hf(*read_model_dir(folder))
        orbax_weights.convert(folder, tmp_path / "converted", config, "float32", lambda *step: None)
        folder = tmp_path / "converted"
    golden = np.load(GOLDENS / "qwen3_next.npz")["tokens"]
    expected = {str(number): golden[-1 - number][:12].tolist() for number in range(4)}
    assert call_with_devices(__name__, "run_on", str(folder), *mesh) == expected


def describe_with_a_window(hf: HfConfig, *, are_sparse: tuple[bool, ...]) -> DecoderSpec:
    """The last layer gets one, which no published model of these families has."""
    spec = describe_hybrid(hf, are_sparse=are_sparse)
    return dataclasses.replace(spec, layers=(*spec.layers[:-1], spec.layers[-1].with_attention(window=WINDOW)))


def run_three_kinds(folder: str) -> list[dict[str, list[int]]]:
    """On one device that keeps all tokens in both layers with attention; and on two ranks of two that do not."""
    one_size = {"chunked_prefill_size": 16, "cuda_graph_bs": ()}  # of steps
    flags: dict[str, Any] = {"load_format": "dummy"} | one_size
    with patch.object(qwen3_5, "describe_hybrid", describe_with_a_window):
        with patch.object(cache_groups, "MOST_PADDING", -1.0):
            masked = core_on(folder, 1, 1, **flags)
        core = core_on(folder, 2, 2, **flags)
    one, groups = (each._runner.shape.cache.groups for each in (masked, core))
    assert (one.num_tables, one.states) == (1, (0,))
    assert [group.window for group in groups.groups] == [None, WINDOW]
    assert (groups.tables, groups.states) == ([(1,), (2,)], (0,))
    return [run_and_reset(masked), run_and_reset(core)]


def test_states_beside_pages_with_a_window_and_without(tmp_path: Path) -> None:
    """One layer of each kind, on four devices, which lose what all of them keep."""
    folder = make_checkpoint(tmp_path, "qwen3_5", num_hidden_layers=3, layer_types=[LINEAR, FULL, FULL])
    masked, ranks = call_with_devices(__name__, "run_three_kinds", str(folder))
    assert ranks == masked
    assert all(len(tokens) == 12 for tokens in ranks.values())
    assert len({token for tokens in ranks.values() for token in tokens}) > 12


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
def test_every_mesh(tmp_path: Path, family: str) -> None:
    make_checkpoint(tmp_path, family, num_experts=8)
    meshes = [[1, 1, 1], [1, 2, 1], [1, 2, 2], [1, 4, 2], [1, 8, 8], [2, 4, 4], [8, 1, 1]]
    flags = {"cache_self_check": 0.0}
    one, *others = call_with_devices(
        mesh_requests.__name__, "model_on_meshes", str(tmp_path), meshes, flags, timeout=1500
    )
    for found in others:
        assert_same(found, one, num_logprobs=60)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"speculative_algorithm": "NGRAM"}, "--speculative-algorithm: layers of Qwen3NextForCausalLM keep states"),
        ({"deterministic": True}, "--deterministic: layers of Qwen3NextForCausalLM keep states"),
    ],
)
def test_what_states_cannot_do_is_refused(flags: dict[str, Any], message: str) -> None:
    config = EngineConfig.from_flags({"model_path": "m", **flags})
    with pytest.raises(ConfigError, match=message):
        check_states(config, ModelConfig.from_hf(tiny_config("qwen3_next")))
    check_states(config, ModelConfig.from_hf(tiny_config("qwen3")))
