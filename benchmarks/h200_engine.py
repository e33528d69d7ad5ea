"""The engine on a GPU, offline, with random weights of true shapes: the workloads that h200.sh has goals for.

    python benchmarks/h200_engine.py --model qwen2.5-0.5b --out FILE
    JAX_PLATFORMS=cpu python benchmarks/h200_engine.py --model qwen2.5-0.5b --tiny

Figures are written after every workload, so that an engine which is ended early leaves what it had.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import HALF_BILLION, LLAMA_8B

from palladio import Engine

CONFIGS = {"qwen2.5-0.5b": HALF_BILLION, "llama-3.1-8b": LLAMA_8B}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "vocab_size": 4096,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of an engine.

    Attributes:
        row: of the table. count: requests at once. prompt_tokens, max_tokens: of each.
        running: requests that run at once. kv_tokens: of the cache; None: what fits.
    """

    row: str
    count: int
    prompt_tokens: int
    max_tokens: int
    running: int = 512
    kv_tokens: int | None = None

    def tiny(self) -> "Workload":
        """Small enough for a CPU."""
        kv_tokens = None if self.kv_tokens is None else 512
        return Workload(
            self.row, min(self.count, 6), min(self.prompt_tokens, 40), min(self.max_tokens, 8), 4, kv_tokens
        )


WORKLOADS = {  # in the order of an engine's flags: those that share them share an engine
    "qwen2.5-0.5b": (
        Workload("qwen decode 1", 1, 32, 512),
        Workload("qwen chat 5000", 5000, 40, 128, running=200, kv_tokens=20_480),
    ),
    "llama-3.1-8b": (
        Workload("llama decode 1", 1, 32, 256),
        Workload("llama prefill 8x8192", 8, 8192, 1),
        Workload("llama running 500", 500, 32, 500),
    ),
}


def run(engine: Engine, workload: Workload, seed: int) -> dict[str, Any]:
    """Tokens per second; of one request alone those after its first, so that its prompt does not count."""
    rng = np.random.default_rng(seed)  # of other prompts each time, else the prefix cache has them
    params = {"temperature": 0.0, "max_new_tokens": workload.max_tokens, "ignore_eos": True}
    prompts = rng.integers(3, 4000, (workload.count, workload.prompt_tokens)).tolist()
    begin = time.perf_counter()
    if workload.count == 1:
        times = [
            time.perf_counter() for _ in engine.generate(input_ids=prompts[0], sampling_params=params, stream=True)
        ]
        gaps = np.diff(times) * 1e3
        return {
            "tokens/s": (workload.max_tokens - 1) / (times[-1] - times[0]),
            "first token ms": 1e3 * (times[0] - begin),
            "gap ms p50": float(np.percentile(gaps, 50)),
            "gap ms p99": float(np.percentile(gaps, 99)),
        }
    results = engine.generate(input_ids=prompts, sampling_params=params)
    seconds = time.perf_counter() - begin
    generated = sum(len(result["output_ids"]) for result in results)
    if generated != workload.count * workload.max_tokens:
        raise RuntimeError(f"{workload.row}: {generated} tokens came of {workload.count * workload.max_tokens}")
    prompt_tokens = workload.count * workload.prompt_tokens
    return {"seconds": seconds, "tokens/s": generated / seconds, "prompt tokens/s": prompt_tokens / seconds}


def measure(model: str, tiny: bool, folder: Path, out: Path | None) -> dict[str, Any]:
    """Each workload's figures, by row; an engine for each set of flags."""
    (folder / "config.json").write_text(json.dumps(CONFIGS[model] | (SMALL if tiny else {})))
    figures: dict[str, Any] = {"rows": {}, "engines": []}
    engine, flags = None, None
    for full in WORKLOADS[model]:
        workload = full.tiny() if tiny else full
        wanted = {"max_running_requests": workload.running, "max_total_tokens": workload.kv_tokens}
        if engine is None or wanted != flags:
            if engine is not None:
                engine.shutdown()
            begin, flags = time.perf_counter(), wanted
            engine = Engine(
                model_path=str(folder),
                load_format="dummy",
                skip_tokenizer_init=True,
                context_length=128 if tiny else 9216,
                chunked_prefill_size=64 if tiny else 8192,
                compilation_cache_dir=str(folder / "xla"),
                compile="lazy" if tiny else "full",
                random_seed=0,
                **{name: value for name, value in wanted.items() if value is not None},
            )
            ready = time.perf_counter() - begin
            figures["engines"].append(
                {"seconds to ready": ready, "device": engine.get_server_info()["device"], **wanted}
            )
        few = dataclasses.replace(workload, count=min(workload.count, 512), max_tokens=min(workload.max_tokens, 4))
        run(engine, few, seed=1)
        figures["rows"][workload.row] = run(engine, workload, seed=2)
        print(workload.row, figures["rows"][workload.row], flush=True)
        if out:
            out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if engine is not None:
        engine.shutdown()
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=CONFIGS, required=True)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script itself")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="palladio-h200-") as folder:
        measure(args.model, args.tiny, Path(folder), args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
