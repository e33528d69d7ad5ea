"""A model whose queries and keys a kernel rotates computes what it computes without."""

import numpy as np
import pytest

from palladio.model.layers.attention import Attention
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from tests.model.driver import Driver, load
from tests.tiny_model import make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of Llama, with heads of one row of lanes."""
    return make_checkpoint(tmp_path_factory.mktemp("llama"), "llama3", head_dim=128, num_hidden_layers=1)


@pytest.mark.slow  # tests/pallas_kernels has the kernel
def test_a_prompt_is_the_same_with_the_kernel_and_without(checkpoint, monkeypatch):
    called, rotate = [], Attention._rotate_in_kernel

    def count(layer, *args):
        called.append(layer)
        return rotate(layer, *args)

    monkeypatch.setattr(Attention, "_rotate_in_kernel", count)
    ids, logits = list(range(3, 30)), []
    for kernels in (Kernels("xla"), Kernels("tpu", Target(interpret="plain"))):
        config, model = load(checkpoint, kernels=kernels)
        logits.append(Driver(config, model, 1).step([ids])[0])
    assert len(called) == 1
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-4)
