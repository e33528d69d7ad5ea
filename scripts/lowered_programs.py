"""Digests of the step programs' StableHLO, family by family: two trees with the same lines compile the same programs.

    python scripts/lowered_programs.py > before    # in one tree
    python scripts/lowered_programs.py > after     # in the other
    diff before after

Nothing is compiled and no weights are made. Every family of the tests, over one device, two and four.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp

from palladio.model.base.sharding import make_mesh
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig
from palladio.model.functional import LogitsHead, flatten_model, unflatten_model
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import abstract_model
from tests import tiny_families
from tests.tiny_model import tiny_config

FAMILIES = ("qwen2", "qwen2_tied", "qwen3", "llama3", "mistral", "qwen2_moe", "qwen3_moe", *tiny_families.CONFIGS)
NUM_TOKENS, NUM_ROWS, TABLE_WIDTH, PAGE_SIZE = 32, 4, 8, 16


def main() -> None:
    for family in dict.fromkeys(FAMILIES):
        for num_devices in (1, 2, 4):
            for dtype in (jnp.float32, jnp.bfloat16):
                texts = lowered(ModelConfig.from_hf(tiny_config(family)), num_devices, dtype)
                digests = " ".join(hashlib.sha256(text.encode()).hexdigest()[:12] for text in texts)
                print(f"{family} devices={num_devices} {jnp.dtype(dtype).name}: {digests}", flush=True)


def lowered(config: ModelConfig, num_devices: int, dtype: jax.typing.DTypeLike) -> list[str]:
    """Lower a forward step and the head's logits."""
    mesh = make_mesh(num_devices)
    structure, weights = flatten_model(abstract_model(config, dtype=dtype, mesh=mesh))
    layout = CacheLayout.of(TensorLayout.over(config, mesh).config, page_size=PAGE_SIZE, dtype=dtype)
    head = LogitsHead.of(structure, len(weights))

    def forward(weights: Any, cache: Any, *fields: Any) -> Any:
        return unflatten_model(structure, weights)(ForwardBatch(*fields, kind="prefill"), cache)

    def logits(weights: Any, hidden: Any) -> Any:
        return head.logits(weights, hidden, config.vocab_size - 3)

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    T, B = NUM_TOKENS, NUM_ROWS
    num_tables = layout.groups.num_tables
    tables, page_ids = (ints(B, TABLE_WIDTH),) * num_tables, (ints(T),) * num_tables
    fields = (ints(T), ints(T), ints(B + 1), ints(B), tables, page_ids, ints(T), ints(B), ints(), ints())
    step = jax.jit(forward, donate_argnums=1).lower(weights, layout.abstract(TABLE_WIDTH * B, mesh), *fields)
    hidden = jax.ShapeDtypeStruct((B, config.hidden_size), dtype)
    return [step.as_text(), jax.jit(logits).lower(head.select(weights), hidden).as_text()]


if __name__ == "__main__":
    main()
