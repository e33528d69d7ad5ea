"""Requests that engines on different meshes answer alike, and what is compared of their answers."""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.tiny_engine import Collector, create_core, random_prompt

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "random": {"temperature": 1.0, "seed": 7, "top_p": 0.9, "top_k": 50},
    "penalties": {
        "temperature": 0.8,
        "seed": 3,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {17: 2.0},
        "logprobs": 5,
    },
}


def add(collector: Collector, requests: dict[str, dict[str, Any]]) -> None:
    for number, (name, params) in enumerate(requests.items()):
        params = {**params}
        collector.add(name, random_prompt(params.pop("length", 20), params.pop("salt", number)), **params)


def drain(collector: Collector) -> None:
    while collector.core.has_work:  # lazy programs are compiled on the way, which `run` would not stand
        collector.step()
    stats = collector.core.stats(check_integrity=True)
    assert stats.integrity_error is None
    assert stats.total.num_used_tokens == 0


def seen(collector: Collector, names: list[str]) -> dict[str, Any]:
    """Tokens, and numbers that may differ in their last bits."""
    outcomes = [collector.outcome(name) for name in names]
    entries = [entry for outcome in outcomes for entry in (*outcome.logprobs, *outcome.prompt_logprobs)]
    return {
        "tokens": collector.tokens,
        "ids": [[entry.token_id, *(token_id for token_id, _ in (*entry.top, *entry.asked))] for entry in entries],
        "logprobs": [value for entry in entries for value in (entry.logprob or 0.0, *dict(entry.asked).values())],
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any], *, num_logprobs: int) -> None:
    """Compare two results.

    Args:
        num_logprobs: there must be more logprobs than this.
    """
    assert found["tokens"] == expected["tokens"]
    assert all(expected["tokens"].values())
    assert found["ids"] == expected["ids"]
    assert len(expected["logprobs"]) > num_logprobs
    assert found["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-5)


def _model_on(folder: str, dp_size: int, tp_size: int, ep_size: int, **flags: Any) -> dict[str, Any]:
    core = create_core(
        Path(folder),
        dp_size=dp_size,
        tp_size=tp_size,
        ep_size=ep_size,
        **{
            "load_format": "auto",
            "compile": "lazy",
            "fail_on_recompile": False,
            "compilation_cache_dir": "",
            "max_running_requests": 8,
            "cuda_graph_bs": (1,),
            "chunked_prefill_size": 32,
            "skip_tokenizer_init": True,
            "cache_self_check": 1.0,
            **flags,
        },
    )
    collector = Collector(core)
    names = [str(number) for number in range(6)]
    for number, length in enumerate((7, 40, 20, 33, 12, 40)):
        scored = {"prompt_logprobs": 5} if number == 3 else {}
        collector.add(str(number), random_prompt(length, length), max_tokens=8, logprobs=5, **scored)
    drain(collector)
    return seen(collector, names)


def model_on_meshes(folder: str, meshes: list[list[int]], flags: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Greedy tokens with their logits' log-softmax, of prompts of different lengths, one of them twice.

    Args:
        meshes: --dp-size, --tp-size and --ep-size of each.
    """
    return [_model_on(folder, *mesh, **(flags or {})) for mesh in meshes]
