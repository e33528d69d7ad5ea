"""An allocation that fails in a step: that step's requests end with an error, all others with the same tokens."""

import jax
import pytest

from palladio.runtime.execution.compiled.out_of_memory import compile_advice, is_out_of_memory, step_advice
from palladio.runtime.execution.compiled.program_cache import ProgramError
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.execution.programs.step_programs import Sample
from palladio.runtime.execution.state.device_state import DeviceShape
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import Shutdown
from palladio.runtime.interface.messages.engine_state import EngineFailed
from palladio.runtime.interface.messages.engine_stats import MemoryReport
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.engine_loop import run_engine
from palladio.runtime.process.transport import QueueInbox
from palladio.runtime.scheduling.batch.buckets import Buckets
from tests.runtime.multihost.meeting import group
from tests.runtime.tiny_engine import Collector, random_prompt

EXHAUSTED = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137438953472 bytes."
GIB = 2**30
MEMORY = MemoryReport(total=80 * GIB, usable=80 * GIB, weights=16 * GIB, kv_cache=56 * GIB)


def add_requests(core, count=6):
    collector = Collector(core)
    for number in range(count):
        penalty = {"presence_penalty": 0.4} if number == 2 else {}
        collector.add(str(number), random_prompt(9 + 7 * number, number), temperature=0.9, seed=number, **penalty)
    return collector


@pytest.fixture(scope="module")
def expected(tiny):
    return add_requests(tiny.core()).run().tokens


def fail_once(monkeypatch, owner, name, when, *, destroy=None):
    """The method raises as XLA does, once, when `when(batch or step)` first says so; after destroying its inputs."""
    original, failed = getattr(owner, name), []

    def failing(subject, *rest):
        batch = subject if name == "forward" else subject.planned
        if not failed and when(batch):
            failed.extend(row.request.given.request_id for row in batch.rows)
            for array in jax.tree.leaves(destroy() if destroy else ()):
                array.delete()
            raise jax.errors.JaxRuntimeError(EXHAUSTED)
        return original(subject, *rest)

    monkeypatch.setattr(owner, name, failing)
    return failed


CASES = {
    "a prefill step": lambda batch: batch.kind == "prefill" and len(batch.rows) > 1,
    "a decode step": lambda batch: batch.kind == "decode" and len(batch.rows) > 2,
    "the middle of a long prompt": lambda batch: not batch.rows[-1].samples,
}


@pytest.mark.parametrize("method", ["forward", "sample", "read"])
@pytest.mark.parametrize("case", CASES)
def test_only_the_requests_of_that_step_fail(tiny, expected, monkeypatch, caplog, method, case):
    core = tiny.core()
    collector = add_requests(core)
    runner = core._runner
    failed = fail_once(monkeypatch, runner, method, CASES[case], destroy=lambda: runner.executor.state.of_requests)
    collector.run()
    assert failed
    for name, tokens in expected.items():
        if name in failed:
            finish = collector.finish[name]
            assert (finish.type, finish.status) == ("abort", 500)
            assert "--mem-fraction-static" in finish.message or "--max-running-requests" in finish.message
            assert collector.tokens[name] == tokens[: len(collector.tokens[name])]
        else:
            assert collector.tokens[name] == tokens
    assert EXHAUSTED in caplog.text
    assert add_requests(core).run().tokens == expected  # nothing is left of it


def test_requests_that_only_wait_are_not_touched(tiny, expected, monkeypatch):
    core = tiny.core(max_running_requests=2)
    collector = add_requests(core)
    failed = fail_once(monkeypatch, core._runner, "forward", lambda batch: batch.kind == "decode")
    collector.run()
    assert len(failed) <= 2
    assert {name for name, finish in collector.finish.items() if finish.type == "abort"} == set(failed)


def test_cached_prefixes_are_forgotten_with_the_pages(tiny, monkeypatch):
    core = tiny.core()
    collector, prompt = Collector(core), random_prompt(40)
    collector.add("first", prompt)
    collector.run()
    collector.add("doomed", random_prompt(8, 1))
    runner = core._runner
    fail_once(monkeypatch, runner, "forward", lambda batch: True, destroy=lambda: runner.executor.state.of_requests)
    collector.run()
    collector.add("again", prompt)
    collector.run()
    assert collector.cached_tokens["again"] == 0
    assert collector.tokens["again"] == collector.tokens["first"]


def test_an_error_of_sampling_finds_only_one_cache_alive(tiny, expected, monkeypatch):
    """The forward step before it has taken the old cache and made a new one."""
    core = tiny.core()
    runner = core._runner
    collector = add_requests(core)
    pages = {array.shape for array in runner.executor.state.kv_cache}

    def failing(*args):
        monkeypatch.undo()
        raise jax.errors.JaxRuntimeError(EXHAUSTED)

    def caches():
        return sum(not array.is_deleted() and array.shape in pages for array in jax.live_arrays())

    alive = caches()
    seen = []
    allocate = DeviceShape.allocate
    monkeypatch.setattr(Sample, "run", failing)
    with pytest.MonkeyPatch.context() as watch:
        watch.setattr(DeviceShape, "allocate", lambda self, *args: seen.append(caches()) or allocate(self, *args))
        collector.run()
    assert seen == [alive - len(runner.executor.state.kv_cache)]
    assert add_requests(core).run().tokens == expected


def test_a_lazy_program_that_cannot_be_made_fails_its_step_and_no_other(build, monkeypatch):
    core = build(compile="lazy", max_running_requests=2, max_total_tokens=512).core()
    built = core._runner.programs.built
    key = ProgramKey("forward", 2, 32)
    declared, tries = built._declared, []

    class Refusing:
        def lower(self, *args):
            tries.append(args)
            raise jax.errors.JaxRuntimeError(EXHAUSTED)

    monkeypatch.setitem(declared, key, type(declared[key])(Refusing(), declared[key].args))
    collector = Collector(core)
    collector.add("short", random_prompt(10), max_tokens=30)
    for _ in range(3):
        collector.step()
    for name in ("long", "again"):
        collector.add(name, random_prompt(30), max_tokens=4)
        while name not in collector.finish:
            collector.step()
        assert collector.finish[name].status == 500
        assert "forward[bs=2,tok=32]" in collector.finish[name].message
    collector.run()
    assert collector.finish["short"].type == "length"
    assert collector.num_retractions["short"] == 0
    assert len(tries) == 1  # it is not tried again


def test_any_other_error_ends_the_engine(tiny, monkeypatch):
    core = tiny.core()
    collector = add_requests(core)

    def failing(batch):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(core._runner, "forward", failing)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        collector.run()


@pytest.mark.parametrize("method", ["forward", "sample", "read"])
def test_with_several_hosts_nothing_is_computed_again(tiny, monkeypatch, method):
    """The others may have made the call, or may not: nobody knows what their state is."""
    core = tiny.core()
    collector = add_requests(core)
    core._hosts = object()
    monkeypatch.setattr(core._runner.executor, "reset_state", lambda: pytest.fail("it was made anew"))
    failed = fail_once(monkeypatch, core._runner, method, CASES["a decode step"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        collector.run()
    assert failed
    assert not any(finish.type == "abort" for finish in collector.finish.values())


@pytest.fixture(scope="module")
def lazy(build):
    return build(compile="lazy", max_running_requests=2, max_total_tokens=512)


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError(EXHAUSTED),
        ProgramError("the program forward[bs=2,tok=32] cannot be compiled"),
        AssertionError("a defect of ours"),
    ],
)
def test_with_several_hosts_any_failure_ends_the_engine_and_the_other_hosts(lazy, monkeypatch, error):
    core = lazy.core()

    def failing(batch):
        raise error

    monkeypatch.setattr(core._runner, "forward", failing)
    inbox, emitted = QueueInbox(), []
    params = SamplingParams(max_tokens=4, temperature=0.0, seed=0)
    for message in (
        GenerationRequest("x", random_prompt(9), params, (), 0.0),
        GenerationRequest("y", [5], params, (), 0.0),
    ):
        inbox.put(message)
    with group() as hosts:
        core._hosts = hosts.leader
        run_engine(lambda *_: core, EngineConfig.from_flags({"model_path": "m"}), inbox, emitted.append)
        what = f"{type(error).__name__}: {error}"
        assert emitted[1:] == [EngineFailed(f"the engine failed: {what}", config=False)]
        assert hosts.ends[1].wait() == f"host 0 failed: {what}"  # not "", which is an orderly end
        assert not hosts.ends[0].messages


def test_a_step_that_fails_because_a_host_is_lost_names_the_host(lazy, monkeypatch):
    core, inbox, emitted = lazy.core(), QueueInbox(), []
    inbox.put(GenerationRequest("x", [5], SamplingParams(max_tokens=4, temperature=0.0, seed=0), (), 0.0))
    with group() as hosts:
        core._hosts = hosts.leader

        def failing(batch):
            hosts.members[0]._link.close()
            raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection reset by peer")

        monkeypatch.setattr(core._runner, "forward", failing)
        run_engine(lambda *_: core, EngineConfig.from_flags({"model_path": "m"}), inbox, emitted.append)
        (failed,) = emitted[1:]
        assert failed.message == f"the engine failed: HostLostError: {hosts.ends[0].messages[0]}"
        assert failed.message.endswith(" lost: it closed the connection")


def test_with_several_hosts_an_orderly_end_is_that_of_all(lazy):
    inbox, emitted = QueueInbox(), []
    inbox.put(Shutdown())
    with group() as hosts:
        core = lazy.core()
        core._hosts = hosts.leader
        run_engine(lambda *_: core, EngineConfig.from_flags({"model_path": "m"}), inbox, emitted.append)
        assert hosts.ends[1].wait() == ""


def test_what_xla_says_when_memory_runs_out():
    assert is_out_of_memory(jax.errors.JaxRuntimeError(EXHAUSTED))
    assert is_out_of_memory(RuntimeError("Ran out of memory in memory space hbm. Used 18.2G of 15.7G"))
    assert not is_out_of_memory(RuntimeError("INTERNAL: something else"))


def test_advice_names_values_that_leave_more_room():
    assert step_advice(MEMORY, 100_000) == (
        "restart with --mem-fraction-static 0.85 or --max-total-tokens 92857 to leave more memory free"
    )
    assert "--max-running-requests" in step_advice(MemoryReport(total=80 * GIB, weights=GIB, kv_cache=GIB), 100)
    buckets = Buckets.create(max_running=256, max_step_tokens=8192, growth=2)
    assert "--chunked-prefill-size 4096" in compile_advice(ProgramKey("forward", 256, 8192), buckets)
    assert "--max-running-requests 128" in compile_advice(ProgramKey("sample", 256, tier="full"), buckets)
    assert "--mem-fraction-static" in compile_advice(ProgramKey("tables"), buckets)
    few = Buckets.create(max_running=256, max_step_tokens=8192, growth=2, max_decode=8)
    assert "--max-running-requests 128" in compile_advice(ProgramKey("forward", 256), few)
