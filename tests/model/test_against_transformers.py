"""The models give what transformers gives: float32 logits and greedy tokens, ragged, across page edges, in chunks."""

import importlib.util

import numpy as np
import pytest

from palladio.pallas_kernels.choice import Kernels
from tests.model.driver import Driver, greedy, load
from tests.model.make_goldens import GOLDENS, NUM_TOKENS, prompts, prompts_of
from tests.tiny_model import FAMILIES, make_checkpoint

# One of each kind of layer; the slow tier compares all families.
KINDS = (
    *("qwen2", "llama3"),  # biases, frequencies
    *("gemma2", "cohere2", "nemotron"),  # windows, norms of other forms and places, soft caps, MLPs without a gate
    *("qwen2_moe", "deepseek_v3", "gpt_oss", "qwen3_next"),  # experts, latents, sinks, states
    *("gpt2", "phi", "gpt_neox"),  # learned positions, parallel residuals with one norm and with two
    *("apertus", "hunyuan", "olmo2", "granite"),  # a learned curve, norms after rotation and of all heads, scales
)
# test_golden has the kinds of layers; of this one a single position shows least.
EVERY_POSITION = ("qwen2_windowed",)
DECODED = 24  # of the NUM_TOKENS that goldens hold: every prompt grows over the edge of a page
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")


@pytest.mark.parametrize(
    ("family", "count"),
    [
        *(pytest.param(name, DECODED, marks=() if name in KINDS else pytest.mark.slow) for name in FAMILIES),
        *(pytest.param(family, NUM_TOKENS, marks=pytest.mark.slow) for family in FAMILIES),
    ],
)
def test_golden(family, count, tmp_path):
    """Without torch: what transformers computed once (tests/model/make_goldens.py)."""
    golden, chosen = np.load(GOLDENS / f"{family}.npz"), prompts_of(family)
    config, model = load(make_checkpoint(tmp_path, family))
    logits, tokens = greedy(Driver(config, model, len(chosen)), chosen, count)
    np.testing.assert_allclose(logits, golden["logits"], atol=1e-4, rtol=0)
    np.testing.assert_array_equal(tokens, golden["tokens"][:, :count])


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in EVERY_POSITION else pytest.mark.slow) for name in FAMILIES]
)
def test_every_logit_of_the_prompts(family, tmp_path):
    """With torch: all positions, not only the last one."""
    from tests.model import hf_oracle

    path = make_checkpoint(tmp_path, family)
    config, model = load(path)
    ours = Driver(config, model, len(prompts_of(family))).step(prompts_of(family))
    theirs, _ = hf_oracle.run(path, prompts_of(family), 1)
    for b, expected in enumerate(theirs):
        np.testing.assert_allclose(ours[b], expected, atol=1e-4, rtol=0)


@pytest.mark.slow  # tests/runtime/core/test_prefix_cache.py and test_states.py have chunks
@pytest.mark.parametrize(("family", "cut"), [("qwen2", 1), ("qwen2", 16), ("mistral", 15), ("mistral", 40)])
def test_two_chunks_equal_one(family, cut, tmp_path):
    config, model = load(make_checkpoint(tmp_path, family))
    whole = Driver(config, model, len(prompts())).step(prompts())
    driver = Driver(config, model, len(prompts()))
    parts = (driver.step([p[:cut] for p in prompts()]), driver.step([p[cut:] for p in prompts()]))
    for b in range(len(prompts())):
        chunked = np.concatenate([part[b] for part in parts if b in part])
        np.testing.assert_allclose(chunked, whole[b], atol=2e-5, rtol=0)


@pytest.mark.slow  # tests/runtime/core/test_determinism.py has them
def test_neighbours_and_padding_change_nothing(tmp_path):
    """A request alone, and among others in another order: the same logits."""
    config, model = load(make_checkpoint(tmp_path, "qwen3"))
    together = Driver(config, model, len(prompts())).step(prompts()[::-1])
    for b in (0, 3, 8):
        prompt = prompts()[::-1][b]
        alone = Driver(config, model, 1).step([prompt])[0]
        np.testing.assert_allclose(together[b], alone, atol=2e-5, rtol=0)


@pytest.mark.slow  # tests/runtime/core/test_engine_scheduling.py has mixed steps
def test_prefill_and_decode_in_one_step(tmp_path):
    config, model = load(make_checkpoint(tmp_path, "qwen2"))
    first, second = prompts()[5], prompts()[7]
    expected = Driver(config, model, 2).step([first, second])
    driver = Driver(config, model, 2)
    driver.step([first[:-1], []])
    mixed = driver.step([first[-1:], second])
    np.testing.assert_allclose(mixed[0][-1], expected[0][-1], atol=2e-5, rtol=0)
    np.testing.assert_allclose(mixed[1], expected[1], atol=2e-5, rtol=0)


@pytest.mark.slow  # tests/pallas_kernels/test_ragged_paged_attention.py has both backends
def test_reference_backend_agrees(tmp_path):
    path = make_checkpoint(tmp_path, "mistral")
    outputs = [
        Driver(*load(path, kernels=Kernels(backend)), num_sequences=len(prompts())).step(prompts())
        for backend in ("xla", "reference")
    ]
    for b in range(len(prompts())):
        np.testing.assert_allclose(outputs[0][b], outputs[1][b], atol=2e-5, rtol=0)
