"""The results of transformers (with torch) for a checkpoint. Only imported where torch is installed."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def run(path, prompts, num_tokens):
    """Logits [len, V] of every prompt, and the greedy tokens after it."""
    torch.set_num_threads(1)  # the models are tiny: on a busy machine, threads that wait for each other cost minutes
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    logits, tokens = [], []
    for prompt in prompts:
        out = model(torch.tensor([prompt]), use_cache=True)
        logits.append(out.logits[0].numpy())
        row = [int(out.logits[0, -1].argmax())]
        while len(row) < num_tokens:
            out = model(torch.tensor([row[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            row.append(int(out.logits[0, -1].argmax()))
        tokens.append(row)
    return logits, np.array(tokens)


def save(path: Path, out: Path, *, stacked: bool) -> None:
    """Writes a checkpoint once more, as transformers does: each expert by itself, or all of a layer as one tensor."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.save_pretrained(out, save_original_format=not stacked)
