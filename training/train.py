"""Trains the network, or goes on where a run has stopped.

    python -m training.train --run DIR --steps 7000

The learning rate is constant, then falls to zero over the last --decay steps. What comes out is final.npz; the state
before the fall stays (stable.npz), so that a later run with more --steps goes on from there.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, muon

from palladio.model.functional import ModelStructure, flatten_model, unflatten_model
from training.batches import Batch, batch
from training.checkpoints import Leaves, State, load, save
from training.network import SEED, hidden_states, model_config, new_model
from training.tokenizer import load_or_train

LEARNING_RATE, TABLE_LEARNING_RATE, WARM_UP = 5e-3, 3e-3, 100
SAVE_SECONDS, LOG_STEPS = 180.0, 20

Arrays = Any  # a Batch as nested tuples


def schedule(peak: float, steps: int, decay: int) -> optax.Schedule:
    """Up over WARM_UP steps, flat, down to zero over the last `decay` ones."""
    up, down = optax.linear_schedule(0.0, peak, WARM_UP), optax.linear_schedule(peak, 0.0, decay)
    return optax.join_schedules([up, optax.constant_schedule(peak), down], [WARM_UP, steps - decay])


def make_optimizer(steps: int, decay: int) -> optax.GradientTransformation:
    """Muon for the matrices, Adam for the token table and the norms."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        muon(
            schedule(LEARNING_RATE, steps, decay),
            weight_decay=0.02,
            adam_learning_rate=schedule(TABLE_LEARNING_RATE, steps, decay),
            adam_b2=0.98,
            consistent_rms=0.2,
            muon_weight_dimension_numbers=_axes,
        ),
    )


def _axes(leaves: Leaves) -> Any:
    """Which axes go in and which come out, by the parameter's shape; None: not a matrix of a layer."""

    def axes(leaf: jax.Array) -> MuonDimensionNumbers | None:
        if leaf.ndim == 4:  # [D, K, G+2, H]: queries, keys and values together
            return MuonDimensionNumbers(0, (1, 2, 3))
        if leaf.ndim == 3:  # [D, 2, F]: gate and up, each for itself
            return MuonDimensionNumbers(0, 2)
        is_layer = leaf.ndim == 2 and max(leaf.shape) < 2000  # the token table is the only larger one
        return MuonDimensionNumbers(0, 1) if is_layer else None

    return jax.tree.map(axes, leaves)  # optax masks some: those stay as they are


def make_step(
    structure: ModelStructure, optimizer: optax.GradientTransformation
) -> Callable[[Leaves, Any, Arrays], tuple[Leaves, Any, jax.Array]]:
    """One step: new arrays, the optimizer's new state, and the mean loss."""

    def loss(leaves: Leaves, arrays: Arrays) -> jax.Array:
        model = unflatten_model(structure, leaves)
        rows, places, next_ids, weights = arrays
        hidden = jnp.concatenate([hidden_states(model, *part) for part in rows])
        logits = model.logits(hidden[places])
        right = jnp.take_along_axis(logits, next_ids[:, None], axis=1)[:, 0]
        return ((jax.nn.logsumexp(logits, axis=1) - right) * weights).sum() / weights.sum()

    def step(leaves: Leaves, state: Any, arrays: Arrays) -> tuple[Leaves, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(leaves, arrays)
        updates, state = optimizer.update(gradients, state, leaves)
        return optax.apply_updates(leaves, updates), state, value

    return jax.jit(step, donate_argnums=(0, 1))


def run(folder: Path, steps: int, decay: int) -> None:
    """Trains until `steps`, saving now and then into `folder`."""
    jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    tokenizer = load_or_train(folder / "tokenizer.json", SEED)
    config = model_config(tokenizer)
    structure, leaves = flatten_model(new_model(config, SEED))
    optimizer = make_optimizer(steps, decay)
    state = State(0, leaves, optimizer.init(leaves))
    for name in ("final.npz", "stable.npz"):
        if (folder / name).is_file() and (read := load(folder / name, state)).goal in (0, steps):
            state = read
            break
    step = make_step(structure, optimizer)
    print(f"step {state.step} of {steps}, {sum(leaf.size for leaf in leaves):,} parameters", flush=True)
    saved, since, losses = time.monotonic(), time.monotonic(), []
    num_tokens = 0
    while state.step < steps:
        if not state.goal and state.step >= steps - decay:
            save(folder / "stable.npz", state)
            state.goal = steps
        made = batch(tokenizer, SEED, state.step)
        num_tokens += sum(int((part.documents > 0).sum()) for part in made.rows)
        state.leaves, state.optimizer, value = step(state.leaves, state.optimizer, as_arrays(made))
        state.step += 1
        losses.append(float(value))
        if state.step % LOG_STEPS == 0:
            speed = num_tokens / (time.monotonic() - since)
            print(f"step {state.step} loss {np.mean(losses):.4f} {speed:.0f} tokens/s", flush=True)
            since, losses, num_tokens = time.monotonic(), [], 0
        if time.monotonic() - saved > SAVE_SECONDS or state.step == steps:
            save(folder / ("final.npz" if state.goal else "stable.npz"), state)
            saved = time.monotonic()


def as_arrays(batch: Batch) -> Arrays:
    rows = tuple((part.token_ids, part.positions, part.documents) for part in batch.rows)
    return rows, batch.places, batch.next_ids, batch.weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run: tokenizer.json, *.npz")
    parser.add_argument("--steps", type=int, default=7_000)
    parser.add_argument("--decay", type=int, default=1_400)
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    run(args.run, args.steps, args.decay)


if __name__ == "__main__":
    main()
