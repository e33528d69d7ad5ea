"""Rules, meshes, the cache's storage; and a load onto two devices, where each reads only its part."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from palladio.model.base.sharding import ShardingRules, make_mesh
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.functional import flatten_model
from tests.many_devices import call_with_devices
from tests.model.driver import load
from tests.tiny_model import make_checkpoint


def compare_one_with_two(path: str) -> None:
    one, two = (load(Path(path), mesh=make_mesh(size))[1] for size in (1, 2))
    for a, b in zip(flatten_model(one)[1], flatten_model(two)[1], strict=True):
        np.testing.assert_array_equal(a, np.asarray(b)[tuple(map(slice, a.shape))])  # the vocabulary is padded
        assert len(b.sharding.device_set) == 2
    kernel = two.layers[0].attention.qkv.kernel.values[...]
    assert kernel.addressable_shards[0].data.shape == (48, 1, 5, 8), kernel.sharding


def test_rules_name_mesh_axes():
    mesh = make_mesh(1)
    both = ("expert", "tensor")
    assert ShardingRules().sharding(mesh, (None, "kv_heads", None)).spec == PartitionSpec(None, both, None)
    assert ShardingRules().spec(("experts", None, "expert_ffw")) == PartitionSpec(("rank", "expert"), None, "tensor")
    assert ShardingRules(ffw=None).sharding(mesh, ("ffw",)).spec == PartitionSpec(None)
    with pytest.raises(KeyError):
        ShardingRules().sharding(mesh, ("no such axis",))


def test_too_few_devices():
    with pytest.raises(ValueError, match="tp_size 1000 needs that many devices"):
        make_mesh(1000)


def test_two_devices(tmp_path):
    make_checkpoint(tmp_path, "qwen2")
    call_with_devices(__name__, "compare_one_with_two", str(tmp_path))


def test_cache_storage(tmp_path):
    config, _ = load(make_checkpoint(tmp_path, "qwen2"), load_format="dummy")
    spec = CacheLayout.of(config, page_size=16, dtype=jnp.bfloat16)
    assert spec.bytes_per_page == 2 * 2 * 16 * 128 * 2
    cache = spec.allocate(5, make_mesh(1))
    assert [layer.shape for layer in cache] == [(5, 2, 16, 128)] * 2
    assert sum(layer.nbytes for layer in cache) == 5 * spec.bytes_per_page
    assert all(isinstance(layer, jax.Array) and not np.asarray(layer, np.float32).any() for layer in cache)
