"""What snapshots of states save where prompts begin alike: prompt tokens computed and seconds, with and without the
prefix cache, in turns.

    python benchmarks/engine/snapshots.py --out snapshots.json

It runs a small hybrid of Qwen3-Next's kind with random weights, and two loads: questions behind one system prompt, and
chats of several turns, each of which sends all that was said before. Greedy tokens are compared: in float32 they must
be the same.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import numpy as np

from benchmarks.support.checkpoints import QWEN3_NEXT_80B
from benchmarks.support.report import report
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams

SMALL = QWEN3_NEXT_80B | {
    "vocab_size": 1024,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "eos_token_id": 1023,
    "torch_dtype": "float32",
}
SYSTEM_PROMPT, QUESTION, ANSWER = 768, 48, 16  # tokens
NUM_QUESTIONS, NUM_CHATS, NUM_TURNS = 16, 4, 4

Tokens = dict[str, list[int]]


def make_core(folder: Path, *, caches: bool) -> EngineCore:
    flags = {
        "model_path": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_running_requests": 8,
        "max_total_tokens": 32768,
        "chunked_prefill_size": 256,
        "cuda_graph_bs": (8,),
        "disable_radix_cache": not caches,
        "random_seed": 0,
        "compile": "lazy",  # the first round builds what the others run
    }
    return EngineCore.create(EngineConfig.from_flags(flags), lambda progress: None)


def run(core: EngineCore, prompts: dict[str, list[int]]) -> Tokens:
    """All at once."""
    for name, prompt in prompts.items():
        params = SamplingParams(max_tokens=ANSWER, temperature=0.0, seed=0, ignore_eos=True)
        core.add(GenerationRequest(name, prompt, params, (), time.time()))
    tokens: Tokens = {name: [] for name in prompts}
    while core.has_work:
        for output in by_request(core.step()):
            tokens[output.request_id] += output.token_ids
    return tokens


def questions(core: EngineCore) -> Tokens:
    rng = np.random.default_rng(1)
    system = rng.integers(3, 1000, SYSTEM_PROMPT).tolist()
    return run(core, {str(n): system + rng.integers(3, 1000, QUESTION).tolist() for n in range(NUM_QUESTIONS)})


def chats(core: EngineCore) -> Tokens:
    rng = np.random.default_rng(2)
    said: Tokens = {str(number): [] for number in range(NUM_CHATS)}
    for _ in range(NUM_TURNS):
        said = {name: tokens + rng.integers(3, 1000, 4 * QUESTION).tolist() for name, tokens in said.items()}
        for name, answer in run(core, said).items():
            said[name] = said[name] + answer
    return said


LOADS: dict[str, Callable[[EngineCore], Tokens]] = {"questions": questions, "chats": chats}


def measure(core: EngineCore, load: Callable[[EngineCore], Tokens]) -> tuple[dict[str, float], Tokens]:
    core.flush_cache()
    before, started = core.stats().total, time.perf_counter()
    tokens = load(core)
    seconds, after = time.perf_counter() - started, core.stats().total
    found = after.num_hit_tokens - before.num_hit_tokens
    return {"seconds": seconds, "found": found, "hits": after.num_snapshot_hits - before.num_snapshot_hits}, tokens


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the figures here too")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SMALL))
        cores = {"with": make_core(Path(folder), caches=True), "without": make_core(Path(folder), caches=False)}
    result: dict[str, Any] = {}
    for name, load in LOADS.items():
        found: dict[str, list[dict[str, float]]] = {which: [] for which in cores}
        for _ in range(args.rounds + 1):  # in turns, since machines are noisy; the first round warms up
            rounds = {which: measure(core, load) for which, core in cores.items()}
            assert rounds["with"][1] == rounds["without"][1], "tokens differ"
            for which, (figures, _) in rounds.items():
                found[which].append(figures)
        seconds = {which: statistics.median(one["seconds"] for one in found[which][1:]) for which in cores}
        ratios = [one["seconds"] / other["seconds"] for one, other in zip(found["without"], found["with"], strict=True)]
        sizes = NUM_QUESTIONS * (SYSTEM_PROMPT + QUESTION)
        if name == "chats":
            turn = 4 * QUESTION
            sizes = NUM_CHATS * sum(n * turn + (n - 1) * ANSWER for n in range(1, NUM_TURNS + 1))
        result[name] = {
            "prompt_tokens": sizes,
            "prompt_tokens_found": found["with"][-1]["found"],
            "hits_at_snapshots": found["with"][-1]["hits"],
            "seconds": seconds,
            "times_faster": statistics.median(ratios[1:]),
        }
    report("engine/snapshots.py", argv, result, args.out)


if __name__ == "__main__":
    main()
