"""What the log says of the memory that weights take."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from palladio.runtime.core.plan import memory_log
from palladio.runtime.core.plan.memory_log import Memory, log_loaded

GPU, CPU = Memory(available=70.0, resident=2.0, is_cpu=False), Memory(available=20.0, resident=2.0, is_cpu=True)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (GPU, Memory(55.0, 9.0, is_cpu=False), "mem usage=15.00 GB, "),
        (CPU, Memory(25.0, 3.5, is_cpu=True), "mem usage=1.50 GB, "),  # other programs gave memory back
        (CPU, Memory(5.0, 2.0, is_cpu=True), ""),  # other programs took it
        (GPU, Memory(70.5, 9.0, is_cpu=False), ""),
    ],
)
def test_memory_is_measured_or_left_out(before, after, shown, monkeypatch, caplog):
    monkeypatch.setattr(Memory, "now", classmethod(lambda cls: after))
    monkeypatch.setattr(memory_log, "describe_weights", lambda model, dtype: ["Weights: bfloat16: 1.000 GB"])
    dtypes = SimpleNamespace(activations=jnp.bfloat16, weights=jnp.bfloat16)
    with caplog.at_level("INFO", logger="palladio.engine"):
        log_loaded(None, dtypes, "LlamaForCausalLM", before, 1.25)
    assert caplog.messages == [
        "Weights: bfloat16: 1.000 GB",
        f"Load weight end. type=LlamaForCausalLM, dtype=bfloat16, avail mem={after.available:.2f} GB, {shown}1.2 s.",
    ]
