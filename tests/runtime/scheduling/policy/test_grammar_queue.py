"""The queue where requests wait for their grammar: refusals, limits, and who goes on meanwhile."""

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.grammar.cache import Compilation
from palladio.runtime.grammar.compiler import GrammarCompiler
from palladio.runtime.interface.errors import InvalidRequestError, OverloadedError
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.policy import grammar_queue
from palladio.runtime.scheduling.policy.grammar_queue import GrammarQueue
from palladio.runtime.scheduling.state.request import Request
from tests.runtime.core.constrained import EOS, FRANCE, run
from tests.runtime.tiny_engine import Collector, TinyEngine, random_prompt


def test_refused_grammars(tiny: TinyEngine) -> None:
    requests = {
        "bad": {"prompt": random_prompt(6), "grammar": Grammar("regex", "(a")},
        "schema": {"prompt": random_prompt(6), "grammar": Grammar("json_schema", '{"properties": {"x": {"not": {}}}}')},
        "good": {"prompt": random_prompt(6), "grammar": FRANCE, "max_tokens": 60},
    }
    finish = run(tiny, requests).finish
    assert (finish["bad"].type, finish["bad"].status, finish["bad"].param) == ("abort", 400, "grammar")
    assert "unclosed group" in finish["bad"].message
    assert "#/properties/x" in finish["schema"].message
    assert finish["good"].type == "stop"


def test_requests_that_wait_for_their_grammar(tiny: TinyEngine) -> None:
    core = tiny.core()
    collector = Collector(core)
    for name in ("gone", "kept"):
        collector.add(name, random_prompt(6), grammar=Grammar("regex", "(yes|no) " + name), max_tokens=60)
    assert core.has_work
    assert (core.stats().total.num_waiting, core.stats().total.num_waiting_tokens) == (2, 12)
    (state,) = core.explain(["gone"])
    assert (state.status, state.prompt_tokens) == ("waiting", 6)
    core.abort(["gone", "nobody"])
    collector.run()
    assert "gone" not in collector.finish
    assert collector.finish["kept"].type == "stop"


def test_a_grammar_that_takes_too_long(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request's own deadline, then the queue's; and neither keeps another from its turn."""
    core = tiny.core()
    never = Compilation()
    monkeypatch.setattr(core._grammars._compiler, "compile", lambda grammar, owner: never)
    collector = Collector(core)
    options = RequestOptions(timeout=0.05)
    collector.add("late", random_prompt(6), grammar=FRANCE, options=options, received=time.time())
    collector.add("slow", random_prompt(6), grammar=FRANCE)
    collector.add("plain", random_prompt(6))
    while len(collector.finish) < 2:
        collector.step()
    assert collector.finish["plain"].type == "length"
    assert collector.finish["late"].status == 504
    collector.add("slower", random_prompt(6), grammar=FRANCE)
    monkeypatch.setattr(grammar_queue, "MAX_SECONDS", 0.0)
    while "slow" not in collector.finish:
        collector.step()
    assert collector.finish["slow"].status == 503, "no thread has taken it up"
    collector.run()


def test_a_grammar_that_is_taken_up_and_takes_too_long(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    core = tiny.core()
    slow = Compilation()
    slow.result.set_running_or_notify_cancel()
    slow.started = time.monotonic() - 2 * grammar_queue.MAX_SECONDS
    monkeypatch.setattr(core._grammars._compiler, "compile", lambda grammar, owner: slow)
    collector = Collector(core)
    collector.add("a", random_prompt(6), grammar=FRANCE)
    collector.run()
    assert collector.finish["a"].status == 400
    assert "did not compile within" in collector.finish["a"].message


def test_what_nobody_waits_for_is_not_compiled(tiny_dir: Path) -> None:
    """Grammars of requests that went away do not keep others from their turn."""
    release, compiled = threading.Event(), []

    class Slow:
        def compile(self, grammar: Grammar) -> Any:
            compiled.append(grammar.text)
            release.wait(30)
            raise InvalidRequestError("no")

        def fill(self, matchers: Any, masks: Any) -> None:
            raise AssertionError

    queue = GrammarQueue(GrammarCompiler(Slow), (EOS,))
    params = SamplingParams(max_tokens=5, seed=0)
    for number in range(12):
        grammar = Grammar("regex", f"a{number % 10}")
        message = GenerationRequest(str(number), [5], dataclasses.replace(params, grammar=grammar), (), 0.0)
        queue.add(Request.of(message))
    for number in range(10):  # 10 and 11 wait for the grammars of 0 and 1
        queue.abort(str(number))
    release.set()
    ended = set()
    while len(ended) < 2:
        ended |= {request.given.request_id for request, failure in queue.take(wait=True) if failure is not None}
    assert ended == {"10", "11"}
    assert len(set(compiled)) < 10, "those that no thread had begun are not begun"
    queue.close()


def test_a_library_that_fails(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request hears of it, and nobody else."""
    core = tiny.core()
    broken = Compilation()
    broken.result.set_exception(ImportError("No module named 'llguidance'"))
    monkeypatch.setattr(core._grammars._compiler, "compile", lambda grammar, owner: broken)
    collector = Collector(core)
    collector.add("a", random_prompt(6), grammar=FRANCE)
    collector.add("plain", random_prompt(6))
    collector.run()
    assert (collector.finish["a"].type, collector.finish["a"].status) == ("abort", 500)
    assert "llguidance" in collector.finish["a"].message
    assert collector.finish["plain"].type == "length"


def test_a_full_queue(tiny: TinyEngine) -> None:
    core = tiny.core(max_queued_requests=2)
    collector = Collector(core)
    for number in range(2):
        collector.add(str(number), random_prompt(6), grammar=FRANCE, max_tokens=60)
    for grammar in (FRANCE, None):  # those that wait for their grammar count, whoever comes
        with pytest.raises(OverloadedError, match="queue is full"):
            collector.add("late", random_prompt(6), grammar=grammar, max_tokens=60)
    collector.tokens.pop("late", None)
    collector.run()
    assert [finish.type for finish in collector.finish.values()] == ["stop"] * 2
