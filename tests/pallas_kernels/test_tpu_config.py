"""The sizes of the TPU kernel's blocks: computed for each chip, and those of sweeps."""

import json
import re

import jax.numpy as jnp
import pytest

from palladio.pallas_kernels.ragged_paged_attention import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.tpu import tpu_config
from palladio.pallas_kernels.target import Target


@pytest.mark.parametrize("kind", sorted(tpu_config.VMEM))
@pytest.mark.parametrize("heads", [(32, 8, 128), (14, 2, 64), (32, 32, 128), (16, 1, 256)])
@pytest.mark.parametrize("page_size", [16, 48, 128])
def test_block_sizes_suit_the_kernel(kind, heads, page_size):
    N, K, H = heads
    shape = AttentionShape(N, K, H, page_size, 64, 8, jnp.bfloat16, jnp.bfloat16)
    if (kind, K, page_size) == ("v4", 32, 48):
        with pytest.raises(NotImplementedError, match="larger than the vector memory of TPU v4"):
            tpu_config.chunk_blocks(shape, Target("tpu", kind))
        return
    for sizes_of in (tpu_config.decode_blocks, tpu_config.chunk_blocks):
        blocks = sizes_of(shape, Target("tpu", kind))
        assert blocks.keys % page_size == 0
        assert blocks.keys % 128 == 0  # rows of lanes
        assert blocks.queries & (blocks.queries - 1) == 0  # the kernel takes remainders by masks
        needed = tpu_config._bytes(shape, blocks.queries, blocks.keys, blocks.rows)
        assert needed <= blocks.vmem < tpu_config.VMEM[kind]
        assert blocks.vmem <= 1.25 * needed + tpu_config.SPILLS  # the rest is XLA's
    assert blocks.queries >= 16


def test_few_requests_and_those_of_an_odd_number_have_grid_steps_of_their_own():
    """The pipeline brings whole blocks of rows."""
    target = Target("tpu", "v6e")

    def shared(num_rows, page_size=16, heads=(32, 8, 128)):
        N, K, H = heads
        shape = AttentionShape(N, K, H, page_size, 64, num_rows, jnp.bfloat16, jnp.bfloat16)
        blocks = tpu_config.decode_blocks(shape, target)
        assert blocks.together == 1 or num_rows % blocks.rows == 0
        assert blocks.longest == (0 if blocks.together == 1 else 128 if num_rows == 2048 else 256)  # of their pages
        return blocks.together, blocks.rows

    assert shared(256) == shared(16) == shared(2048) == (4, 16)
    assert shared(24) == (4, 8)
    assert shared(2) == (4, 2)
    assert shared(256, heads=(32, 32, 128)) == (4, 4)  # of as many bytes
    for alone in (shared(1), shared(9), shared(4096), shared(256, 256), shared(256, 48)):
        assert alone == (1, 1)


def test_sizes_of_a_sweep_are_read(monkeypatch):
    shape = AttentionShape(32, 8, 128, 16, 64, 8, jnp.bfloat16, jnp.bfloat16)
    swept = {"chunk h128": {"rows": 256, "keys": 1024, "row_chunk": 128, "heads": 4}}
    monkeypatch.setattr(tpu_config, "_table", lambda kind: swept if kind == "v6e" else {})
    blocks = tpu_config.chunk_blocks(shape, Target("tpu", "v6e"))
    assert (blocks.queries, blocks.keys, blocks.row_chunk, blocks.heads) == (64, 1024, 128, 4)
    assert tpu_config.chunk_blocks(shape, Target("tpu", "v6e"), {"keys": 512}).keys == 512
    assert tpu_config.chunk_blocks(shape, Target("tpu", "v5e")).queries == 128


def test_the_files_of_sweeps_name_chips_and_sizes():
    files = list(tpu_config.TUNED.rglob("ragged_paged_attention.json"))
    assert files
    for file in files:
        assert file.parent.name in tpu_config.VMEM
        for name, sizes in json.loads(file.read_text()).items():
            assert re.fullmatch(r"(decode|chunk) h(64|128|256)", name)
            assert set(sizes) <= {"rows", "keys", "row_chunk", "key_chunk", "heads", "ones"}
