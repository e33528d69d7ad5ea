"""A checkpoint that follows a script: after each token of the script comes the next one, whatever came before.

Its layers add nothing to the embedding, which is a one-hot row for each token, and the head holds the script. A script
names each token once at most, since only the last token decides what follows.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.tiny_model import VOCAB_SIZE, make_checkpoint, tiny_config, tiny_weights
from tests.tiny_tokenizer import build_tiny_tokenizer

_SILENT = ("o_proj.weight", "down_proj.weight")


def build_scripted_checkpoint(directory: Path, scripts: Sequence[Sequence[int]]) -> Path:
    """A Hugging Face directory with the tiny tokenizer.

    Args:
        scripts: token ids that follow each other; no two of them begin a step with the same token.
    """
    overrides = {"hidden_size": VOCAB_SIZE}
    make_checkpoint(directory, "qwen3", **overrides)
    weights = tiny_weights(tiny_config("qwen3", **overrides))
    for name, value in weights.items():
        if name.endswith(_SILENT):
            weights[name] = np.zeros_like(value)
        elif name.endswith("norm.weight"):
            weights[name] = np.ones_like(value)
    weights["model.embed_tokens.weight"] = np.eye(VOCAB_SIZE, dtype=np.float32)
    head = np.zeros((VOCAB_SIZE, VOCAB_SIZE), np.float32)
    for script in scripts:
        for token, following in itertools.pairwise(script):
            assert not head[:, token].any(), f"two tokens follow {token}"
            head[following, token] = 5.0  # times √VOCAB_SIZE, the norm's factor: a logit of 98 against 0
    weights["lm_head.weight"] = head
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return build_tiny_tokenizer(directory, vocab_size=VOCAB_SIZE)
