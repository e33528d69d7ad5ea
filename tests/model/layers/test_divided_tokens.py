"""Residuals divided over four devices by tokens: as a TPU slice has them in a prefill step, on four CPU devices."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.sharding import make_mesh
from palladio.model.layers import divided_tokens
from palladio.model.layers.divided_tokens import LEAST_TOKENS, DividedTokens
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target
from tests.many_devices import call_with_devices
from tests.model.driver import Driver, load
from tests.tiny_model import make_checkpoint

TPU = Target("tpu", "v5e", interpret="plain")


def logits_of(path: str, target: Target, prompts: list[list[int]]) -> tuple[list[np.ndarray], tuple[int, int]]:
    """On four devices; and how many scattered sums and hops around the ring the step has."""
    mesh = make_mesh(4)
    config, model = load(Path(path), mesh=mesh, kernels=Kernels("xla", target))
    driver = Driver(TensorLayout.over(config, mesh).config, model, len(prompts), mesh=mesh)
    traces: list[str] = []
    step = driver._step

    def traced(*args):
        traces.append(step.lower(*args).as_text())
        return step(*args)

    driver._step = traced
    found = driver.step(prompts)
    sums, hops = (traces[0].count(f"stablehlo.{name}") for name in ("reduce_scatter", "collective_permute"))
    return [found[b] for b in range(len(prompts))], (sums, hops)


def compare(path: str, num_tokens: int, num_sums: int, num_hops: int) -> None:
    divided_tokens.LEAST_PART = 128 if num_hops else 512
    jax.clear_caches()  # of a layer that was traced with another one
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 200, num_tokens // 5).tolist() for _ in range(5)]
    divided, sent = logits_of(path, TPU, prompts)
    whole, none = logits_of(path, Target("cpu"), prompts)
    assert (sent, none) == ((num_sums, num_hops), (0, 0))
    for a, b in zip(divided, whole, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "num_tokens", "num_sums", "num_hops"),
    [
        ("qwen2", 620, 2, 0),  # of the one function that both layers are
        ("qwen2", 620, 1, 6),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("gemma2", 620, 4, 0),  # norms after products too, and two kinds of layers
                ("gemma2", 620, 2, 12),
                ("cohere", 620, 1, 6),  # attention and MLP side by side
                ("qwen2", 300, 0, 0),
                ("qwen3_moe", 620, 0, 0),
            )
        ),
    ],
)
def test_logits_are_those_of_whole_residuals(family, num_tokens, num_sums, num_hops, tmp_path):
    make_checkpoint(tmp_path, family)
    call_with_devices(__name__, "compare", str(tmp_path), num_tokens, num_sums, num_hops)


def compare_parts() -> None:
    mesh = make_mesh(4)
    tokens = DividedTokens(TPU, mesh, is_plain=True)
    x = jnp.arange(LEAST_TOKENS * 3.0).reshape(LEAST_TOKENS, 3)
    part = jax.jit(tokens.divide)(x)
    assert part.addressable_shards[1].data.shape == (LEAST_TOKENS // 4, 3)
    np.testing.assert_array_equal(part, x)
    whole = jax.jit(tokens.gather)(part)
    assert whole.addressable_shards[1].data.shape == x.shape
    np.testing.assert_array_equal(whole, x)
    for other in (x[:-4], jnp.concatenate([x, x[:1]])):  # too few; no parts of the same size
        assert tokens.divide(other) is other


def test_parts_are_in_the_devices_order():
    call_with_devices(__name__, "compare_parts")
