"""Prompts of embeddings on real programs: the tokens are those of the prompt whose ids have these embeddings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.execution.batch.media_rows import ROWS_PER_CALL, MediaRows, num_calls
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.request.prompt_parts import PromptPart
from tests.many_devices import call_with_devices
from tests.runtime.core.embeds import kept, rows_of, send
from tests.runtime.core.mesh_requests import assert_same, drain, seen
from tests.runtime.core.test_prefix_cache import check_same
from tests.runtime.tiny_engine import Collector, TinyEngine, create_core, random_prompt

PAGE = 4
LENGTHS = (1, 3, 4, 5, 15, 16, 17, 33, 50)  # around pages, and around chunks of 16
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "seed": 5},
    "penalties": {"temperature": 1.0, "seed": 6, "frequency_penalty": 0.5, "presence_penalty": 0.3, "min_tokens": 3},
    "logprobs": {"temperature": 0.8, "seed": 7, "logprobs": 4},
}


@pytest.fixture(scope="module")
def engine(build: Callable[..., TinyEngine]) -> TinyEngine:
    return build(chunked_prefill_size=64, cache_self_check=1.0, cuda_graph_bs=(1,), enable_input_embeds=True)


def as_rows(core: EngineCore, folder: Path, ids: list[int], begin: int = 0, end: int | None = None) -> list[PromptPart]:
    """A prompt whose ids from `begin` to `end` are given by their embeddings."""
    stop = len(ids) if end is None else end
    return [ids[:begin], kept(folder, rows_of(core, ids[begin:stop])), ids[stop:]]


def run(core: EngineCore, prompts: dict[str, list[PromptPart]], **params: Any) -> Collector:
    collector = Collector(core)
    for name, parts in prompts.items():
        send(collector, name, parts, **params)
    return collector.run()


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_pages_and_hits(engine: TinyEngine, tmp_path: Path, kind: str) -> None:
    """All of a prompt, or its middle, beside requests of text in the same steps; then again, from the cache."""
    texts = {str(length): random_prompt(length) for length in LENGTHS}
    expected = run(engine.core(disable_radix_cache=True), {name: [ids] for name, ids in texts.items()}, **KINDS[kind])
    core = engine.core(chunked_prefill_size=16)
    prompts: dict[str, list[PromptPart]] = {}
    for name, ids in texts.items():
        prompts |= {f"{name} all": as_rows(core, tmp_path, ids), f"{name} text": [ids]}
        if len(ids) > 4:
            prompts[f"{name} middle"] = as_rows(core, tmp_path, ids, 2, len(ids) - 2)
    for round_ in range(2):
        answers = run(core, prompts, **KINDS[kind])
        for name in prompts:
            check_same(answers.outcome(name), expected.outcome(name.split()[0]))
            if round_:
                assert answers.cached_tokens[name] == (int(name.split()[0]) - 1) // PAGE * PAGE


def test_media_of_equal_placeholders_share_nothing(engine: TinyEngine, tmp_path: Path) -> None:
    core = engine.core()
    texts = {"a": random_prompt(21, 1), "b": random_prompt(21, 2)}
    expected = run(engine.core(disable_radix_cache=True), {name: [ids] for name, ids in texts.items()})
    core = engine.core()
    for name, ids in texts.items():
        answers = run(core, {name: as_rows(core, tmp_path, ids)})
        assert answers.tokens[name] == expected.tokens[name]
        assert answers.cached_tokens[name] == 0
    turn = texts["a"] + expected.tokens["a"] + random_prompt(9)
    parts = [*as_rows(core, tmp_path, texts["a"]), turn[21:]]
    second = run(core, {"turn": parts})
    assert second.cached_tokens["turn"] == (21 + 7) // PAGE * PAGE, "the answer's last token was never computed"
    assert second.tokens["turn"] == run(engine.core(disable_radix_cache=True), {"turn": [turn]}).tokens["turn"]


@pytest.mark.parametrize("flags", [{}, {"enable_mixed_chunk": True, "chunked_prefill_size": 16}], ids=["", "mixed"])
def test_retraction(engine: TinyEngine, tmp_path: Path, flags: dict[str, Any]) -> None:
    """What was generated is computed again with the prompt: its ids follow the rows."""
    names = [str(number) for number in range(6)]
    texts = {name: random_prompt(14 + number, number) for number, name in enumerate(names)}
    params = {"max_tokens": 30, "temperature": 0.9, "seed": 3}
    expected = run(engine.core(disable_radix_cache=True), {name: [ids] for name, ids in texts.items()}, **params)
    core = engine.core(max_total_tokens=96, schedule_conservativeness=0.0, **flags)
    answers = run(core, {name: as_rows(core, tmp_path, ids, 0, 9) for name, ids in texts.items()}, **params)
    assert answers.tokens == expected.tokens
    assert sum(answers.num_retractions.values()) > 0


def test_penalties_count_no_placeholders(engine: TinyEngine, tmp_path: Path) -> None:
    core, ids = engine.core(), random_prompt(20)
    for name, begin, end in (("middle", 3, 17), ("all", 0, 20)):
        collector = Collector(core)
        send(collector, name, as_rows(core, tmp_path, ids, begin, end), repetition_penalty=1.9, max_tokens=2)
        collector.step()
        found = core._scheduler.find(name)
        assert found is not None
        counted = np.asarray(core._runner.executor.state.sampler.prompt_mask)[found.slot]
        assert set(counted.nonzero()[0].tolist()) == {*ids[:begin], *ids[end:]}
        collector.run()


def test_hits_are_checked(engine: TinyEngine, tmp_path: Path) -> None:
    core = engine.core(cache_self_check=1.0)
    parts = as_rows(core, tmp_path, random_prompt(40), 5, 30)
    for name in ("first", "again"):
        run(core, {name: parts})
    (part,) = tmp_path.iterdir()
    part.unlink()
    stats = core.stats()
    assert (stats.num_self_checks, stats.num_self_check_failures) == (1, 0)


def test_rows_that_are_gone_refuse_the_request(engine: TinyEngine, tmp_path: Path) -> None:
    core = engine.core()
    parts = as_rows(core, tmp_path, random_prompt(8))
    for part in tmp_path.iterdir():
        part.unlink()
    with pytest.raises(InvalidRequestError, match="cannot be read: No such file"):
        send(Collector(core), "x", parts)
    assert not core.has_work


def test_a_lost_state_is_made_anew(engine: TinyEngine, tmp_path: Path) -> None:
    core, ids = engine.core(), random_prompt(12)
    parts = as_rows(core, tmp_path, ids)
    expected = run(core, {"x": parts}).tokens
    core._scheduler.start_over()
    with core._runner.programs.built.expecting_compiles():
        core._runner.executor.reset_state()
    assert run(core, {"x": parts}).tokens == expected


def test_rows_come_in_whole_calls() -> None:
    width = 3
    rows = np.arange((ROWS_PER_CALL + 2) * width, dtype=np.float32).reshape(-1, width)
    media = MediaRows(np.zeros(1, np.int32), rows)
    assert num_calls([media, MediaRows.of(None, 8, width)]) == 2
    assert (media.piece(0) == rows[:ROWS_PER_CALL]).all()
    assert (media.piece(1)[:2] == rows[ROWS_PER_CALL:]).all()
    assert not media.piece(1)[2:].any()
    assert not media.piece(7).any(), "of a rank that has fewer rows than another"
    idle = MediaRows.of(None, 8, width)
    assert (idle.places == -1).all()


def test_programs_are_there_with_the_flag_alone(engine: TinyEngine, tiny: TinyEngine) -> None:
    own = set(engine.programs) - set(tiny.programs)
    assert own == {ProgramKey("embeds"), ProgramKey("forward_media", 8, 16), ProgramKey("forward_media", 8, 64)}
    assert set(tiny.programs) < set(engine.programs)
    embeds = engine._parts.runner.executor.state.embeds
    assert embeds.shape == (ROWS_PER_CALL, 64)
    assert engine._parts.memory.state == tiny._parts.memory.state + embeds.nbytes


def test_flags_that_exclude_it() -> None:
    with pytest.raises(ConfigError, match="--is-embedding generates no text: leave --enable-input-embeds out"):
        EngineConfig.from_flags({"model_path": "m", "enable_input_embeds": True, "is_embedding": True})


@pytest.mark.slow  # test_determinism.py has one shape
def test_deterministic_steps(build: Callable[..., TinyEngine], tmp_path: Path) -> None:
    """All steps run one program, so logprobs are equal to the last bit, whatever a step holds."""
    flags = {"max_running_requests": 4, "chunked_prefill_size": 16, "max_total_tokens": 512}
    engine = build(deterministic=True, enable_input_embeds=True, **flags)
    assert [key for key in engine.programs if key.kind.startswith("forward")] == [ProgramKey("forward_media", 4, 16)]
    core, texts = engine.core(), {"a": random_prompt(30), "b": random_prompt(7)}
    alone = {name: run(engine.core(), {name: [ids]}, logprobs=2).outcome(name) for name, ids in texts.items()}
    rows = run(core, {"a": as_rows(core, tmp_path, texts["a"], 1, 29), "b": [texts["b"]]}, logprobs=2)
    assert {name: rows.outcome(name) for name in texts} == alone


MESH_TEXTS = {str(number): random_prompt(length, length) for number, length in enumerate((7, 40, 20, 33, 40))}


def on_a_mesh(folder: str, rows_folder: str) -> dict[str, Any]:
    flags = {"compile": "lazy", "fail_on_recompile": False, "compilation_cache_dir": "", "cuda_graph_bs": (1,)}
    core = create_core(Path(folder), dp_size=2, tp_size=2, enable_input_embeds=True, **flags)
    collector = Collector(core)
    for name, ids in MESH_TEXTS.items():
        send(collector, name, [ids] if name == "2" else as_rows(core, Path(rows_folder), ids, 1), logprobs=3)
    drain(collector)
    return seen(collector, list(MESH_TEXTS))


@pytest.mark.slow  # tests/integration/test_several_hosts.py has two devices
def test_two_ranks_of_two_devices(engine: TinyEngine, tiny_dir: Path, tmp_path: Path) -> None:
    one = run(engine.core(), {name: [ids] for name, ids in MESH_TEXTS.items()}, logprobs=3)
    ranks = call_with_devices(__name__, "on_a_mesh", str(tiny_dir), str(tmp_path))
    assert_same(ranks, seen(one, list(MESH_TEXTS)), num_logprobs=30)


def test_programs_of_text_take_no_rows(engine: TinyEngine, tiny: TinyEngine) -> None:
    """A step of text runs the same program with the flag and without."""
    key = ProgramKey("forward", 8, 64)
    programs = [each._parts.runner.programs.built.declaration(key) for each in (engine, tiny)]
    lowered = [jitted.lower(*args).as_text() for jitted, args in programs]
    assert lowered[0] == lowered[1]
