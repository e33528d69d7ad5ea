"""The whole engine core against what transformers computed once: chunks, small pages, few slots, padding, overlap."""

from pathlib import Path

import numpy as np
import pytest

from tests import tiny_families
from tests.model.driver import MAX_LEN
from tests.model.make_goldens import GOLDENS, NUM_TOKENS, prompts_of
from tests.runtime.tiny_engine import Collector, create_core
from tests.tiny_model import make_checkpoint

INTERPRETED = [pytest.mark.slow, pytest.mark.timeout(1200)]  # to trace and compile Pallas kernels for a CPU takes long


@pytest.mark.parametrize(
    ("family", "backend"),  # the model tests have all families
    [
        pytest.param("qwen3", "auto", marks=pytest.mark.slow),  # tests/integration has it, by the offline engine
        *(
            pytest.param(family, "auto", marks=pytest.mark.slow)  # below are two, one of them with experts
            for family in ("mistral", "mixtral", "qwen2_moe", "qwen3_moe")
        ),
        pytest.param("qwen3_moe", "gpu_triton", marks=INTERPRETED),
        *(
            pytest.param(family, backend, marks=INTERPRETED)
            for backend in ("tpu", "gpu_triton")
            for family in ("qwen2", "qwen3", "llama3", "mistral", "gpt_oss", "deepseek_v3")
        ),
    ],
)
def test_greedy_tokens_are_those_of_transformers(family, backend, tmp_path) -> None:
    """The Pallas kernels too, interpreted."""
    golden = np.load(GOLDENS / f"{family}.npz")["tokens"]
    core = create_core(
        make_checkpoint(tmp_path, family),
        load_format="auto",
        context_length=MAX_LEN,
        page_size=8,
        max_total_tokens=480,
        max_running_requests=3,
        cuda_graph_bs=(1,),
        compile="lazy",
        chunked_prefill_size=20,
        attention_backend=backend,
    )
    collector = Collector(core)
    for i, prompt in enumerate(prompts_of(family)):
        collector.add(str(i), prompt, max_tokens=NUM_TOKENS)
    collector.run()
    for i, expected in enumerate(golden):
        assert collector.tokens[str(i)] == expected.tolist(), f"prompt of {len(prompts_of(family)[i])} tokens"


POOLS = {"phi3": 48, "starcoder2": 48, "gemma3": 112, "gemma2": 112, "olmo3": 112, "cohere2": 112, "gpt_oss": 112}
"""Tokens, fewer where all layers, or some, keep the newest 12 only."""


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in ("gemma3", "deepseek_v3") else pytest.mark.slow)
        for name in tiny_families.CONFIGS
    ],
)
def test_nothing_changes_what_a_family_says(family: str, tmp_path: Path) -> None:
    """Chunks, small pages, retraction for want of pages, and then a prompt once more, from the prefix cache."""
    golden, chosen = np.load(GOLDENS / f"{family}.npz")["tokens"], prompts_of(family)[-5:]
    core = create_core(
        make_checkpoint(tmp_path, family),
        load_format="auto",
        context_length=MAX_LEN,
        max_total_tokens=POOLS.get(family, 160),  # of requests that have up to 139 each
        schedule_conservativeness=0.0,
        max_running_requests=4,
        cuda_graph_bs=(4,),
        compile="lazy",
        chunked_prefill_size=20,
    )
    collector, last = Collector(core), len(chosen) - 1
    for i, prompt in enumerate(chosen):
        collector.add(str(i), prompt, max_tokens=NUM_TOKENS)
    collector.run()
    # Where no layer keeps more than a window, a request takes all it ever needs when it is admitted.
    assert (sum(collector.num_retractions.values()) > 0) == (family not in ("phi3", "starcoder2"))
    for name, num_tokens in (("alone", 8), ("again", NUM_TOKENS)):  # longer ones, alone, would push the prompt out
        collector.add(name, chosen[last], max_tokens=num_tokens)
        collector.run()
    assert collector.cached_tokens["again"] >= len(chosen[last]) - 4
    found = [collector.tokens[name] for name in (*map(str, range(last + 1)), "alone", "again")]
    assert found == [row.tolist() for row in (*golden[-5:], golden[-1][:8], golden[-1])]
