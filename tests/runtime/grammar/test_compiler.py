"""GrammarCompiler: who waits for whom, what is known, and how many bytes are kept."""

import concurrent.futures
import gc
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.grammar.backend import BackendSettings
from palladio.runtime.grammar.cache import MAX_KEPT, MAX_KEPT_TEXT, Compilation
from palladio.runtime.grammar.check_protocol import CheckLimits
from palladio.runtime.grammar.checker import TooExpensiveError
from palladio.runtime.grammar.compiler import GrammarCompiler
from palladio.runtime.grammar.cost import is_surely_cheap
from palladio.runtime.grammar.llguidance_backend import LlguidanceBackend
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError, OverloadedError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.telemetry.process_memory import give_back, private_bytes
from tests.many_devices import call_in_new_process
from tests.runtime.core.constrained import EOS, run
from tests.runtime.tiny_engine import VOCAB_SIZE, TinyEngine, random_prompt

PLAIN = Grammar("regex", "[a-z]+")
MIB = 1 << 20


class Compiled:
    def new_matcher(self) -> Any:
        return Matcher(self)


class Matcher:
    def __init__(self, source: Compiled) -> None:
        self.source = source


class Backend:
    def compile(self, grammar: Grammar) -> Compiled:
        return Compiled()

    def fill(self, matchers: Any, masks: Any) -> None:
        raise AssertionError


class FakeChecker:
    """Every grammar takes as many seconds of CPU, and bytes, as its text says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released = threading.Event()

    def check(self, grammar: Grammar, limits: CheckLimits) -> int:
        self.asked.append(grammar.text)
        seconds, num_bytes = (float(word) for word in grammar.text.split()[:2])
        if seconds > limits.cpu_seconds:
            time.sleep(limits.cpu_seconds)
            raise TooExpensiveError
        if num_bytes < 0:
            raise InvalidRequestError("refused", param="grammar")
        return int(num_bytes)

    def close(self) -> None:
        self.released.set()


def expensive(seconds: float, num_bytes: int = 0, name: str = "") -> Grammar:
    return Grammar("ebnf", f"{seconds} {num_bytes} {name}")


@pytest.fixture
def checker() -> FakeChecker:
    return FakeChecker()


@pytest.fixture
def make(checker: FakeChecker) -> Any:
    made = []

    def make(**options: Any) -> GrammarCompiler:
        made.append(GrammarCompiler(Backend, checker, **options))
        return made[-1]

    yield make
    for compiler in made:
        compiler.close()


def elapsed(compilations: list[Compilation]) -> float:
    begun = time.monotonic()
    concurrent.futures.wait([compilation.result for compilation in compilations], 60)
    return time.monotonic() - begun


def test_plain_grammars_wait_for_no_expensive_ones(make: Callable[..., GrammarCompiler]) -> None:
    """Neither those of others nor the owner's own."""
    compiler = make(max_cpu_seconds=5.0)
    hostile = [compiler.compile(expensive(100, name=str(number)), "mallory") for number in range(100)]
    time.sleep(0.5)
    assert elapsed([compiler.compile(PLAIN, "alice")]) < 1.0
    assert elapsed([compiler.compile(Grammar("regex", "[0-9]+"), "mallory")]) < 1.0
    assert not any(compilation.result.done() for compilation in hostile)


def test_checked_ones_of_others_are_not_delayed(make: Callable[..., GrammarCompiler]) -> None:
    """Behind a hundred that each take all the time that they may: in the quick pool, and in the slow one."""
    compiler = make(max_cpu_seconds=0.5)
    hostile = [compiler.compile(expensive(100, name=str(number)), "mallory") for number in range(100)]
    assert elapsed([compiler.compile(expensive(0.0), "alice")]) < 3.0
    assert elapsed([compiler.compile(expensive(0.3), "alice")]) < 5.0
    assert sum(compilation.result.done() for compilation in hostile) < 50


def test_a_few_of_the_same_owner_do_not_keep_the_next_one(make: Callable[..., GrammarCompiler]) -> None:
    compiler = make(max_cpu_seconds=10.0)
    hostile = [compiler.compile(expensive(100, name=str(number))) for number in range(8)]
    assert elapsed([compiler.compile(expensive(0.0))]) < 5.0
    assert not any(compilation.result.done() for compilation in hostile)


def test_what_is_too_expensive_is_refused_and_known(make: Callable[..., GrammarCompiler], checker: FakeChecker) -> None:
    compiler = make(max_cpu_seconds=0.2)
    error = compiler.compile(expensive(100)).result.exception(60)
    assert isinstance(error, InvalidRequestError)
    assert "takes more than 0.2 s, or 64 MiB of memory, to compile: " in str(error)
    assert error.param == "grammar"
    num_asked = len(checker.asked)
    for number in range(600):  # until it is forgotten but for its result
        compiler.compile(Grammar("regex", f"a{number}")).result.result(60)
    assert isinstance(compiler.compile(expensive(100)).result.exception(60), InvalidRequestError)
    assert len(checker.asked) == num_asked


def test_the_message_names_what_to_simplify(make: Callable[..., GrammarCompiler], checker: FakeChecker) -> None:
    schema = {"properties": {"x": {"type": "string", "pattern": "a"}, "n": {"type": "array", "minItems": 5000}}}
    grammar = Grammar("json_schema", json.dumps(schema))
    checker.check = lambda grammar, limits: (_ for _ in ()).throw(TooExpensiveError)  # type: ignore[method-assign]
    error = str(make().compile(grammar).result.exception(60))
    assert "#/properties/x/pattern" in error
    assert "#/properties/n/minItems" in error


def test_what_no_request_waits_for_is_not_compiled(make: Callable[..., GrammarCompiler], checker: FakeChecker) -> None:
    compiler = make(max_cpu_seconds=1.0)
    grammars = [expensive(100, name=str(number)) for number in range(12)]
    compilations = [compiler.compile(grammar) for grammar in grammars]
    while len(checker.asked) < 12:  # all once, some of them again
        time.sleep(0.01)
    for grammar, compilation in zip(grammars, compilations, strict=True):
        compiler.give_up(grammar, compilation)
    elapsed(compilations)
    assert len(checker.asked) < 18


def test_a_check_without_an_answer_is_no_result(make: Callable[..., GrammarCompiler], checker: FakeChecker) -> None:
    def busy(grammar: Grammar, limits: CheckLimits) -> int:
        raise OverloadedError("busy")

    working, checker.check = checker.check, busy  # type: ignore[method-assign]
    compiler = make()
    compilation = compiler.compile(expensive(0))
    assert isinstance(compilation.result.exception(60), OverloadedError)
    compiler.give_up(expensive(0), compilation)  # as the queue does when its requests have heard of it
    checker.check = working  # type: ignore[method-assign]
    assert compiler.compile(expensive(0)).result.exception(60) is None


def test_bytes_are_bounded(make: Callable[..., GrammarCompiler]) -> None:
    compiler = make(max_bytes=100 * MIB)
    for number in range(40):
        compiler.compile(expensive(0, 10 * MIB, str(number))).result.result(60)
        compiler.has_room(Compilation())
        assert compiler.num_bytes <= 100 * MIB
    assert compiler.num_kept == 10
    again = compiler.compile(expensive(0, 10 * MIB, "39"))
    assert again.result.done(), "those used last are kept"


def test_small_grammars_are_bounded_by_their_number_and_the_length_of_their_texts(
    make: Callable[..., GrammarCompiler],
) -> None:
    compiler = make()
    for number in range(MAX_KEPT + 20):
        compiler.compile(Grammar("regex", f"a{number}")).result.result(60)
    assert compiler.num_kept == MAX_KEPT
    for number in range(20):
        compiler.compile(expensive(0, name=f"{number:0{MAX_KEPT_TEXT // 10}}")).result.result(60)
    assert compiler.num_kept <= 10


def test_bytes_in_use_count_until_the_output_ends(make: Callable[..., GrammarCompiler]) -> None:
    compiler = make(max_bytes=64 * MIB)
    matchers = []
    for number in itertools.count():
        compilation = compiler.compile(expensive(0, 15 * MIB, str(number)))
        compilation.result.exception(60)
        if not compiler.has_room(compilation):
            break
        matchers.append(compilation.result.result().new_matcher())
    assert len(matchers) == 4
    small = compiler.compile(PLAIN)
    small.result.exception(60)
    assert compiler.has_room(small)
    compiler.flush()
    del compilation, small
    gc.collect()
    assert compiler.num_bytes == 60 * MIB
    del matchers[:]
    gc.collect()
    assert compiler.num_bytes == 0


def test_flushing_frees(make: Callable[..., GrammarCompiler], checker: FakeChecker) -> None:
    compiler = make()
    compiler.compile(expensive(0, 10 * MIB)).result.result(60)
    assert compiler.num_bytes == 10 * MIB
    compiler.flush()
    gc.collect()
    assert (compiler.num_bytes, compiler.num_kept) == (0, 0)
    compiler.compile(expensive(0, 10 * MIB)).result.result(60)
    assert len(checker.asked) == 2


def growth_and_rest(folder: str) -> tuple[int, int]:
    """Bytes by which compiling grammars makes this process grow, and those that a flush leaves of them."""
    settings = BackendSettings((Path(folder) / "tokenizer.json").read_text(), VOCAB_SIZE, (EOS,))
    compiler = GrammarCompiler(lambda: LlguidanceBackend(settings))
    compiler.compile(PLAIN).result.result(60)
    give_back()
    before = private_bytes()
    for number in range(3):
        multiples = [{"multipleOf": 4000 + 20 * number + part} for part in range(10)]
        compiler.compile(Grammar("json_schema", json.dumps({"prefixItems": multiples}))).result.result(60)
    grown = private_bytes() - before
    compiler.flush()
    gc.collect()
    give_back()  # as the next flush would: a thread may have held the last one
    rest = private_bytes() - before
    compiler.close()
    return grown, rest


@pytest.mark.slow  # measures memory
def test_flushing_gives_memory_back(tiny_dir: Path) -> None:
    """To the system, not only to the process: one of its own, for what other tests have left comes and goes too."""
    grown, rest = call_in_new_process(__name__, "growth_and_rest", str(tiny_dir))
    assert grown > 30 * MIB
    assert rest < grown / 2


@pytest.mark.parametrize(
    ("kind", "text", "cheap"),
    [
        ("regex", "(yes|no)+", True),
        ("regex", "(a{1,1000}){1,1000}", False),
        ("regex", "a" * 2000, False),
        ("choice", '["a", "b"]', True),
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 50}}}', True),
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "string", "pattern": "a"}}}', False),
        ("json_schema", '{"properties": {"a": {"$ref": "#/other"}}, "other": {"multipleOf": 3}}', False),
        ("json_schema", '{"multipleOf": 3}', False),
        ("json_schema", '{"maxItems": 100000}', False),
        ("json_schema", '{"format": "uri", "maxLength": 10}', False),
        ("json_schema", json.dumps({"enum": [str(number) for number in range(5000)]}), False),
        ("json_schema", "{", True),
        ("json_schema", "[" * 3000, True),
        ("ebnf", 'root ::= "a"', False),
    ],
)
def test_what_is_surely_cheap(kind: Any, text: str, cheap: bool) -> None:
    assert is_surely_cheap(Grammar(kind, text)) == cheap


def test_a_tools_grammar_is_as_cheap_as_its_schemas() -> None:
    assert is_surely_cheap(Grammar("lark", "start: x", (("tools.0", '{"type": "object"}'),)))
    assert not is_surely_cheap(Grammar("lark", "start: x", (("tools.0", '{"pattern": "a"}'),)))


def test_a_cache_that_holds_nothing() -> None:
    with pytest.raises(ConfigError, match="--grammar-cache-bytes"):
        EngineConfig.from_flags({"model_path": "x", "grammar_cache_bytes": 1000})


def test_an_engine_under_hostile_schemas(tiny: TinyEngine) -> None:
    """Each is refused by itself, and the plain one is answered; then flushing frees all bytes."""
    hostile = {
        "multiple": {"type": "integer", "multipleOf": 4_999_999},
        "together": {"type": "integer", "allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
        "optional": {"type": "object", "properties": {f"p{number}": {} for number in range(2000)}},
    }
    requests: dict[str, Any] = {
        name: {"prompt": random_prompt(6), "grammar": Grammar("json_schema", json.dumps(schema))}
        for name, schema in hostile.items()
    }
    pattern = Grammar("json_schema", '{"type": "string", "pattern": "^(yes|no)$"}')
    requests["plain"] = {"prompt": random_prompt(6), "grammar": Grammar("regex", "(yes|no)"), "max_tokens": 20}
    requests["checked"] = {"prompt": random_prompt(6), "grammar": pattern, "max_tokens": 20}
    collector = run(tiny, requests)
    for name in hostile:
        assert (collector.finish[name].type, collector.finish[name].status) == ("abort", 400)
        assert "at #: " in str(collector.finish[name].message)
    assert {collector.finish[name].type for name in ("plain", "checked")} == {"stop"}
    core = collector.core
    assert core.stats().grammar_bytes > 0
    core.flush_cache()
    gc.collect()
    assert core.stats().grammar_bytes == 0
