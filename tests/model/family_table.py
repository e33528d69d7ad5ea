"""Prints how far each family is from transformers (needs torch):

    python -m tests.model.family_table [FAMILY ...]

For each: the largest difference of a float32 logit over all positions of all prompts, whether the greedy tokens are the
same, the fewest different tokens of an answer, and the lines of the family's file.
"""

import inspect
import sys
import tempfile
from pathlib import Path

import numpy as np

from palladio.model.registry import find_family
from tests.model.driver import Driver, greedy, load
from tests.model.make_goldens import NUM_TOKENS, prompts_of
from tests.tiny_model import FAMILIES, make_checkpoint


def main(families: list[str]) -> None:
    from tests.model import hf_oracle

    print("| family | max \\|Δlogit\\| | of | tokens | different at least | file | lines |")
    print("|---|---|---|---|---|---|---|")
    for family in families or FAMILIES:
        chosen = prompts_of(family)
        with tempfile.TemporaryDirectory() as directory:
            path = make_checkpoint(Path(directory), family)
            theirs, expected = hf_oracle.run(path, chosen, NUM_TOKENS)
            config, model = load(path)
            ours = Driver(config, model, len(chosen)).step(chosen)
            _, tokens = greedy(Driver(config, model, len(chosen)), chosen, NUM_TOKENS)
        gap = max(float(np.abs(ours[b] - logits).max()) for b, logits in enumerate(theirs))
        largest = max(float(np.abs(logits).max()) for logits in theirs)
        same = "equal" if np.array_equal(tokens, expected) else "DIFFERENT"
        file = Path(inspect.getfile(find_family(config.architecture).describe))
        lines = len(file.read_text(encoding="utf-8").splitlines())
        distinct = min(len(set(row)) for row in tokens)
        print(f"| {family} | {gap:.1e} | {largest:.1f} | {same} | {distinct} | {file.name} | {lines} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
