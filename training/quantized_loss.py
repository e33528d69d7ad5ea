"""What fewer bits of weights, or of the KV cache, change in what the embedded model says of texts it has not seen.

    python -m training.quantized_loss [--only weights|cache] [--json FILE]

Perplexity and log-probabilities are those of `palladio eval --perplexity`, so of served programs. Logits are those of
the model alone: all of the first 16 windows, beside those of the reference. Weights: 60 held-out stories, against
float32. Cache: 6 held-out questions and answers of each skill, against a cache of float32. The rows of bfloat16 are
what the others are to be measured by. It is a model of 1.2 million parameters: the figures hold for no other.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from palladio.flags.default_model import default_model_path
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.model.driver import Driver, load
from training.checks import CHECKS
from training.evaluate import question
from training.skills.stories import plain_story
from training.source import Source

WINDOW = 384
NUM_LOGIT_WINDOWS = 16
REFERENCE: dict[str, list[str]] = {
    "weights": ["--dtype", "float32"],
    "cache": ["--dtype", "float32", "--kv-cache-dtype", "float32"],
}
ROWS: dict[str, list[str]] = {
    "weights": ["bfloat16", "int8", "w8a8_int8", "fp8", "w8a8_fp8", "int4"],
    "cache": ["bfloat16", "int8", "fp8_e4m3", "fp8_e5m2"],
}
CACHE_DTYPES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
PERPLEXITY = re.compile(r"perplexity (\S+) .*?; (\S+) tokens")
DIFFERENCES = re.compile(r"differ by (\S+) on average, by (\S+) at most")


def text_of(part: str) -> str:
    if part == "weights":
        return "".join(f"{plain_story(Source(f'held out/stories/{n}', held_out=True))}\n" for n in range(60))
    asked = (question(skill, n) for skill in CHECKS for n in range(6))
    return "".join("".join(text for text, _ in chat.pieces()) + "\n" for chat in asked)


def flags_of(part: str, row: str) -> str:
    if part == "cache":
        return f"--kv-cache-dtype {row}"
    return "--dtype bfloat16" if row == "bfloat16" else f"--quantization {row}"


def evaluated(text: Path, part: str, row: str) -> dict[str, float]:
    """By the command, in processes of its own."""
    command = [sys.executable, "-m", "palladio", "eval", "--perplexity", str(text), "--window", str(WINDOW)]
    command += ["--log-level", "warning", *REFERENCE[part], f"--against={flags_of(part, row)}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    (reference, count), (perplexity, _) = PERPLEXITY.findall(done.stdout)
    ((mean, most),) = DIFFERENCES.findall(done.stdout)
    found = {"reference_perplexity": reference, "perplexity": perplexity, "logprob_mean": mean, "logprob_most": most}
    return {"tokens": int(count.replace(",", "")), **{name: float(number) for name, number in found.items()}}


def logits(part: str, row: str | None, windows: list[list[int]]) -> Iterator[np.ndarray]:
    """Yield the logits of each window.

    Args:
        row: None: the reference.
    """
    options: dict[str, Any] = {}
    is_dense = part == "cache" or row in (None, "bfloat16")
    if part == "weights" and row == "bfloat16":
        options["dtype"] = jnp.bfloat16
    config, model = load(default_model_path(), quantization=None if is_dense else row, **options)
    kept = CACHE_DTYPES.get(row or "", row or "float32") if part == "cache" else "float32"
    driver = Driver(config, model, len(windows), max_len=WINDOW, kv_dtype=jnp.dtype(kept))
    for number, window in enumerate(windows):
        tokens: list[list[int]] = [[] for _ in windows]
        tokens[number] = window
        yield driver.step(tokens)[number].astype(np.float32)


def logit_errors(part: str, row: str, windows: list[list[int]]) -> dict[str, float]:
    """Return errors relative to the standard deviation of the reference's logits."""
    reference = np.concatenate(list(logits(part, None, windows)))
    errors = np.abs(np.concatenate(list(logits(part, row, windows))) - reference)
    found = {"logit_mean": errors.mean(), "logit_most": errors.max(), "logit_deviation": reference.std()}
    return {name: float(number) for name, number in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(ROWS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    tokenizer = Tokenizer.load(default_model_path())
    print("| part | kept as | perplexity | log-probabilities differ, mean | at most | logits, mean | at most |")
    for part in [args.only] if args.only else list(ROWS):
        text = text_of(part)
        ids = tokenizer.encode(text)
        windows = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)][:NUM_LOGIT_WINDOWS]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text"
            path.write_text(text, encoding="utf-8")
            for row in ROWS[part]:
                figures = {**evaluated(path, part, row), **logit_errors(part, row, windows)}
                rows.append({"part": part, "kept": row, **figures})
                keys = ("logprob_mean", "logprob_most", "logit_mean", "logit_most")
                print(f"| {part} | {row} | {figures['perplexity']:.2f} |", end="")
                print(" |".join(f" {figures[key]:.4f}" for key in keys), "|", flush=True)
    if args.json:
        command = " ".join(["python -m training.quantized_loss", *sys.argv[1:]])
        args.json.write_text(json.dumps({"command": command, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
