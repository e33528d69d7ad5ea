"""A checkpoint of bfloat16 that `--dtype auto` keeps in bfloat16 on a CPU, and what float32 makes of the same numbers.

Rebuilds its golden with transformers and torch: python -m tests.model.auto_dtype
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.model.make_goldens import GOLDENS, prompts
from tests.tiny_model import make_checkpoint, tiny_config, tiny_weights, to_bfloat16

GOLDEN = GOLDENS / "auto_dtype.npz"
NUM_TOKENS = 32
SIZES: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 320, "torch_dtype": "bfloat16"}
"""Sizes that the tables ask for, see `NarrowProducts.min_hidden_size`."""


def make_bfloat16_checkpoint(folder: Path) -> Path:
    make_checkpoint(folder, "qwen3", **SIZES)
    weights = to_bfloat16(tiny_weights(tiny_config("qwen3", **SIZES)))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def chosen_prompts() -> list[list[int]]:
    return prompts()[-2:]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True)


def main() -> None:
    from tests.model import hf_oracle

    with tempfile.TemporaryDirectory() as name:
        path = make_bfloat16_checkpoint(Path(name))
        _, tokens = hf_oracle.run(path, chosen_prompts(), NUM_TOKENS)
        texts = [[*prompt, *row[:-1].tolist()] for prompt, row in zip(chosen_prompts(), tokens, strict=True)]
        logits, _ = hf_oracle.run(path, texts, 1)
    last = np.stack([log_softmax(rows[-NUM_TOKENS:]) for rows in logits])
    np.savez_compressed(GOLDEN, tokens=tokens.astype(np.int16), log_probs=last.astype(np.float32))


if __name__ == "__main__":
    main()
