"""Runs a CausalLM over whole sequences: builds each step's ForwardBatch as the runtime would, without the runtime."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from palladio.model.base.sharding import make_mesh
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model, unflatten_model
from palladio.model.loading.load_model import load_model
from palladio.model.loading.stored_config import agree_with_weights
from palladio.model.weights.scaled import Scaled
from palladio.model.weights.weight import Weight

PAGE_SIZE = 16
FLOAT4 = np.asarray([0, 0.5, 1, 1.5, 2, 3, 4, 6, np.nan, -6, -4, -3, -2, -1.5, -1, -0.5], np.float32)
MAX_LEN = 160


def load(path, overrides=None, quantization=None, **options):
    """(config, float32 model) of a directory; `overrides` as of --json-model-override-args, and --quantization."""
    options = {"dtype": jnp.float32, "mesh": make_mesh(1), "load_format": "auto", **options}
    config = ModelConfig.from_hf(*read_model_dir(path, overrides))
    config = agree_with_weights(path, config, options["load_format"], quantization).for_context(MAX_LEN)
    return config, load_model(path, config, **options)


def numbers(model):
    """By path, every parameter in float32; of a weight with scales the numbers that it stands for."""
    found, weights = {}, {}
    for keys, node in nnx.iter_graph(model):
        if isinstance(node, Weight):
            weights[keys] = node
        elif isinstance(node, nnx.Param) and keys[:-1] not in weights:
            found[".".join(map(str, keys))] = np.asarray(node[...], np.float32)
    for keys, weight in weights.items():
        name, values = ".".join(map(str, keys)), np.asarray(weight.values[...])
        values = values.astype(np.float32)
        for part in weight.part_names:
            found.pop(f"{name}.{part}", None)
        if isinstance(weight, Scaled):
            if weight.kind.is_float4:
                values = FLOAT4[values.astype(np.int32) & 15]
            flat = weight.flat
            if flat is not None:  # as one device has them
                values = (values.T if flat.outputs_first else values).reshape(flat.shape)
            size = values.shape[weight.inputs]
            factors = []
            for param in weight.params[1:]:
                wide = np.asarray(param[...], np.float32)
                wide = wide if flat is None else wide.reshape(-1, *flat.shape[1:])
                wide = np.expand_dims(wide, weight.inputs) if weight.group is None else wide
                factors.append(np.repeat(wide, weight.group or size, weight.inputs).take(range(size), weight.inputs))
            values = (values - (factors[1] if weight.kind.has_zeros else 0)) * factors[0]
        found[name] = values
    return found


class Driver:
    """Sequences in slots 0 … B-1 with pages of their own, scattered over the pool."""

    def __init__(
        self, config, model, num_sequences, max_len=MAX_LEN, page_size=PAGE_SIZE, mesh=None, kv_dtype=jnp.float32
    ):
        """Make a driver.

        Args:
            config: the config as laid out over the mesh.
        """
        self.page_size, self.width = page_size, -(-max_len // page_size)
        structure, self.leaves = flatten_model(model)
        num_pages = num_sequences * self.width
        self.table = 1 + np.random.RandomState(0).permutation(num_pages).reshape(num_sequences, self.width)
        spec = CacheLayout.of(config, page_size=page_size, dtype=kv_dtype, num_slots=num_sequences + 1)
        self.num_tables = spec.groups.num_tables
        self.num_pages = num_pages
        self.cache = spec.allocate(self.num_tables * num_pages + 1, make_mesh(1) if mesh is None else mesh)
        self.lengths = [0] * num_sequences

        def step(leaves, cache, batch):
            model = unflatten_model(structure, leaves)
            hidden, cache = model(batch, cache)
            return model.logits(hidden), cache

        self._step = jax.jit(step, donate_argnums=1)

    def _by_table(self, pages):
        """The same with pages of each block table's own; 0 stays."""
        return tuple(np.where(pages > 0, pages + number * self.num_pages, 0) for number in range(self.num_tables))

    def step(self, new_tokens, kind="prefill", change=lambda batch: batch):
        """Feed new_tokens[b] (maybe none) to sequence b; return the logits of each one's new tokens.

        Args:
            change: makes another batch of the usual one.
        """
        rows = [b for b, tokens in enumerate(new_tokens) if len(tokens)]
        counts = [len(new_tokens[b]) for b in rows]
        num_tokens = sum(counts)
        B = len(self.lengths) + 2
        T = B if kind == "decode" else -(-(num_tokens + 1) // 32) * 32
        ids, positions, pages, offsets = np.zeros((4, T), np.int32)
        query_start, slots = np.full(B + 1, num_tokens, np.int32), np.zeros(B, np.int32)
        kv_len, last_rows, table = np.zeros(B, np.int32), np.zeros(B, np.int32), np.zeros((B, self.width), np.int32)
        start = 0
        for row, (b, count) in enumerate(zip(rows, counts, strict=True)):
            where = slice(start, start + count)
            ids[where] = new_tokens[b]
            positions[where] = np.arange(self.lengths[b], self.lengths[b] + count)
            pages[where] = self.table[b][positions[where] // self.page_size]
            offsets[where] = positions[where] % self.page_size
            self.lengths[b] += count
            query_start[row], kv_len[row], last_rows[row] = start, self.lengths[b], start + count - 1
            table[row], slots[row] = self.table[b], b + 1
            start += count
        counts_of_rows = np.int32(len(rows)), np.int32(len(rows) if kind == "decode" else 0)
        tables, page_ids = self._by_table(table), self._by_table(pages)
        fields = (ids, positions, query_start, kv_len, tables, page_ids, offsets, last_rows)
        batch = ForwardBatch(
            *jax.tree.map(jnp.asarray, (*fields, *counts_of_rows)), kind=kind, slots=jnp.asarray(slots)
        )
        logits, self.cache = self._step(self.leaves, self.cache, change(batch))
        logits = np.asarray(logits)
        return {
            b: logits[query_start[row] : query_start[row] + count]
            for row, (b, count) in enumerate(zip(rows, counts, strict=True))
        }


def greedy(driver, prompts, num_tokens):
    """Prefills all prompts together, then decodes. Returns (last logits of each prompt, tokens of each)."""
    first = driver.step(prompts)
    logits = [first[b][-1] for b in range(len(prompts))]
    tokens = [[int(row.argmax())] for row in logits]
    for _ in range(num_tokens - 1):
        out = driver.step([row[-1:] for row in tokens], kind="decode")
        for b, row in enumerate(tokens):
            row.append(int(out[b][-1].argmax()))
    return logits, tokens
