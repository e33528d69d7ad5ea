"""Rebuilds tests/model/goldens/*.npz with transformers and torch:

    python -m tests.model.make_goldens [FAMILY ...]

Each holds, for the prompts below, the logits of the last prompt token and 64 greedy tokens. The weights are not stored:
tests/tiny_model.py makes the same ones anywhere.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.model.driver import MAX_LEN
from tests.tiny_model import FAMILIES, VOCAB_SIZE, make_checkpoint, tiny_config

GOLDENS = Path(__file__).parent / "goldens"
NUM_TOKENS = 64
S = 16
PROMPT_LENGTHS = (1, 2, S - 1, S, S + 1, 2 * S, 2 * S + 1, 50, 75)


def prompts():
    rng = np.random.RandomState(7)
    return [rng.randint(0, VOCAB_SIZE, size=length).tolist() for length in PROMPT_LENGTHS]


def prompts_of(family):
    """Return the prompts that transformers computes as a server must: with LongRoPE it changes the frequencies where a
    sequence outgrows the original context, and leaves older keys as they were; ours are the same throughout."""
    config = tiny_config(family)
    is_long = (config.get("rope_scaling") or {}).get("rope_type") == "longrope"
    least = config["original_max_position_embeddings"] if is_long else 0
    least = 0 if least >= MAX_LEN else least
    return [prompt for prompt in prompts() if len(prompt) > least]


def main(families):
    from tests.model import hf_oracle

    GOLDENS.mkdir(exist_ok=True)
    for family in families or FAMILIES:
        with tempfile.TemporaryDirectory() as directory:
            path = make_checkpoint(Path(directory), family)
            logits, tokens = hf_oracle.run(path, prompts_of(family), NUM_TOKENS)
        last = np.stack([rows[-1] for rows in logits])
        np.savez_compressed(GOLDENS / f"{family}.npz", logits=last, tokens=tokens.astype(np.int16))
        runner_up = np.sort(last, axis=-1)
        distinct = min(len(set(row.tolist())) for row in tokens)
        print(
            family,
            f"at least {distinct} different tokens",
            "last logits",
            last.std(),
            "closest call",
            (runner_up[:, -1] - runner_up[:, -2]).min(),
        )


if __name__ == "__main__":
    main(sys.argv[1:])
