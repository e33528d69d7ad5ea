"""An engine with latent attention: drafts and mixed steps, and weights and memory that change while it is up."""

from pathlib import Path

import numpy as np
import pytest

from palladio.runtime.interface.messages.model_messages import SetReleased, UpdateWeights
from tests.model.driver import MAX_LEN
from tests.model.make_goldens import GOLDENS, prompts_of
from tests.runtime.core.weights.test_weight_updates import make_other, steer
from tests.runtime.tiny_engine import Collector, create_core
from tests.tiny_model import make_checkpoint

FAMILY, NUM_TOKENS = "deepseek_v3", 24


@pytest.mark.slow
def test_drafts_and_mixed_steps_and_other_weights(tmp_path: Path) -> None:
    first = make_checkpoint(tmp_path / "first", FAMILY)
    core = create_core(
        first,
        load_format="auto",
        context_length=MAX_LEN,
        page_size=8,
        max_total_tokens=480,
        max_running_requests=3,
        cuda_graph_bs=(3,),
        compile="lazy",
        chunked_prefill_size=20,
        enable_mixed_chunk=True,
        speculative_algorithm="NGRAM",
    )
    golden = np.load(GOLDENS / f"{FAMILY}.npz")["tokens"][:, :NUM_TOKENS].tolist()

    def answers() -> list[list[int]]:
        collector = Collector(core)
        for number, prompt in enumerate(prompts_of(FAMILY)):
            collector.add(str(number), prompt, max_tokens=NUM_TOKENS)
        while core.has_work:  # lazy programs are compiled on the way
            collector.step()
        return [collector.tokens[str(number)] for number in range(len(golden))]

    assert answers() == golden
    assert core.stats().total.num_cached_tokens > 0
    assert steer(core, UpdateWeights(1, str(make_other(tmp_path / "second", first)))).ok
    assert core.stats().total.num_cached_tokens == 0, "latents of the old weights"
    assert answers() != golden
    assert steer(core, SetReleased(2, ["kv_cache"])).ok
    assert steer(core, SetReleased(3, [])).ok
    assert steer(core, UpdateWeights(4, str(first))).ok
    assert answers() == golden
