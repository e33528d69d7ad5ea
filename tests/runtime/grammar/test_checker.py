"""The process that checks grammars: what it says, what it ends, and that it comes again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.runtime.grammar.backend import BackendSettings, JsonFormat
from palladio.runtime.grammar.check_protocol import CheckLimits
from palladio.runtime.grammar.checker import GrammarChecker, TooExpensiveError
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from tests.runtime.core.constrained import EOS
from tests.runtime.tiny_engine import VOCAB_SIZE

LIMITS = CheckLimits(cpu_seconds=5.0, num_bytes=1 << 26)
PLAIN = Grammar("regex", "[a-z]+")
MULTIPLES = [{"multipleOf": 4000 + number} for number in range(12)]  # 48,000 states
LARGE = Grammar("json_schema", json.dumps({"prefixItems": MULTIPLES}))


@pytest.fixture(scope="module")
def checker(tiny_dir: Path) -> Iterator[GrammarChecker]:
    settings = BackendSettings((tiny_dir / "tokenizer.json").read_text(), VOCAB_SIZE, (EOS,), JsonFormat())
    checker = GrammarChecker(lambda: settings)
    yield checker
    checker.close()


def test_bytes_are_measured(checker: GrammarChecker) -> None:
    small, large = checker.check(PLAIN, LIMITS), checker.check(LARGE, LIMITS)
    assert small < 1 << 21
    assert large > small + (1 << 23)


@pytest.mark.parametrize(
    ("grammar", "message", "param"),
    [
        (Grammar("regex", "(a"), "unclosed group", "grammar"),
        (Grammar("regex", "\ud800"), "malformed|cannot", "grammar"),
        (Grammar("json_schema", '{"multipleOf": 99999}'), "at #: multipleOf 99999", "grammar"),
        (Grammar("lark", 'start: "a"', (("tools.0", '{"multipleOf": 99999}'),)), "tools.0 at #", "tools.0"),
        (Grammar("lark", 'start: %json {"multipleOf": 99999}'), "multipleOf 99999", "grammar"),
        (
            Grammar("structural_tag", '{"structures": [{"schema": {"items": {"multipleOf": 99999}}}]}'),
            "structures.0.schema at #/items",
            "grammar",
        ),
    ],
)
def test_refusals_are_the_compilers(checker: GrammarChecker, grammar: Grammar, message: str, param: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        checker.check(grammar, LIMITS)
    assert caught.value.param == param


def test_what_cannot_go_on_is_refused_at_once(checker: GrammarChecker) -> None:
    """It compiles, and its outputs would end with an error after a token or two."""
    lists = [{"type": "array", "items": {"type": "array", "items": {"const": number}}} for number in range(1300)]
    with pytest.raises(InvalidRequestError, match=r"cannot be used: within 1 tokens|takes .* s to say"):
        checker.check(Grammar("json_schema", json.dumps({"anyOf": lists})), LIMITS)


FOUND = [  # by benchmarks/engine/grammar_fuzz.py
    (
        r"A: /(((\w\w)+(ab|ba)|(.b.)*)(\p{Lu}\p{Ll}(ab|ba)((a|b).\d)+\p{L}((ab|ba)\w|a)){0,1}|((ab|ba)[a-z]([^ab])*)+"
        r"\p{L})/"
        r" & /(([^ab]\w(a|b))*.){9,99}(((a|b)\p{Lu}\p{Ll}[^ab]|[a-z])\da\d\d|((a|b)\db|b))\d\d\d((ab|ba)[^ab]x?)*/"
    ),
    r"A: /((\w(ab|ba)(x?[a-z]){2,30}(\d)*){0,1000})*/ & /((\w)*(((ab|ba)|\p{Lu}\p{Ll})x?[^ab]b)+.(a|b))*/",
    r"A: /((\p{L})+([^ab](a|b).){1,1000}|(b)*)/ & /(((x?[a-z]b)*|(\w|\p{L})))+((x?\p{L}b){300,1000}|\w)/",
]


@pytest.mark.parametrize("rule", FOUND)
def test_small_grammars_that_take_long(checker: GrammarChecker, rule: str) -> None:
    """No bound of the library's, nor one of ours, sees them coming."""
    begun = time.monotonic()
    with contextlib.suppress(TooExpensiveError, InvalidRequestError):
        checker.check(Grammar("lark", f"start: A\n{rule}\n"), CheckLimits(cpu_seconds=0.3, num_bytes=1 << 26))
    assert time.monotonic() - begun < 15.0
    checker.check(PLAIN, LIMITS)


@pytest.mark.parametrize(
    "limits", [CheckLimits(cpu_seconds=0.02, num_bytes=1 << 30), CheckLimits(cpu_seconds=20.0, num_bytes=1 << 20)]
)
def test_limits(checker: GrammarChecker, limits: CheckLimits) -> None:
    pid = checker.pid
    with pytest.raises(TooExpensiveError):
        checker.check(LARGE, limits)
    checker.check(PLAIN, LIMITS)
    assert checker.pid == pid is not None, "only the child was ended"


def test_it_comes_again(checker: GrammarChecker) -> None:
    checker.check(PLAIN, LIMITS)
    assert checker.pid is not None
    os.kill(checker.pid, signal.SIGKILL)
    checker.check(PLAIN, LIMITS)


def test_it_ends_with_its_engine(tiny_dir: Path) -> None:
    settings = BackendSettings((tiny_dir / "tokenizer.json").read_text(), VOCAB_SIZE, (EOS,))
    checker = GrammarChecker(lambda: settings)
    checker.check(PLAIN, LIMITS)
    process, control = checker._process, checker._control
    assert process is not None
    assert control is not None
    control.close()  # as when the engine is killed
    process.wait(30)
    checker.close()
    with pytest.raises(RuntimeError, match="closed"):
        checker.check(PLAIN, LIMITS)


def test_a_process_that_does_not_start() -> None:
    checker = GrammarChecker(lambda: BackendSettings("no tokenizer", VOCAB_SIZE, (EOS,)))
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="ends before it answers"):
        checker.check(PLAIN, LIMITS)
    assert time.monotonic() - begun < 60
    checker.close()


def test_it_imports_no_jax() -> None:
    code = "import sys, palladio.runtime.grammar.check_process; assert not {'jax', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
