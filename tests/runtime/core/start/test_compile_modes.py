"""--compile full, background and lazy, and exported programs: the same tokens, and nothing compiled unasked."""

import logging
import threading
from typing import Any

import jax
import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.start.aot_compile import compile_ahead
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.programs.program import ProgramDesign, ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from tests.runtime.tiny_engine import FLAGS, Collector, TinyEngine, random_prompt

MANY: dict[str, Any] = {
    "max_running_requests": 16,
    "chunked_prefill_size": 64,
    "max_total_tokens": 1024,
    "cuda_graph_bs": (8,),
}
FEW: dict[str, Any] = {"max_running_requests": 2, "chunked_prefill_size": 16}


def mixed_requests(core) -> Collector:
    """More requests than the first programs hold, of every tier, with prompts longer than a step at first."""
    collector = Collector(core)
    for number in range(14):
        params = [
            {},
            {"temperature": 0.8, "seed": number},
            {"temperature": 0.8, "seed": number, "presence_penalty": 0.5, "logprobs": 2},
            {"prompt_logprobs": 1, "logprobs": 0},
        ][number % 4]
        collector.add(str(number), random_prompt(3 + 17 * number, salt=number), max_tokens=12, **params)
    return collector


@pytest.fixture(scope="module")
def full(build) -> TinyEngine:
    return build(**MANY)


@pytest.fixture(scope="module")
def expected(full):
    return mixed_requests(full.core()).run().tokens


@pytest.fixture
def held(monkeypatch):
    """What would be built in the background, held back: the tests build it when they want to."""
    waiting = {}
    monkeypatch.setattr(
        ProgramCache,
        "build_in_background",
        lambda self, keys, on_built=lambda: None: waiting.update(programs=self, keys=list(keys), on_built=on_built),
    )
    return waiting


def test_in_the_background_every_request_is_served_from_the_first_programs_on(build, held, full, expected):
    engine = build(compile="background", **MANY)
    assert 6 == len(engine.programs) < len(full.programs)
    core = engine.core()
    assert mixed_requests(core).run().tokens == expected
    assert core._scheduler.buckets.max_requests == 8
    held["programs"].build(held["keys"])
    core = engine.core()
    assert mixed_requests(core).run().tokens == expected
    assert core._scheduler.buckets == full.core()._scheduler.buckets
    assert set(engine.programs) == set(full.programs)  # so it is as fast from here on


@pytest.mark.slow  # above, programs arrive between requests
def test_programs_that_arrive_while_requests_run_are_used_from_the_next_step_on(build, held, full, expected):
    engine = build(compile="background", **MANY)
    core, rest = engine.core(), iter(held["keys"])
    collector, most = mixed_requests(core), set()
    while core.has_work:
        collector.step()
        most.add(core._scheduler.buckets.max_requests)
        key = next(rest, None)
        if key is not None:
            held["programs"].build([key])
    assert collector.tokens == expected
    assert most == {8, 16}
    assert core.stats().compile.wait_seconds == 0


def test_requests_beyond_the_first_programs_wait_for_the_compile_and_are_told_so(build, held):
    core = build(compile="background", **MANY).core()
    collector = mixed_requests(core)
    while "13" not in collector.finish:
        collector.step()
    assert core._scheduler.find("0") is None
    traces = collector.traces
    assert max(trace.waits.compile for trace in traces.values()) > 0
    collector.run()


def test_lazy_builds_what_steps_need_when_they_need_it(build, full, expected):
    engine = build(compile="lazy", **MANY)
    assert engine.programs == []
    core = engine.core()
    collector = mixed_requests(core).run()
    assert collector.tokens == expected
    stats = core.stats()
    assert 0 < len(stats.compile.programs) < stats.compile.num_programs == len(full.programs)
    assert stats.compile.wait_seconds > 0
    assert max(trace.compile_seconds for trace in collector.traces.values()) > 0
    before = len(stats.compile.programs)
    assert mixed_requests(engine.core()).run().tokens == expected
    assert len(engine.programs) == before


@pytest.mark.slow  # tests/runtime/scheduling/batch/test_buckets.py has the sizes
def test_only_batch_sizes_that_are_asked_for(build, full):
    """One: it samples more rows than its smallest prefill step has."""

    def few_requests(core) -> Collector:
        collector = Collector(core)
        for number in range(3):
            collector.add(str(number), random_prompt(3 + 2 * number, salt=number), max_tokens=6)
        return collector

    engine = build(compile="lazy", **MANY | {"max_running_requests": 32, "cuda_graph_bs": ()})
    assert few_requests(engine.core()).run().tokens == few_requests(full.core()).run().tokens
    decode = [key for key in engine.programs if key.kind == "sample" or (key.kind == "forward" and not key.num_tokens)]
    assert {key.num_requests for key in decode} == {32}


def test_progress_goes_on_in_the_background(tiny_dir, held):
    seen = []
    config = EngineConfig.from_flags({"model_path": str(tiny_dir), **FLAGS, **MANY, "compile": "background"})
    EngineCore.create(config, seen.append)
    compiled = [progress for progress in seen if progress.phase == "compile"]
    assert [(progress.done, progress.total) for progress in compiled[-2:]] == [(6, 6), (6, 6 + len(held["keys"]))]
    held["programs"].build(held["keys"][:1], held["on_built"])
    last = seen[-1]
    assert (last.phase, last.done, last.total) == ("compile", 7, 6 + len(held["keys"]))
    assert last.eta_seconds > 0


@pytest.mark.slow
def test_replicas_start_from_exported_programs(tiny_dir, tmp_path, expected, caplog):
    folder = {"compiled_dir": str(tmp_path / "programs"), "compilation_cache_dir": ""}
    compile_ahead(EngineConfig.from_flags({"model_path": str(tiny_dir), **FLAGS, **FEW, **folder}))
    assert len(list((tmp_path / "programs").iterdir())) == 18
    with caplog.at_level(logging.INFO):
        engine = TinyEngine(tiny_dir, **FEW, **folder)
    stats = engine.core().stats()
    assert [report.result for report in stats.compile.programs] == ["exported"] * 18  # nothing was compiled
    assert "Programs, exported: 18" in caplog.text
    tokens = mixed_requests(engine.core()).run().tokens
    assert {name: tokens[name] for name in "012"} == {name: expected[name] for name in "012"}
    # What is exported is used as far as it goes.
    more = TinyEngine(tiny_dir, **(FEW | {"chunked_prefill_size": 32}), **folder)
    reports = {report.name: report.result for report in more.core().stats().compile.programs}
    assert reports.pop("forward[bs=2,tok=32]") == reports.pop("score[tok=32]") == "miss"
    assert set(reports.values()) == {"exported"}


def test_a_step_that_compiles_ends_the_engine_where_that_is_asked_for(full):
    core = full.core()
    collector = Collector(core)
    collector.add("a", random_prompt(5), max_tokens=4)
    forward = core._runner.forward

    def compile_something(batch):
        jax.jit(lambda x: x - 0.123).lower(1.0).compile()
        return forward(batch)

    core._runner.forward = compile_something
    try:
        with pytest.raises(RuntimeError, match="compiled something"):
            collector.run()
    finally:
        del core._runner.forward


def test_a_compile_elsewhere_in_the_process_is_not_the_engines(full):
    core = full.core()
    collector = Collector(core)
    collector.add("a", random_prompt(5), max_tokens=4)
    collector.step()
    thread = threading.Thread(target=lambda: jax.jit(lambda x: x - 0.456).lower(1.0).compile())
    thread.start()
    thread.join()
    collector.run()


def test_program_keys_are_declared_once(full):
    assert len(full.programs) == len(set(full.programs)) == 2 + 2 * 2 + 4 * 2 + 2  # decode, prefill, sampling, others
    assert ProgramKey("forward", 16, 64) in full.programs


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({}, {"decode[bs=1,greedy]"}),
        ({"temperature": 1.0}, {"decode[bs=1,random]"}),
        ({"temperature": 1.0, "logprobs": 1}, {"forward[bs=1]", "sample[bs=1,full]"}),
        ({"presence_penalty": 0.5}, {"forward[bs=1]", "sample[bs=1,full]"}),
    ],
    ids=["greedy", "random", "log-probabilities", "penalty"],
)
def test_one_program_computes_a_small_decode_step_and_samples(tiny, params, names, monkeypatch):
    def generate(**flags: int) -> tuple[set[str], dict[str, list[int]]]:
        core = tiny.core(**flags)
        called: list[str] = []
        monkeypatch.setattr(core._runner.executor, "_on_call", lambda key, arrays: called.append(str(key)))
        collector = Collector(core)
        for number in range(3):
            collector.add(str(number), random_prompt(5 + number), max_tokens=6, **params, seed=number)
            collector.run()  # each alone
        return {name for name in called if name.startswith("decode") or name in names}, collector.tokens

    called, tokens = generate()
    assert called == names
    monkeypatch.setattr(ProgramDesign, "joins", lambda self, layout, tier: False)
    by_two, same_tokens = generate(num_continuous_decode_steps=1)
    assert not any(name.startswith("decode") for name in by_two)
    assert tokens == same_tokens


@pytest.mark.slow
def test_a_prefill_step_narrower_than_the_first_sample_bucket(build):
    """Four tokens a step, while only samples of eight are built."""
    flags: dict[str, Any] = {"chunked_prefill_size": 4, "max_running_requests": 8}
    tokens = mixed_requests(build(compile="background", **flags).core()).run().tokens
    assert tokens == mixed_requests(build(**flags).core()).run().tokens


def test_a_program_that_cannot_be_built_behind_the_engine_leaves_the_others(build, held, caplog):
    engine = build(compile="background", **MANY)
    built, refused = held["programs"], ProgramKey("forward", 16)
    declared = built._declared[refused]

    class Refusing:
        def lower(self, *args):
            raise NotImplementedError("this kernel does not take 16 rows")

    built._declared[refused] = type(declared)(Refusing(), declared.args)
    built._run(held["keys"], held["on_built"])
    assert "this kernel does not take 16 rows" in caplog.text
    core = engine.core()
    collector = mixed_requests(core).run()
    assert len(collector.finish) == 14
    assert core._scheduler.buckets.max_requests == 8
    assert [report.name for report in core.stats().compile.programs if report.result == "failed"] == [str(refused)]


@pytest.mark.slow  # above, requests of every tier are served lazily
def test_lazy_builds_the_tier_that_is_asked_for(build):
    core = build(compile="lazy", **FEW).core()
    collector = Collector(core)
    collector.add("dear", random_prompt(5), max_tokens=3, logprobs=1)
    collector.run()
    collector.add("cheap", random_prompt(5), max_tokens=3)
    collector.run()
    assert {key.tier for key in core._runner.programs.built.declared if key in core._runner.programs.built} >= {
        "full",
        "greedy",
    }
