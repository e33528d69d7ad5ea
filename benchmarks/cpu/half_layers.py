"""One stream with half a layer as one call of our C++, and without: milliseconds a token, in turns, and their ratio.

    python benchmarks/cpu/half_layers.py [--cores 0,1] [--rounds 15] [--tokens 96] [--json o.json]
    python benchmarks/cpu/half_layers.py --model-path DIR

Two engines in one process, the engine alone without HTTP, each step with all that the host does for it. By default they
serve the published SmolLM2-135M-Instruct in bfloat16, as `make real` fetches it; this needs torch and transformers, at
the first call only. Rounds begin with the one and with the other side in turns. The ratio is the time without the calls
by the time with them, of the two samples of a round; half a layer as one call has to give 1.15.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.peers.published import NAMES, make_published
from benchmarks.support.report import quartiles, report
from benchmarks.support.server_process import provenance
from palladio.model.decoder import DecoderLayer
from palladio.model.fused.row_blocks import BlockLayer
from palladio.model.loading.layout import parameters
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams

LEAST_RATIO = 1.15
PROMPT = 64  # tokens


def engine(model_path: str, *, fused: bool) -> EngineCore:
    """An engine for one stream, whose layers are those that our C++ computes by halves, or are not."""
    flags = {"cpu_kernels": "native", "max_running_requests": 1, "max_total_tokens": 1024, "compile": "lazy"}
    config = EngineConfig.from_flags({"model_path": model_path, "compilation_cache_dir": "", **flags})
    layer = BlockLayer if fused else DecoderLayer
    with mock.patch.object(parameters, "layer_type", return_value=layer):
        return EngineCore.create(config, lambda progress: None)


def sample(core: EngineCore, num_tokens: int) -> tuple[float, list[int]]:
    """Milliseconds a token after the first one, and the tokens of a greedy request."""
    core.flush_cache()
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, seed=0)
    prompt = [100 + 7 * number for number in range(PROMPT)]
    core.add(GenerationRequest("one", prompt, params, (), time.time(), RequestOptions()))
    tokens: list[int] = []
    times: list[float] = []
    gc.collect()
    gc.disable()
    while core.has_work:
        found = [token for output in by_request(core.step()) for token in output.token_ids]
        if found:
            tokens += found
            times.append(time.perf_counter())
    gc.enable()
    return 1e3 * (times[-1] - times[0]) / (len(tokens) - 1), tokens


def measure(sides: dict[str, EngineCore], rounds: int, num_tokens: int) -> dict[str, Any]:
    """Of all rounds. Args: sides: "with" and "without" the calls."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    tokens = {name: sample(core, num_tokens)[1] for name, core in sides.items()}  # compiles
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            found[name].append(sample(sides[name], num_tokens)[0])
    ratios = [before / after for before, after in zip(found["without"], found["with"], strict=True)]
    ratio = quartiles(ratios)
    equal = sum(one == other for one, other in zip(tokens["with"], tokens["without"], strict=True))
    return {
        "milliseconds a token": {name: quartiles(values) for name, values in found.items()},
        "ratio": ratio,
        "enough": ratio["median"] >= LEAST_RATIO,
        "equal tokens": f"{equal} of {num_tokens}",
        "samples": found,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--published", choices=NAMES, default="smollm2", help="model of `make real`")
    parser.add_argument("--model-path", help="another model, in place of a published one")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "palladio", help="of published models")
    parser.add_argument("--python", default=sys.executable, help="one with torch and transformers")
    parser.add_argument("--cores", help="numbers of cores to run on, such as 0,1; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=96, help="of each sample")
    parser.add_argument("--json", type=Path, help="file for the report")
    args = parser.parse_args(argv)
    if args.cores:  # before XLA makes its threads
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    path = args.model_path or str(make_published(args.published, args.cache, args.python)[0])
    sides = {name: engine(path, fused=name == "with") for name in ("with", "without")}
    result = measure(sides, args.rounds, args.tokens)
    report("cpu/half_layers.py", argv, provenance() | {"model": path, **result}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
