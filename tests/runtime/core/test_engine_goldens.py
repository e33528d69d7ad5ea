"""The whole engine core against what transformers computed once: chunks, small pages, few slots, padding, overlap."""

import numpy as np
import pytest

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
