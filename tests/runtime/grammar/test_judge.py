"""The process that judges grammars: what it says, what it ends, and that it comes again."""

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
from palladio.runtime.grammar.judge import GrammarJudge, TooExpensiveError
from palladio.runtime.grammar.judge_protocol import JudgeLimits
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from tests.runtime.core.constrained import EOS
from tests.runtime.tiny_engine import VOCAB_SIZE

LIMITS = JudgeLimits(cpu_seconds=5.0, num_bytes=1 << 26)
PLAIN = Grammar("regex", "[a-z]+")
MULTIPLES = [{"multipleOf": 4000 + number} for number in range(12)]  # 48,000 states
LARGE = Grammar("json_schema", json.dumps({"prefixItems": MULTIPLES}))


@pytest.fixture(scope="module")
def judge(tiny_dir: Path) -> Iterator[GrammarJudge]:
    settings = BackendSettings((tiny_dir / "tokenizer.json").read_text(), VOCAB_SIZE, (EOS,), JsonFormat())
    judge = GrammarJudge(lambda: settings)
    yield judge
    judge.close()


def test_bytes_are_measured(judge: GrammarJudge) -> None:
    small, large = judge.judge(PLAIN, LIMITS), judge.judge(LARGE, LIMITS)
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
def test_refusals_are_the_compilers(judge: GrammarJudge, grammar: Grammar, message: str, param: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        judge.judge(grammar, LIMITS)
    assert caught.value.param == param


def test_what_cannot_go_on_is_refused_at_once(judge: GrammarJudge) -> None:
    """It compiles, and its outputs would end with an error after a token or two."""
    lists = [{"type": "array", "items": {"type": "array", "items": {"const": number}}} for number in range(1300)]
    with pytest.raises(InvalidRequestError, match=r"cannot be used: within 1 tokens|takes .* s to say"):
        judge.judge(Grammar("json_schema", json.dumps({"anyOf": lists})), LIMITS)


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
def test_small_grammars_that_take_long(judge: GrammarJudge, rule: str) -> None:
    """No bound of the library's, nor one of ours, sees them coming."""
    begun = time.monotonic()
    with contextlib.suppress(TooExpensiveError, InvalidRequestError):
        judge.judge(Grammar("lark", f"start: A\n{rule}\n"), JudgeLimits(cpu_seconds=0.3, num_bytes=1 << 26))
    assert time.monotonic() - begun < 15.0
    judge.judge(PLAIN, LIMITS)


@pytest.mark.parametrize(
    "limits", [JudgeLimits(cpu_seconds=0.02, num_bytes=1 << 30), JudgeLimits(cpu_seconds=20.0, num_bytes=1 << 20)]
)
def test_limits(judge: GrammarJudge, limits: JudgeLimits) -> None:
    pid = judge.pid
    with pytest.raises(TooExpensiveError):
        judge.judge(LARGE, limits)
    judge.judge(PLAIN, LIMITS)
    assert judge.pid == pid is not None, "only the child was ended"


def test_it_comes_again(judge: GrammarJudge) -> None:
    judge.judge(PLAIN, LIMITS)
    assert judge.pid is not None
    os.kill(judge.pid, signal.SIGKILL)
    judge.judge(PLAIN, LIMITS)


def test_it_ends_with_its_engine(tiny_dir: Path) -> None:
    settings = BackendSettings((tiny_dir / "tokenizer.json").read_text(), VOCAB_SIZE, (EOS,))
    judge = GrammarJudge(lambda: settings)
    judge.judge(PLAIN, LIMITS)
    process, control = judge._process, judge._control
    assert process is not None
    assert control is not None
    control.close()  # as when the engine is killed
    process.wait(30)
    judge.close()
    with pytest.raises(RuntimeError, match="closed"):
        judge.judge(PLAIN, LIMITS)


def test_a_process_that_does_not_start() -> None:
    judge = GrammarJudge(lambda: BackendSettings("no tokenizer", VOCAB_SIZE, (EOS,)))
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="ends before it answers"):
        judge.judge(PLAIN, LIMITS)
    assert time.monotonic() - begun < 60
    judge.close()


def test_it_imports_no_jax() -> None:
    code = "import sys, palladio.runtime.grammar.judge_process; assert not {'jax', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
