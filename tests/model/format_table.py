"""Prints how far each stored format is from transformers (needs torch), which gets the dequantized numbers:

    python -m tests.model.format_table [NAME ...]

Of tiny checkpoints in float32: the kind that the weights stay in, and the largest difference of a logit over all
positions of two prompts, beside the largest logit.
"""

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.model.driver import Driver, load
from tests.model.format_cases import CASES, STACKED, checkpoint, stacked_checkpoint
from tests.model.gguf_files import SIZES, as_gguf
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint

Maker = Callable[[Path], Path]


def gguf(kind: str, path: Path) -> Path:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    return as_gguf(make_checkpoint(path, "qwen3", **sizes, head_dim=64), "qwen3", lambda name: kind)


def main(names: list[str]) -> None:
    from tests.model import hf_oracle

    makers: dict[str, Maker] = {name: functools.partial(_swapped, checkpoint, name) for name in CASES}
    makers |= {f"experts, {name}": functools.partial(_swapped, stacked_checkpoint, name) for name in STACKED}
    makers |= {f"GGUF {kind}": functools.partial(gguf, kind) for kind in SIZES}
    chosen = prompts()[-2:]
    print("| stored as | stays | max \\|Δlogit\\| | of |")
    print("|---|---|---|---|")
    for name, make in ((name, makers[name]) for name in names or makers):
        with tempfile.TemporaryDirectory() as directory:
            path = make(Path(directory) / "stored")
            config, model = load(path)
            ours = Driver(config, model, len(chosen)).step(chosen)
            theirs, _ = hf_oracle.run((path if path.is_dir() else path.parent) / "wide", chosen, 1)
        gap = max(float(np.abs(ours[row] - logits).max()) for row, logits in enumerate(theirs))
        largest = max(float(np.abs(logits).max()) for logits in theirs)
        kinds = ", ".join(kind.name for kind in config.weight_kinds.all) or "float32"
        print(f"| {name} | {kinds} | {gap:.1e} | {largest:.1f} |", flush=True)


def _swapped(make: Callable[[Path, str], Path], name: str, path: Path) -> Path:
    return make(path, name)


if __name__ == "__main__":
    main(sys.argv[1:])
