"""Layers with a window beside others, in one engine: nothing that is kept or given back changes an answer."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from tests.many_devices import call_with_devices
from tests.runtime.core.mesh_requests import REQUESTS, add, assert_same, drain, seen
from tests.runtime.tiny_engine import TINY_CONFIG, Collector, TinyEngine, create_core, random_prompt
from tests.tiny_families import CONFIGS
from tests.tiny_tokenizer import build_tiny_tokenizer

WINDOW, PAGE = 22, 4
HYBRID = {"num_hidden_layers": 4, "sliding_window": WINDOW, "sliding_window_pattern": 4}
TABLES = (None, WINDOW, WINDOW, WINDOW)  # of a layer each
FLAGS: dict[str, Any] = {"chunked_prefill_size": 64, "cache_self_check": 1.0, "cuda_graph_bs": (1,)}
SHARED = random_prompt(60)
PROMPTS = {f"r{i}": [*SHARED, *random_prompt(30 + i, salt=1 + i)] for i in range(4)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid")
    (path / "config.json").write_text(json.dumps({**TINY_CONFIG, **CONFIGS["gemma3"], **HYBRID}))
    return build_tiny_tokenizer(path, vocab_size=384)


@pytest.fixture(scope="module")
def hybrid(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **FLAGS, compile="lazy")


@pytest.fixture(scope="module")
def expected(hybrid: TinyEngine) -> dict[str, list[int]]:
    return one_by_one(hybrid.core(disable_radix_cache=True)).tokens


def one_by_one(core: EngineCore) -> Collector:
    collector = Collector(core)
    for name, prompt in PROMPTS.items():
        collector.add(name, prompt, max_tokens=40)
        collector.run()
    return collector


def cache_of(core: EngineCore) -> CacheManager:
    return core._scheduler.schedulers[0].cache


def test_groups_share_the_arrays_of_one_pool(hybrid: TinyEngine) -> None:
    core = hybrid.core()
    groups = cache_of(core).groups
    assert [one for group in groups.windows for one in [group.window] * len(group.tables)] == list(TABLES[1:])
    assert len(core._runner.executor.state.kv_cache) == 1, "of 4 layers, one by each table"


def test_hits_are_those_without_windows_and_tokens_those_without_a_cache(
    hybrid: TinyEngine, expected: dict[str, list[int]]
) -> None:
    core = hybrid.core()
    collector = one_by_one(core)
    assert collector.tokens == expected
    assert list(collector.cached_tokens.values()) == [0, 60, 60, 60]
    together = Collector(core)
    for name, prompt in PROMPTS.items():
        together.add(name, [*prompt, *expected[name][:20]], max_tokens=20)
    together.run()
    assert together.tokens == {name: tokens[20:] for name, tokens in expected.items()}
    assert all(count >= len(PROMPTS[name]) for name, count in together.cached_tokens.items()), "windows of outputs too"
    stats = core.stats()
    assert stats.num_self_checks == 0
    assert stats.total.num_hit_tokens == sum([*collector.cached_tokens.values(), *together.cached_tokens.values()])


def test_pages_at_the_peak_of_prefill_and_while_decoding(hybrid: TinyEngine) -> None:
    core = hybrid.core(chunked_prefill_size=32)
    collector = Collector(core)
    collector.add("x", random_prompt(150), max_tokens=50)
    most: dict[bool, list[int]] = {True: [0, 0, 0], False: [0, 0, 0]}
    whole = 0
    while core.has_work:
        collector.step()
        for request in core._scheduler.schedulers[0].running:
            kind = most[request.num_computed <= 150]
            kind[:] = map(max, kind, [held.num_pages for held in request.windows] * 3)
            whole = max(whole, len(request.pages))
    assert whole == 50
    assert max(most[True]) <= -(-(WINDOW - 1 + 32) // PAGE) + 1
    assert max(most[False]) <= -(-WINDOW // PAGE) + 2


def test_fewer_pages_than_all_layers_would_keep(hybrid: TinyEngine, expected: dict[str, list[int]]) -> None:
    """All four run at once in the memory of 240 tokens, though they have more than 500; and nothing changes."""
    core = hybrid.core(max_total_tokens=240, schedule_conservativeness=0.0)
    collector = Collector(core)
    for name, prompt in PROMPTS.items():
        collector.add(name, prompt, max_tokens=40)
    most = 0
    while core.has_work:
        collector.step()
        most = max(most, core.stats().total.num_running)
    collector.run()
    assert most == 4
    assert collector.tokens == expected


def test_a_request_longer_than_the_pool_holds_of_all_layers(hybrid: TinyEngine) -> None:
    """It fits alone, because the windowed layers keep the newest tokens only."""
    prompt = random_prompt(170)
    whole = Collector(hybrid.core(disable_radix_cache=True))
    whole.add("long", prompt, max_tokens=30)
    expected = whole.run().tokens
    collector = Collector(hybrid.core(max_total_tokens=104))
    collector.add("long", prompt, max_tokens=30)
    assert collector.run().tokens == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"num_continuous_decode_steps": 3},
        {"speculative_algorithm": "NGRAM"},
        {"speculative_algorithm": "NGRAM", "max_total_tokens": 160, "enable_mixed_chunk": True},
        {"deterministic": True, "cuda_graph_bs": None, "chunked_prefill_size": 16},
        {"enable_mixed_chunk": True, "chunked_prefill_size": 16, "max_total_tokens": 240},
        {"chunked_prefill_size": -1},
        {"disable_overlap_schedule": True, "radix_eviction_policy": "lfu", "max_total_tokens": 160},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_with_other_steps(folder: Path, expected: dict[str, list[int]], flags: dict[str, Any]) -> None:
    core = create_core(folder, **{**FLAGS, "compile": "lazy", "fail_on_recompile": False, **flags})
    collector = Collector(core)
    for turn in range(2):
        for name, prompt in PROMPTS.items():
            collector.add(f"{name} {turn}", prompt, max_tokens=40)
        drain(collector)
    assert collector.tokens == {f"{name} {turn}": tokens for turn in range(2) for name, tokens in expected.items()}
    assert core.stats().num_self_check_failures == 0
    assert core.stats().total.num_hit_tokens > 0


def pages_of_hit(cache: CacheManager, prompt: list[int]) -> list[list[int]]:
    """Of each block table, the pages that a request with this prompt would be given."""
    keys = [tuple(prompt[i : i + PAGE]) for i in range(0, len(prompt) // PAGE * PAGE, PAGE)]
    node, pages = cache.tree.match(keys, None)
    windows = cache.tree.windows.before(node, len(pages))
    return [pages, *([place.ids[table] for place in places] for places in windows for table in range(3))]


@pytest.mark.parametrize("table", range(len(TABLES)))
def test_a_self_check_finds_a_wrong_page_of_each_group(
    hybrid: TinyEngine, table: int, caplog: pytest.LogCaptureFixture
) -> None:
    core = hybrid.core(cache_self_check=1.0)
    collector = one_by_one(core)
    assert core.stats().num_self_checks == 3
    assert core.stats().num_self_check_failures == 0
    pages = pages_of_hit(cache_of(core), SHARED)
    assert [len(of_table) for of_table in pages] == [15, 6, 6, 6], "what a hit uses, and no more"
    runner = core._runner
    noise = np.random.default_rng(0).standard_normal(runner.executor.state.kv_cache[0].shape[1:])
    layers = tuple(layer.at[pages[table][-2]].set(noise) for layer in runner.executor.state.kv_cache)
    runner.executor.state = runner.executor.state._replace(kv_cache=layers)
    with caplog.at_level(logging.ERROR, "palladio.engine"):
        collector.add("again", [*SHARED, 5])
        collector.run()
    assert "the cached keys and values of request again differ" in caplog.text
    assert core.stats().num_self_check_failures == 1
    assert not core.stats().cache_enabled


def run_with_a_reset(folder: str, dp_size: int, tp_size: int, *, resets: bool) -> dict[str, Any]:
    """Twice the same requests, then longer ones; between some steps the device loses its state.

    For few programs, which devices take long to compile: a layer of each kind, steps of one size, one tier of sampling.
    """
    few = {"json_model_override_args": json.dumps({"num_hidden_layers": len(TABLES)})}
    few |= {"chunked_prefill_size": 16, "cuda_graph_bs": ()}
    core = create_core(
        Path(folder),
        compile="lazy",
        fail_on_recompile=False,
        skip_tokenizer_init=True,
        dp_size=dp_size,
        tp_size=tp_size,
        **FLAGS | few,
    )
    collector = Collector(core)
    for turn in range(3):
        requests = {f"{name} {turn}": params | {"length": 40 + 30 * turn} for name, params in REQUESTS.items()}
        add(collector, {name: {"max_tokens": 20, "logprobs": 2} | params for name, params in requests.items()})
        for _ in range(9):
            collector.step()
        if resets and turn == 1:
            collector.take(core._process(keep=0))
            core._scheduler.start_over()
            core._runner.executor.reset_state()
        drain(collector)
    assert core.stats().num_self_check_failures == 0
    return seen(collector, [f"{name} {turn}" for name in REQUESTS for turn in range(3)])


def run_on_meshes(folder: str) -> list[dict[str, Any]]:
    return [run_with_a_reset(folder, 1, 1, resets=False), run_with_a_reset(folder, 2, 2, resets=True)]


@pytest.mark.slow  # test_states.py has such ranks, with windows and states
def test_ranks_of_two_devices_that_lose_their_state_give_the_same_tokens(folder: Path) -> None:
    one, ranks = call_with_devices(__name__, "run_on_meshes", str(folder))
    assert_same(ranks, one, num_logprobs=60)
