"""What grammars cost: time of the masks, throughput with all requests constrained, and which JSON schemas are taken.

    python benchmarks/engine/grammars.py masks --tokenizer tokenizer.json
    python benchmarks/engine/grammars.py throughput --requests 16 --tokens 48 --turns 6
    python benchmarks/engine/grammars.py attack --tokenizer tokenizer.json
    python benchmarks/engine/grammars.py schemas --suite jsonschema-4.26.0/json/tests/draft2020-12

`masks` wants a tokenizer.json of the size that matters (the vocabulary is padded to --vocab). `throughput` runs a model
with random weights and that vocabulary in this process, first without and then with grammars, in turns. `attack` sends
hostile grammars of one owner, and measures how long plain ones of the same and of another owner wait behind them.
`schemas` walks JSON-Schema-Test-Suite, which is in the source distribution of jsonschema on PyPI.
"""

import argparse
import collections
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import numpy as np

from benchmarks.support.report import report
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.grammar.backend import BackendSettings
from palladio.runtime.grammar.cache import Compilation
from palladio.runtime.grammar.checker import GrammarChecker
from palladio.runtime.grammar.compiler import GrammarCompiler
from palladio.runtime.grammar.llguidance_backend import LlguidanceBackend
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.interface.request.sampling_params import SamplingParams

EOS = 2
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "id": {"type": "string", "format": "uuid"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "age", "id", "tags", "address"],
}
PEOPLE = Grammar("json_schema", json.dumps({"type": "array", "items": PERSON, "minItems": 10_000}))
MODEL = {  # as small as its vocabulary lets it be: what grammars add is as large as it can be against it
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": EOS,
}


def measure_masks(backend: LlguidanceBackend, num_requests: int, num_steps: int) -> dict[str, float]:
    """Milliseconds of one step's masks, over random outputs that each begin anew when they end."""
    compiled = backend.compile(Grammar("json_schema", json.dumps(PERSON)))
    matchers = [compiled.new_matcher() for _ in range(num_requests)]
    random = np.random.default_rng(0)
    fill, accept = [], []
    for _ in range(num_steps):
        masks = np.full((num_requests, backend.mask_width), -1, np.int32)
        start = time.perf_counter()
        backend.fill(list(zip(matchers, range(num_requests), strict=True)), masks)
        fill.append(time.perf_counter() - start)
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
        spent = 0.0
        for row in range(num_requests):
            token_id = int(random.choice(np.nonzero(bits[row])[0]))
            start = time.perf_counter()
            matchers[row].accept(token_id)
            matchers[row].forced()
            spent += time.perf_counter() - start
            if matchers[row].is_stopped:
                matchers[row] = compiled.new_matcher()
        accept.append(spent)
    return {
        "requests": num_requests,
        "mask_p50_ms": 1e3 * float(np.percentile(fill, 50)),
        "mask_p99_ms": 1e3 * float(np.percentile(fill, 99)),
        "accept_p50_ms": 1e3 * float(np.percentile(accept, 50)),
        "accept_p99_ms": 1e3 * float(np.percentile(accept, 99)),
    }


def masks(args: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    backend = LlguidanceBackend(BackendSettings(args.tokenizer.read_text(), args.vocab, (EOS,)))
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    backend.compile(Grammar("json_schema", json.dumps(PERSON)))
    compiled = time.perf_counter() - start
    rows = [measure_masks(backend, count, args.steps) for count in args.requests]
    return {
        "tokenizer_s": loaded,
        "compile_ms": 1e3 * compiled,
        "vocabulary": args.vocab,
        "steps": args.steps,
        "rows": rows,
    }


def throughput(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second without and with grammars, and the ratio of each turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        config = MODEL | {"vocab_size": args.vocab} | json.loads(args.model)
        (path / "config.json").write_text(json.dumps(config))
        (path / "tokenizer.json").write_text(args.tokenizer.read_text())
        flags = {
            "model_path": folder,
            "load_format": "dummy",
            "max_running_requests": args.count,
            "max_total_tokens": args.count * (args.tokens + 64),
            "context_length": args.tokens + 64,
            "chunked_prefill_size": 256,
            "compile": "full",
        }
        core = EngineCore.create(EngineConfig.from_flags(flags), lambda progress: None)
        _run(core, args, None), _run(core, args, PEOPLE)
        turns = []
        for number in range(args.turns):
            order = (None, PEOPLE) if number % 2 else (PEOPLE, None)
            rates = {grammar: _run(core, args, grammar) for grammar in order}
            turns.append({"plain": rates[None], "constrained": rates[PEOPLE], "ratio": rates[PEOPLE] / rates[None]})
            print({name: round(value, 3) for name, value in turns[-1].items()}, flush=True)
        core.close()
    ratios = [turn["ratio"] for turn in turns]
    return {
        "requests": args.count,
        "tokens_each": args.tokens,
        "model": config,
        "turns": turns,
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": np.percentile(ratios, [25, 75]).tolist(),
    }


def _run(core: EngineCore, args: argparse.Namespace, grammar: Grammar | None) -> float:
    """Output tokens per second of wall time, prefill included."""
    random = np.random.default_rng(0)
    for number in range(args.count):
        params = SamplingParams(max_tokens=args.tokens, temperature=1.0, seed=number, grammar=grammar)
        prompt = random.integers(3, 1000, 16).tolist()
        core.add(GenerationRequest(f"r{number}", prompt, params, (), time.time()))
    start, num_tokens = time.perf_counter(), 0
    while core.has_work:
        for output in by_request(core.step()):
            assert output.finish is None or output.finish.type == "length", output.finish
            num_tokens += len(output.token_ids)
    seconds = time.perf_counter() - start
    core.flush_cache()
    return num_tokens / seconds


def hostile(number: int) -> dict[str, Grammar]:
    """Small grammars that cost much, as different from those of other numbers as the cache of verdicts looks at."""
    schemas = {
        "multipleOf 4999999": {"type": "integer", "multipleOf": 4_999_999 - number},
        "lcm 988027": {"type": "integer", "allOf": [{"multipleOf": 997}, {"multipleOf": 991}], "title": str(number)},
        "multipleOf 9973 in a range": {"type": "integer", "multipleOf": 9973, "minimum": 10**11 + number},
        "five multiples": {"prefixItems": [{"type": "integer", "multipleOf": 9900 + i} for i in range(5)]},
        "20,000 integers": {"enum": [i * 7919 + number for i in range(20_000)]},
        "1,300 lists of lists": {
            "anyOf": [{"type": "array", "items": {"type": "array", "items": {"const": i}}} for i in range(1300)]
        },
        "2,000 optional properties": {"type": "object", "properties": {f"p{i}": {} for i in range(2000)}},
        "1,000 optional properties": {"type": "object", "properties": {f"p{number}-{i}": {} for i in range(1000)}},
        "six patterns at once": {"type": "string", "allOf": [{"pattern": f"{a}.*{a}{number}"} for a in "abcdef"]},
    }
    found = [  # by grammar_fuzz.py
        r"/((\w(ab|ba)(x?[a-z]){2,30}(\d)*){0,1000})*/ & /((\w)*(((ab|ba)|\p{Lu}\p{Ll})x?[^ab]b)+.(a|b))*/",
        r"/((\p{L})+([^ab](a|b).){1,1000}|(b)*)/ & /(((x?[a-z]b)*|(\w|\p{L})))+((x?\p{L}b){300,1000}|\w)/",
    ]
    grammars = {name: Grammar("json_schema", json.dumps(schema)) for name, schema in schemas.items()}
    grammars |= {f"found {i}": Grammar("lark", f'start: A "{number}"\nA: {rule}\n') for i, rule in enumerate(found)}
    return grammars | {"nested counts": Grammar("regex", f"((.{{1,1000}}){{1,1000}}b{number}){{1,1000}}")}


def attack(args: argparse.Namespace) -> dict[str, Any]:
    """What becomes of each hostile grammar; then plain ones behind a hundred of them."""
    settings = BackendSettings(args.tokenizer.read_text(), args.vocab, (EOS,))
    compiler = GrammarCompiler(lambda: LlguidanceBackend(settings), GrammarChecker(lambda: settings))
    _wait(compiler.compile(Grammar("ebnf", 'root ::= "a"')))
    before, rows = _rss_mib(), []
    for name, grammar in hostile(0).items():
        begun = time.perf_counter()
        outcome = _wait(compiler.compile(grammar, "mallory"))
        rows.append({"grammar": name, "seconds": time.perf_counter() - begun, "outcome": outcome})
        print(rows[-1], flush=True)
    crowd = [compiler.compile(grammar, "mallory") for number in range(1, 10) for grammar in hostile(number).values()]
    waits: dict[str, float] = {}
    for number, owner in enumerate(("mallory", "alice") * 5):
        plain = {
            "regex": Grammar("regex", f"[a-z]+{number}"),
            "judged": Grammar("json_schema", json.dumps({"type": "string", "pattern": f"^[a-z]+{number}$"})),
        }
        for kind, grammar in plain.items():
            begun = time.perf_counter()
            assert _wait(compiler.compile(grammar, owner)) == "compiled"
            row = f"{kind} of {'the same owner' if owner == 'mallory' else 'another owner'}"
            waits[row] = max(waits.get(row, 0.0), time.perf_counter() - begun)
    unfinished = sum(not compilation.result.done() for compilation in crowd)
    peak = _rss_mib()
    compiler.flush()
    compiler.close()
    return {
        "rows": rows,
        "worst_wait_s": waits,
        "hostile_unfinished": unfinished,
        "engine_rss_mib": {"before": before, "under attack": peak},
    }


def _wait(compilation: Compilation) -> str:
    error = compilation.result.exception(120)
    return "compiled" if error is None else f"{type(error).__name__}: {error}"[:160]


def _rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def schemas(args: argparse.Namespace) -> dict[str, Any]:
    """Groups of the suite that are accepted, refused, wrong; and the documents of the accepted ones."""
    tokenizer = args.tokenizer.read_text()
    backend = LlguidanceBackend(BackendSettings(tokenizer, args.vocab, (EOS,)))
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    for file in sorted(args.suite.glob("*.json")):
        for group in json.loads(file.read_text()):
            try:
                compiled = backend.compile(Grammar("json_schema", json.dumps(group["schema"])))
            except InvalidRequestError as error:
                counts["refused"] += 1
                reasons[str(error).rpartition(": ")[2]] += 1
                continue
            counts["accepted"] += 1
            for case in group["tests"]:
                is_taken = _takes(backend, compiled.new_matcher(), json.dumps(case["data"], ensure_ascii=False))
                counts[f"{'valid' if case['valid'] else 'invalid'} documents {'taken' if is_taken else 'refused'}"] += 1
                if is_taken and not case["valid"]:
                    wrong.append(f"{file.stem}: {group['description']}: {case['description']}")
    return {"counts": counts, "reasons": dict(reasons.most_common()), "wrong": wrong}


def _takes(backend: LlguidanceBackend, matcher: Any, text: str) -> bool:
    for token_id in backend.tokenize(text):
        if not matcher.allows(token_id):
            return False
        matcher.accept(token_id)
    return bool(matcher.is_stopped or matcher.allows(EOS))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["masks", "throughput", "attack", "schemas"])
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 64], help="masks: at once")
    parser.add_argument("--steps", type=int, default=400, help="masks: how many")
    parser.add_argument("--count", type=int, default=16, help="throughput: requests at once")
    parser.add_argument("--tokens", type=int, default=64, help="throughput: of each request")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--model", default="{}", help="throughput: JSON over the model's config")
    parser.add_argument("--suite", type=Path, help="schemas: the folder of a draft")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    result = {"masks": masks, "throughput": throughput, "attack": attack, "schemas": schemas}[args.what](args)
    report("engine/grammars.py", argv, result, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
