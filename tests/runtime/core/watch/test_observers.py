"""What watches the steps changes nothing in them: with all observers and with none, tokens and pages are the same."""

import dataclasses
from typing import Any

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.interface.messages.engine_stats import EngineStats
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.state.request import Request
from tests.runtime.tiny_engine import Collector, TinyEngine, random_prompt

OF_OBSERVERS = {"device_idle", "steps", "ranks"}  # figures of EngineStats


def pages(core: EngineCore) -> Any:
    """Who owns what, for all pages and slots of an engine."""
    (scheduler,) = core._scheduler.schedulers
    cache = scheduler.cache

    def owned(request: Request) -> tuple[Any, ...]:
        return request.given.request_id, request.slot, request.num_computed, request.pages, request.num_tree_pages

    return (
        [owned(request) for request in scheduler.running],
        [request.given.request_id for request in scheduler.waiting],
        list(cache.allocator.free_pages),
        list(cache.tree.pages()),
    )


def serve(core: EngineCore) -> tuple[Collector, list[Any]]:
    """Prompts of many lengths, shared prefixes, aborts, and too few pages for all: so some are preempted. Returns what
    came out and who owned which page after each step."""
    collector, owners = Collector(core), []
    for i in range(14):
        collector.add(
            f"r{i}",
            random_prompt(12, i % 3) + random_prompt(3 + 5 * i, i),
            max_tokens=20 + i,
            temperature=0.8 * (i % 2),
            seed=i,
            ignore_eos=True,
            options=RequestOptions(timeline=i % 2 == 0),
        )
    for step in range(5000):
        if not core.has_work:
            break
        collector.step()
        core._scheduler.check_integrity()
        owners.append(pages(core))
        if step == 9:
            core.abort(["r2", "r13"])
    assert not core.has_work
    return collector, owners


FLAGS = {"max_total_tokens": 256, "schedule_conservativeness": 0.0, "chunked_prefill_size": 32}


def test_with_all_observers_and_with_none_tokens_and_pages_are_the_same(tiny: TinyEngine) -> None:
    watched, alone = tiny.core(**FLAGS), tiny.core(observers=(), **FLAGS)
    (expected, expected_pages), (found, found_pages) = serve(watched), serve(alone)
    assert any(expected.num_retractions.values()), "memory was to run short"
    assert set(expected.timelines) == {f"r{i}" for i in range(4, 14, 2)} | {"r0"} | set(expected.timelines) & {"r2"}
    assert not found.timelines
    assert found.tokens == expected.tokens
    assert found.finish == expected.finish
    assert found.num_retractions == expected.num_retractions
    assert found_pages == expected_pages
    seen, unseen = watched.stats(check_integrity=True), alone.stats(check_integrity=True)
    assert seen.integrity_error is unseen.integrity_error is None
    assert seen.steps
    assert not unseen.steps
    for name in EngineStats.__dataclass_fields__.keys() - OF_OBSERVERS:
        assert getattr(seen, name) == getattr(unseen, name), name
    ((one,), (other,)) = seen.ranks, unseen.ranks
    assert one.num_prefill_tokens > 0
    assert dataclasses.replace(one, last_gen_throughput=0.0, num_prefill_tokens=0) == other


def test_hooks_come_in_order(tiny: TinyEngine) -> None:
    seen: list[str] = []
    hooks = [name for name in vars(StepObserver) if name.startswith(("before_", "after_"))]

    class Recorder(StepObserver):
        pass

    for hook in hooks:
        setattr(Recorder, hook, lambda self, *args, hook=hook, **options: seen.append(hook))
    core = tiny.core(observers=(Recorder(),))
    collector = Collector(core)
    collector.add("a", random_prompt(5), max_tokens=2)
    collector.step()
    assert seen == ["after_add", "before_step", "before_dispatch", "after_dispatch", "after_step", "after_outputs"]
    seen.clear()
    collector.step()  # the second step is dispatched before the host reads the first
    processed = ["before_process", "after_process"]
    assert seen == ["before_step", "before_dispatch", "after_dispatch", *processed, "after_step", "after_outputs"]
    collector.run()
    assert seen.count("after_dispatch") + 1 == seen.count("after_process"), "the first was dispatched before the clear"
    core.abort(["a"])
    assert set(hooks) - set(seen) == {"after_add", "after_loss"}
