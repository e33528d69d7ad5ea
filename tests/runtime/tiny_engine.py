"""A tiny random model with a tiny tokenizer, and an EngineCore on it: real programs, quickly compiled."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palladio.runtime.config import EngineConfig
from palladio.runtime.engine_core import EngineCore
from palladio.runtime.messages import AddRequest
from palladio.runtime.outputs import FinishReason, TokenLogprob
from palladio.runtime.sampling_params import SamplingParams
from tests.tiny_tokenizer import build_tiny_tokenizer

VOCAB_SIZE = 400  # the tokenizer knows 384: the last 16 ids are padding
NUM_TOKENS = 384
TINY_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 2,
}
FLAGS: dict[str, Any] = {
    "load_format": "dummy",
    "page_size": 4,
    "max_total_tokens": 1024,
    "max_running_requests": 8,
    "chunked_prefill_size": 32,
    "random_seed": 0,
}


def build_tiny_model_dir(folder: Path) -> Path:
    """A Hugging Face directory without weights, for --load-format dummy."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    return build_tiny_tokenizer(folder, vocab_size=NUM_TOKENS)


def create_core(folder: Path, **flags: Any) -> EngineCore:
    config = EngineConfig.from_flags({"model_path": str(folder), **FLAGS, **flags})
    return EngineCore.create(config, lambda progress: None)


class Collector:
    """Runs requests on a core to the end and keeps what comes out."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        self.finish: dict[str, FinishReason] = {}
        self.num_retractions: dict[str, int] = {}

    def add(self, request_id: str, prompt: list[int], *, stop_ids: tuple[int, ...] = (), **params: Any) -> None:
        params = {"max_tokens": 16, "temperature": 0.0, "seed": 0, **params}
        message = AddRequest(request_id, prompt, SamplingParams(**params), list(stop_ids), 0.0)
        self.core.add(message)
        self.tokens[request_id] = []
        self.logprobs[request_id] = []

    def step(self) -> None:
        for output in self.core.step():
            self.tokens[output.request_id] += output.token_ids
            self.logprobs[output.request_id] += output.logprobs or []
            if output.prompt_logprobs is not None:
                self.prompt_logprobs[output.request_id] = output.prompt_logprobs
            if output.finish is not None:
                self.finish[output.request_id] = output.finish
                self.num_retractions[output.request_id] = output.num_retractions

    def run(self) -> "Collector":
        for _ in range(5000):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "stalled"
        stats = self.core.stats()
        assert stats.integrity_error is None
        assert stats.num_used_tokens == 0
        assert stats.num_compiles_after_ready == 0, "a step compiled something after warm-up"
        return self


def generate(core: EngineCore, prompts: Mapping[str, list[int]], **params: Any) -> dict[str, list[int]]:
    """Tokens of each prompt, all run together."""
    collector = Collector(core)
    for name, prompt in prompts.items():
        collector.add(name, prompt, **params)
    return collector.run().tokens
