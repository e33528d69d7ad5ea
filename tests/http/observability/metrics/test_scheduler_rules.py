"""What schedulers in front of many servers read of /metrics, by their own rules.

llm-d's scheduler (and the Gateway API inference extension, which it came from) goes by the engine that the pod's label
names. For each figure it looks up one family by its name, takes one sample of it, the first one, and parses labels as
whole numbers; a family that is missing is an error at each scrape. production-stack's router takes the last sample of
each name, and lists models.
"""

import dataclasses
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from palladio.runtime.interface.messages.engine_stats import RankStats
from tests.fake_engine import MODEL, FakeEngine

# By engine: queued and running requests, the used share of the KV cache, the family whose labels tell its size, these
# labels, and the family of adapters, which only vLLM has.
ENGINES = {
    "sglang": (
        "sglang:num_queue_reqs",
        "sglang:num_running_reqs",
        "sglang:token_usage",
        ("sglang:cache_config_info", "page_size", "num_pages"),
        None,
    ),
    "vllm": (
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        ("vllm:cache_config_info", "block_size", "num_gpu_blocks"),
        "vllm:lora_requests_info",
    ),
}
RANK = RankStats(num_running=3, num_waiting=2, num_used_tokens=160, num_total_tokens=640)


def extract(text: str, engine: str) -> dict[str, Any]:
    """What llm-d's extractor makes of a scrape; KeyError: its "metric family not found"."""
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    queued, running, usage, (cache, size, count), adapters = ENGINES[engine]
    pages = families[cache][0].labels
    found: dict[str, Any] = {
        "queued": int(families[queued][0].value),
        "running": int(families[running][0].value),
        "usage": families[usage][0].value,
        "block_size": int(pages[size]),
        "num_blocks": int(pages[count]),
    }
    if adapters is not None:
        (sample,) = families[adapters]
        found["max_adapters"] = int(sample.labels["max_lora"])
        names = sample.labels["running_lora_adapters"], sample.labels["waiting_lora_adapters"]
        found["adapters"] = [name for part in names for name in part.split(",") if name.strip()]
        assert sample.value > 1e9, "the latest sample is the one with the latest time"
    return found


@pytest.mark.parametrize("engine_type", ENGINES)
def test_llm_d_finds_all_that_it_asks_for(http: httpx.Client, engine: FakeEngine, engine_type: str) -> None:
    engine.ranks = [RANK]
    found = extract(http.get("/metrics").text, engine_type)
    adapters = {"max_adapters": 0, "adapters": []} if engine_type == "vllm" else {}
    wanted = {"queued": 2, "running": 3, "usage": 0.25, "block_size": 16, "num_blocks": 20480 // 16}
    assert found == wanted | adapters


def test_a_pod_with_several_ranks_is_one_sample_under_vllm_s_names(http: httpx.Client, engine: FakeEngine) -> None:
    engine.ranks = [RANK, dataclasses.replace(RANK, num_running=1, num_used_tokens=0)]
    text = http.get("/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = [sample.name for sample in samples if sample.name.startswith("vllm:")]
    assert len(names) == len(set(names)) >= 7
    found = extract(text, "vllm")
    assert (found["queued"], found["running"], found["usage"]) == (4, 4, 160 / 1280)


def test_production_stack_finds_load_models_and_sleep(http: httpx.Client, engine: FakeEngine) -> None:
    engine.ranks = [dataclasses.replace(RANK, num_prompt_tokens=40, num_hit_tokens=10)]
    last = {
        sample.name: sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
    }
    assert (last["vllm:num_requests_running"], last["vllm:num_requests_waiting"]) == (3, 2)
    assert last["vllm:gpu_cache_usage_perc"] == last["vllm:kv_cache_usage_perc"] == 0.25
    for prefix in ("gpu_prefix_cache", "prefix_cache"):
        assert (last[f"vllm:{prefix}_queries_total"], last[f"vllm:{prefix}_hits_total"]) == (40, 10)
    assert last["vllm:gpu_prefix_cache_hit_rate"] == 0.25
    assert [model["id"] for model in http.get("/v1/models").json()["data"]] == [MODEL]
    assert http.get("/is_sleeping").json() == {"is_sleeping": False}
    assert http.get("/health").status_code == 200
