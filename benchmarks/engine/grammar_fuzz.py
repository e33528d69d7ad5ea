"""A random search for small grammars that take long to compile, or much memory: which the checker has to end.

    python benchmarks/engine/grammar_fuzz.py --tokenizer tokenizer.json --seconds 300

Grammars of up to a few hundred characters are made of what is known to cost: counts, classes, intersections, ranges and
multiples. Each is checked as the engine checks it, under --cpu seconds and --mib of memory. Printed are those that are
ended, or that took more than half of either, and those that `is_surely_cheap` calls so and that took over 50 ms of CPU.
"""

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.support.report import report
from palladio.runtime.grammar.backend import BackendSettings
from palladio.runtime.grammar.check_protocol import CheckLimits
from palladio.runtime.grammar.checker import GrammarChecker, TooExpensiveError
from palladio.runtime.grammar.cost import is_surely_cheap
from palladio.runtime.grammar.llguidance_backend import LlguidanceBackend
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar

EOS = 2
ATOMS = ("a", "b", ".", "[a-z]", "[^ab]", r"\w", r"\d", r"\p{L}", r"\p{Lu}\p{Ll}", "(a|b)", "(ab|ba)", "x?")
KEYS = ("a", "b", "c")
FORMATS = ("date-time", "email", "uri", "hostname", "ipv6", "uuid", "duration")


def regex(source: random.Random, depth: int = 3) -> str:
    if depth == 0 or source.random() < 0.2:
        return source.choice(ATOMS)
    inner = "".join(regex(source, depth - 1) for _ in range(source.randint(1, 3)))
    low, high = sorted(source.choice((0, 1, 2, 9, 30, 99, 300, 1000)) for _ in range(2))
    match source.randrange(5):
        case 0:
            return f"({inner}|{regex(source, depth - 1)})"
        case 1:
            return f"({inner})*"
        case 2:
            return f"({inner}){{{low},{high or 1}}}"
        case 3:
            return f"({inner})+{regex(source, depth - 1)}"
    return inner


def schema(source: random.Random, depth: int = 3) -> Any:
    if depth == 0 or source.random() < 0.3:
        return _leaf(source)
    parts = [schema(source, depth - 1) for _ in range(source.randint(1, 4))]
    match source.randrange(6):
        case 0:
            return {"type": "object", "properties": dict(zip(KEYS, parts, strict=False)), "required": ["a"]}
        case 1:
            return {"type": "array", "items": parts[0], "minItems": source.choice((0, 1, 50, 900)), "maxItems": 1000}
        case 2:
            return {source.choice(("anyOf", "oneOf", "allOf")): parts}
        case 3:
            return {"allOf": parts} | _leaf(source)
        case 4:
            return {"type": "object", "patternProperties": {regex(source, 2): part for part in parts}}
    return {"type": "array", "prefixItems": parts, "items": False}


def _leaf(source: random.Random) -> dict[str, Any]:
    numbers = [source.choice((1, -1)) * source.randrange(10 ** source.randint(1, 15)) for _ in range(2)]
    if source.random() < 0.5:
        numbers = [number / 10 ** source.randint(1, 9) for number in numbers]
    low, high = sorted(numbers)
    multiple = source.choice((0.01, 0.0625, 7, 64, 997, 4096, 9973))
    leaf: dict[str, Any] = {"type": source.choice(("integer", "number"))}
    match source.randrange(5):
        case 0:
            return leaf | {"multipleOf": multiple}
        case 1:
            return leaf | {"minimum": low, "maximum": high} | ({"multipleOf": multiple} if low < high else {})
        case 2:
            return {"type": "string", "pattern": regex(source)}
        case 3:
            counts = {"minLength": source.choice((0, 5, 100)), "maxLength": source.choice((100, 1000, 30_000))}
            return {"type": "string", "pattern": f"^{regex(source)}$"} | counts
    return {"type": "string", "format": source.choice(FORMATS), "maxLength": source.choice((10, 100, 1000))}


def lark(source: random.Random) -> str:
    terms = [f"/{regex(source)}/" for _ in range(3)]
    return f"start: (A {source.choice(('B', '~B'))[-1]}){{1,{source.choice((1, 30, 1000))}}}\n" + (
        f"A: {source.choice((f'{terms[0]} & {terms[1]}', f'~{terms[0]}', terms[0]))}\nB: {terms[2]} | A\n"
    )


def draw(source: random.Random) -> Grammar:
    match source.randrange(4):
        case 0:
            return Grammar("regex", regex(source, 4))
        case 1:
            return Grammar("lark", lark(source))
    return Grammar("json_schema", json.dumps(schema(source)))


def search(args: argparse.Namespace) -> dict[str, Any]:
    settings = BackendSettings(args.tokenizer.read_text(), args.vocab, (EOS,))
    checker, backend = GrammarChecker(lambda: settings), LlguidanceBackend(settings)
    source, limits = random.Random(args.seed), CheckLimits(args.cpu, args.mib << 20)
    findings, counts = [], {"judged": 0, "refused": 0, "ended": 0, "cheap": 0}
    until = time.monotonic() + args.seconds
    checker.check(Grammar("regex", "a"), limits)
    while time.monotonic() < until:
        grammar = draw(source)
        counts["judged"] += 1
        begun = time.monotonic()
        outcome = _check(checker, grammar, limits)
        seconds = time.monotonic() - begun
        counts["refused"] += outcome.startswith("refused")
        counts["ended"] += outcome == "ended"
        if outcome == "ended" or seconds > args.cpu / 2:
            findings.append({"kind": grammar.kind, "text": grammar.text, "outcome": outcome, "wall_s": seconds})
            print(f"{outcome} after {seconds:.2f} s: {grammar.kind} {grammar.text}", flush=True)
        elif is_surely_cheap(grammar) and outcome == "compiled":
            counts["cheap"] += 1
            begun = time.thread_time()
            backend.compile(grammar)
            if (cpu := time.thread_time() - begun) > 0.05:
                findings.append({"kind": grammar.kind, "text": grammar.text, "outcome": "not cheap", "cpu_s": cpu})
                print(f"not cheap, {cpu:.2f} s: {grammar.kind} {grammar.text}", flush=True)
    checker.close()
    return {"seed": args.seed, "counts": counts, "findings": findings}


def _check(checker: GrammarChecker, grammar: Grammar, limits: CheckLimits) -> str:
    try:
        checker.check(grammar, limits)
    except InvalidRequestError as error:
        return f"refused: {error}"[:100]
    except TooExpensiveError:
        return "ended"
    return "compiled"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", type=float, default=2.0, help="seconds that checking one may take")
    parser.add_argument("--mib", type=int, default=64, help="memory that one may hold")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    result = search(args)
    print(result["counts"])
    report("engine/grammar_fuzz.py", argv, result, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
