"""Runs an encoder over packed texts: builds a step's ForwardBatch as the runtime would, without the runtime."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from palladio.model.base.sharding import make_mesh
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model, unflatten_model
from palladio.model.loading.load_model import load_model
from palladio.model.loading.stored_config import agree_with_weights
from palladio.model.spec.encoder_spec import TYPE_SHIFT


def load(path, mesh=None, **options):
    """(config, float32 model) of a directory."""
    options = {"dtype": jnp.float32, "mesh": make_mesh(1) if mesh is None else mesh, "load_format": "auto", **options}
    config = ModelConfig.from_hf(*read_model_dir(path))
    config = agree_with_weights(path, config, options["load_format"]).for_context(config.max_position_embeddings)
    return config, load_model(path, config, **options)


def batch_of(texts, types=None, padding=7):
    """The step of these texts, one behind the other.

    Args:
        types: of each text those of its tokens; None: all are 0.
    """
    counts = [len(text) for text in texts]
    T, B = sum(counts) + padding, len(texts) + 1
    ids = np.zeros(T, np.int32)
    ids[: sum(counts)] = list(itertools.chain.from_iterable(texts))
    if types is not None:
        ids[: sum(counts)] |= np.array(list(itertools.chain.from_iterable(types)), np.int32) << TYPE_SHIFT
    positions = np.zeros(T, np.int32)
    positions[: sum(counts)] = list(itertools.chain.from_iterable(map(range, counts)))
    ends = np.array([0, *itertools.accumulate(counts), sum(counts)], np.int32)
    zeros = np.zeros(B, np.int32)
    return ForwardBatch(
        token_ids=jnp.asarray(ids),
        positions=jnp.asarray(positions),
        query_start=jnp.asarray(ends),
        kv_len=jnp.asarray(zeros),
        block_tables=(jnp.zeros((B, 1), jnp.int32),),
        page_ids=(jnp.zeros(T, jnp.int32),),
        page_offsets=jnp.asarray(positions),
        last_rows=jnp.asarray(zeros),
        num_requests=jnp.int32(len(texts)),
        num_decodes=jnp.int32(0),
        kind="prefill",
    )


def encode(model, texts, types=None, padding=7):
    """The hidden states [len, D] of each text, all in one step."""
    structure, leaves = flatten_model(model)
    step = jax.jit(lambda leaves, batch: unflatten_model(structure, leaves)(batch, ())[0])
    hidden = np.asarray(step(leaves, batch_of(texts, types, padding)))
    ends = list(itertools.accumulate(map(len, texts)))
    return [hidden[end - len(text) : end] for text, end in zip(texts, ends, strict=True)]


def relative_error(found, meant):
    """The largest difference, over the largest number."""
    return float(np.abs(np.asarray(found) - meant).max() / np.abs(meant).max())
