"""What drafts give: tokens a step, tokens a second and the device's idle time, with and without them, in turns.

    python benchmarks/engine/drafts.py --requests 1 8 --tokens 128 --draft-tokens 4 8
    python benchmarks/engine/drafts.py --requests 1 --dtype bfloat16

It runs the embedded model (no download) on two prompts: a passage that is there several times, which the answer copies,
and a question. Tokens are compared: in float32 they must be the same. In bfloat16 steps of another shape round in
another way, so where two tokens are nearly as likely the other one may come: `differ` counts these, each is shown with
its gap, and the text goes on after the token of steps without drafts.
"""

import argparse
import json
import statistics
import time
from typing import Any

from palladio.flags.default_model import default_model_path
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.token_output import TokenLogprob, by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

PASSAGE = "The capital of France is Paris. The capital of Spain is Madrid. The capital of Italy is Rome. "
PROMPTS = {"copies": PASSAGE * 6, "question": "What is the capital of France, and why do people like to go there?"}


def make_core(num_requests: int, num_tokens: int, draft_tokens: int, dtype: str) -> EngineCore:
    """Make an engine core.

    Args:
        draft_tokens: see --speculative-num-draft-tokens; 1: no drafts.
    """
    drafts = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": draft_tokens}
    flags = {
        "model_path": str(default_model_path()),
        "max_running_requests": num_requests,
        "max_total_tokens": num_requests * (num_tokens + 512),
        "chunked_prefill_size": 256,
        "dtype": dtype,
        "compile": "full",
        **(drafts if draft_tokens > 1 else {"num_continuous_decode_steps": 1}),
    }
    return EngineCore.create(EngineConfig.from_flags(flags), lambda progress: None)


def run(core: EngineCore, prompt: list[int], num_requests: int, num_tokens: int) -> dict[str, Any]:
    """One round: figures of the decode steps."""
    core.flush_cache()
    before = core.stats()
    for number in range(num_requests):
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, seed=number, ignore_eos=True)
        core.add(GenerationRequest(f"r{number}", prompt, params, (), time.time()))
    tokens: list[int] = []
    started, num_steps, seconds = time.perf_counter(), 0, 0.0
    while core.has_work:
        outputs = by_request(core.step())
        if tokens or any(output.token_ids for output in outputs):
            started, num_steps = (time.perf_counter(), 0) if not tokens else (started, num_steps + 1)
        for output in outputs:
            tokens += output.token_ids if output.request_id == "r0" else []
        seconds = time.perf_counter() - started
    after = core.stats()
    idle = after.device_idle.total - before.device_idle.total
    return {
        "tokens_a_step": (num_tokens - 1) / num_steps,
        "tokens_a_second": num_requests * (num_tokens - 1) / seconds,
        "idle_share": idle / seconds,
    }


def answer(core: EngineCore, prompt: list[int], num_tokens: int) -> list[TokenLogprob]:
    """Greedy tokens, each with the likeliest ones in its place."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, seed=0, ignore_eos=True, logprobs=20)
    core.add(GenerationRequest("answer", prompt, params, (), time.time()))
    found: list[TokenLogprob] = []
    while core.has_work:
        for output in by_request(core.step()):
            found += output.logprobs or []
    return found


def gaps(plain: EngineCore, drafting: EngineCore, prompt: list[int], num_tokens: int) -> list[float]:
    """Return the gaps where the second engine chooses another token: how far its token's logprob is below the first
    engine's choice, by the first engine's figures. Both continue with the first engine's token."""
    found: list[float] = []
    known = list(prompt)
    while (left := num_tokens - (len(known) - len(prompt))) > 0:
        one, other = (answer(core, known, left) for core in (plain, drafting))
        same = next((i for i in range(left) if one[i].token_id != other[i].token_id), left)
        if same < left:
            top = dict(one[same].top)
            found.append(top[one[same].token_id] - top.get(other[same].token_id, float("-inf")))
        known += [entry.token_id for entry in one[: same + 1]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[4], help="--speculative-num-draft-tokens")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the figures here too")
    args = parser.parse_args()
    tokenizer, rows = Tokenizer.load(default_model_path()), []
    for num_requests in args.requests:
        widths = [1, *args.draft_tokens]
        cores = {width: make_core(num_requests, args.tokens, width, args.dtype) for width in widths}
        for name, text in PROMPTS.items():
            prompt = tokenizer.encode(text)
            found: dict[int, list[dict[str, Any]]] = {width: [] for width in widths}
            for _ in range(args.rounds + 1):  # in turns, since machines are noisy; the first round warms up
                for width, core in cores.items():
                    found[width].append(run(core, prompt, num_requests, args.tokens))
            for width in widths:
                medians = {key: statistics.median(one[key] for one in found[width][1:]) for key in found[width][0]}
                of_width = [] if width == 1 else gaps(cores[1], cores[width], prompt, args.tokens)
                row = {"prompt": name, "requests": num_requests, "draft_tokens": width, **medians}
                rows.append(row | {"differ": len(of_width), "gaps": [round(gap, 4) for gap in of_width]})
    for row in rows:
        print(
            " ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
