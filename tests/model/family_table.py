"""Prints how far each family is from transformers (needs torch), and what it was tried with:

    python -m tests.model.family_table [FAMILY ...]

For each family, of a tiny random checkpoint:

- the largest difference of a float32 logit over all positions of all prompts, whether the greedy tokens are the same,
  and the fewest different tokens of an answer;
- engine: whether its tokens are the same with chunks of 20 tokens, pages of 4, retraction and cached prefixes, with
  mixed steps and without;
- 8 devices: the largest difference of a log-probability from one device; tokens are equal, else the table ends.
  Meshes are 8 devices, 2 ranks of 4, 8 ranks; those of experts divide experts too (--ep-size 8, 2 and 1), and let 2
  and 8 ranks share them (--enable-dp-attention);
- converted: arrays that are the same in a converted checkpoint, on one device and on 8;
- plan: the published models of the architecture that are planned, and the slice (`plans.md` has their rows);
- the family's file, and its lines.
"""

import inspect
import sys
import tempfile
from pathlib import Path

import numpy as np

from palladio.model.config.registry import find_family
from tests.many_devices import call_with_devices
from tests.model.driver import Driver, greedy, load
from tests.model.make_goldens import NUM_TOKENS, prompts_of
from tests.runtime.core import family_engine
from tests.runtime.planning.published_models import MODELS
from tests.tiny_model import FAMILIES, make_checkpoint

COLUMNS = (
    *("family", "architecture", "max \\|Δlogit\\|", "of", "tokens", "different at least", "engine", "8 devices"),
    *("converted", "plan", "file", "lines"),
)


def main(families: list[str]) -> None:
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for family in families or FAMILIES:
        with tempfile.TemporaryDirectory() as directory:
            print(f"| {family} | {' | '.join(row(family, Path(directory)))} |", flush=True)


def row(family: str, folder: Path) -> list[str]:
    """All columns but the first."""
    from tests.model import hf_oracle

    chosen, path = prompts_of(family), make_checkpoint(folder / "tiny", family)
    theirs, expected = hf_oracle.run(path, chosen, NUM_TOKENS)
    config, model = load(path)
    ours = Driver(config, model, len(chosen)).step(chosen)
    _, tokens = greedy(Driver(config, model, len(chosen)), chosen, NUM_TOKENS)
    gap = max(float(np.abs(ours[b] - logits).max()) for b, logits in enumerate(theirs))
    file = Path(inspect.getfile(find_family(config.architecture).describe))
    return [
        config.architecture,
        f"{gap:.1e}",
        f"{max(float(np.abs(logits).max()) for logits in theirs):.1f}",
        _same(np.array_equal(tokens, expected)),
        str(min(len(set(row)) for row in tokens)),
        _same(_engine_is_equal(path, family, expected)),
        *_over_devices(folder, family),
        ", ".join(
            f"{name}, {one.place}" for name, one in MODELS.items() if config.architecture in one.config["architectures"]
        ),
        file.name,
        str(len(file.read_text(encoding="utf-8").splitlines())),
    ]


def _same(is_same: bool) -> str:
    return "equal" if is_same else "DIFFERENT"


def _engine_is_equal(path: Path, family: str, expected: np.ndarray) -> bool:
    wanted = [row.tolist() for row in expected[-5:]]
    for mixed in (False, True):
        found = family_engine.answer_under_pressure(path, family, mixed=mixed).tokens
        if [found[str(i)] for i in range(5)] != wanted or found["again"] != wanted[-1]:
            return False
    return True


def _over_devices(folder: Path, family: str) -> tuple[str, str]:
    divisible, module = family_engine.make_divisible(folder / "divisible", family), family_engine.__name__
    gaps = call_with_devices(module, "compare_meshes", str(divisible), family, timeout=1500)
    arrays = call_with_devices(module, "compare_converted", str(divisible), str(folder / "converted"))
    return f"{len(gaps)} meshes: {max(gaps.values()):.1e}", str(arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
