"""Reinforcement learning in small: roll out answers, score them, change the weights, and again, with one engine.

The trainer tries random changes of one tensor and keeps those with a better reward; yours computes gradients.
"""

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from palladio import Engine, SamplingParams

PROMPTS = ["Once upon a time", "Python is", "My favourite food is", "The weather today"]
TENSOR = "model.norm.weight"


def reward(text: str) -> float:
    """What to learn: to write many a's."""
    return text.count("a") / max(len(text), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True, help="a directory with one model.safetensors")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()

    weights, random = load_file(args.model_path / "model.safetensors"), np.random.default_rng(0)
    params = SamplingParams(temperature=1, max_tokens=32, seed=0)
    with Engine(model_path=str(args.model_path), compile="lazy", max_running_requests=len(PROMPTS)) as engine:
        best = np.mean([reward(result["text"]) for result in engine.generate(PROMPTS, params)])
        for step in range(args.steps):
            noise = (0.3 * random.standard_normal(weights[TENSOR].shape)).astype(weights[TENSOR].dtype)
            candidate = weights | {TENSOR: weights[TENSOR] * (1 + noise)}
            engine.update_weights_from_tensor(list(candidate.items()), weight_version=f"step-{step}")
            new = np.mean([reward(result["text"]) for result in engine.generate(PROMPTS, params)])
            best, weights = (new, candidate) if new > best else (best, weights)
            print(f"step {step}: reward {new:.3f}, best {best:.3f}")


if __name__ == "__main__":  # not to be left out: the engine may start processes
    main()
