"""--dp-size: groups of devices, each with requests of its own, give the tokens of one device."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_stats import EngineStats
from palladio.runtime.interface.messages.stats_report import describe_stats
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.interface.request.sampling_params import SamplingParams
from tests.many_devices import call_with_devices
from tests.runtime.core import mesh_requests
from tests.runtime.core.collective_lines import collectives_by_kind
from tests.runtime.core.mesh_requests import REQUESTS, add, assert_same, drain, seen
from tests.runtime.tiny_engine import FLAGS, Collector, create_core, random_prompt
from tests.tiny_model import make_checkpoint

MESH_FLAGS = {
    "compile": "lazy",
    "fail_on_recompile": False,
    "max_running_requests": 8,
    "cuda_graph_bs": (1,),
    "chunked_prefill_size": 64,
    "skip_tokenizer_init": True,
    "cache_self_check": 1.0,
}
TOKENS = {"max_tokens": 12, "logprobs": 2}  # so that all are in one tier of the sampler: fewer programs
MORE_REQUESTS: dict[str, dict[str, Any]] = {
    **REQUESTS,
    "another": {"temperature": 0.7, "seed": 3, "presence_penalty": 0.5, "min_tokens": 4, "logprobs": 2},
    "scored": {"prompt_logprobs": 2, "length": 75, "logprobs": 0, "logprob_token_ids": (3, 250)},
    "alone": {"length": 7},
}


def run_requests(folder: str, tp_size: int, dp_size: int, flags: dict[str, Any]) -> dict[str, Any]:
    """All requests; then, in other groups than before, the prompts of some again and longer; then one alone."""
    core = create_core(Path(folder), tp_size=tp_size, dp_size=dp_size, **{**MESH_FLAGS, **flags})
    collector = Collector(core)
    add(collector, {name: TOKENS | params for name, params in MORE_REQUESTS.items()})
    drain(collector)
    for number, name in enumerate(MORE_REQUESTS):
        prompt, asks = random_prompt(20, number) + [9] * (3 + number), RequestOptions(timeline=True)
        collector.add(f"{name} again", prompt, options=asks, **TOKENS)
        collector.step()  # the earlier ones decode beside the later ones' prompts
        collector.step()
    drain(collector)
    collector.add("idle", random_prompt(20, 0), **TOKENS)
    drain(collector)
    told = {name: sum(record.new_tokens for record in of) for name, of in collector.timelines.items()}
    assert told == {f"{name} again": len(collector.tokens[f"{name} again"]) for name in MORE_REQUESTS}
    stats = core.stats()
    check_parts(stats, dp_size)
    assert stats.num_self_check_failures == 0
    hits = [name for name, count in collector.cached_tokens.items() if count]
    assert stats.num_self_checks >= min(1, len(hits))
    return {**seen(collector, list(MORE_REQUESTS)), "hits": hits}


def check_parts(stats: EngineStats, dp_size: int) -> None:
    """Each rank had requests, and /server_info tells sums: of what its ranks tell, if there are several."""
    assert len(stats.ranks) == dp_size
    assert all(rank.num_prompt_tokens for rank in stats.ranks)
    told = describe_stats(stats)
    assert len(told.get("groups", ())) == (0 if dp_size == 1 else dp_size), "one rank is the whole engine"
    for name in ("num_running", "num_waiting", "num_waiting_tokens", "num_used_tokens", "num_total_tokens"):
        assert told[name] == sum(dataclasses.asdict(rank)[name] for rank in stats.ranks), name
    for name in ("num_cached_tokens", "num_prompt_tokens", "num_hit_tokens"):
        assert told["cache"][name] == sum(dataclasses.asdict(rank)[name] for rank in stats.ranks), name
    assert told["num_retractions"] == sum(rank.num_retractions for rank in stats.ranks)
    assert told["new_token_ratio"] == max(rank.new_token_ratio for rank in stats.ranks)


def run_on_meshes(folder: str, meshes: list[list[int]], flags: dict[str, Any]) -> list[dict[str, Any]]:
    return [run_requests(folder, tp_size, dp_size, flags) for dp_size, tp_size in meshes]


@pytest.mark.slow  # test_states.py and test_dp_attention.py have two ranks of two devices
def test_tokens_and_logprobs_are_those_of_one_device(tiny_dir: Path, tmp_path: Path) -> None:
    flags = {"compilation_cache_dir": str(tmp_path), "load_balance_method": "prefix"}
    one, groups = call_with_devices(__name__, "run_on_meshes", str(tiny_dir), [[1, 1], [2, 2]], flags)
    assert_same(groups, one, num_logprobs=60)
    assert groups["hits"], "prefixes are found"


@pytest.mark.parametrize(
    "flags",
    [
        {"num_continuous_decode_steps": 3},
        {"speculative_algorithm": "NGRAM"},
        {"deterministic": True, "cuda_graph_bs": None},
        {"enable_mixed_chunk": True, "chunked_prefill_size": 32, "load_balance_method": "shortest_queue"},
        {"max_total_tokens": 400, "schedule_conservativeness": 0.0},
    ],
    ids=lambda flags: next(iter(flags)),
)
@pytest.mark.slow
def test_with_other_steps(tiny_dir: Path, tmp_path: Path, flags: dict[str, Any]) -> None:
    flags = {"compilation_cache_dir": str(tmp_path), **flags}
    one, groups = call_with_devices(__name__, "run_on_meshes", str(tiny_dir), [[1, 1], [4, 1]], flags)
    assert_same(groups, one, num_logprobs=60)


def closed_set(folder: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Every program is built ahead; retractions, aborts and an idle group beside a busy one need no other."""
    core = create_core(
        Path(folder),
        dp_size=2,
        max_running_requests=4,
        chunked_prefill_size=16,
        max_total_tokens=160,
        context_length=64,
        skip_tokenizer_init=True,
        schedule_conservativeness=0.0,
        **flags,
    )
    collector = Collector(core)
    for number in range(4):
        collector.add(f"r{number}", random_prompt(24, number), max_tokens=30)
    collector.add("aborted", random_prompt(20, 5), max_tokens=30)
    for _ in range(6):
        collector.step()
    core.abort(["aborted"])
    (state,) = core.explain(["r1"])
    collector.run()
    collector.add("alone", random_prompt(20, 6))
    collector.run()
    stats, ready = core.stats(), core.ready
    return {
        "tokens": {name: tokens for name, tokens in collector.tokens.items() if name != "aborted"},
        "num_retractions": stats.total.num_retractions,
        "state": state.status,
        "num_total_tokens": [
            stats.total.num_total_tokens,
            ready.max_total_tokens,
            ready.max_running_requests,
        ],
    }


def one_by_one(folder: str, flags: dict[str, Any]) -> dict[str, list[int]]:
    core = create_core(Path(folder), **{**MESH_FLAGS, **flags})
    collector = Collector(core)
    for name, length, salt in [*((f"r{number}", 24, number) for number in range(4)), ("alone", 20, 6)]:
        collector.add(name, random_prompt(length, salt), max_tokens=16 if name == "alone" else 30)
        drain(collector)
    return collector.tokens


@pytest.mark.slow
def test_no_step_compiles_anything_after_the_start(tiny_dir: Path, tmp_path: Path) -> None:
    flags = {"compilation_cache_dir": str(tmp_path)}
    found = call_with_devices(__name__, "closed_set", str(tiny_dir), flags)
    assert found["num_retractions"] > 0
    assert found["state"] in ("running", "waiting")
    assert found["num_total_tokens"] == [160, 80, 4]
    assert found["tokens"] == call_with_devices(__name__, "one_by_one", str(tiny_dir), flags)


def embed(folder: str, dp_size: int, flags: dict[str, Any]) -> list[list[float]]:
    core = create_core(
        Path(folder), dp_size=dp_size, is_embedding=True, **{**MESH_FLAGS, "cuda_graph_bs": None, **flags}
    )
    vectors: dict[str, list[float]] = {}
    for number, length in enumerate((5, 90, 20, 33, 12)):
        params = SamplingParams(max_tokens=0, temperature=0.0, seed=0)
        prompt = random_prompt(length, number)
        core.add(GenerationRequest(str(number), prompt, params, (), 0.0, RequestOptions()))
    while core.has_work:
        for output in by_request(core.step()):
            assert output.embedding is not None
            vectors[output.request_id] = memoryview(output.embedding).cast("f").tolist()
    return [vectors[str(number)] for number in range(5)]


def embed_on(folder: str, flags: dict[str, Any]) -> list[list[list[float]]]:
    return [embed(folder, dp_size, flags) for dp_size in (1, 2)]


@pytest.mark.slow
def test_embeddings_are_those_of_one_device(tiny_dir: Path, tmp_path: Path) -> None:
    flags = {"compilation_cache_dir": str(tmp_path), "cache_self_check": 0.0}
    one, two = call_with_devices(__name__, "embed_on", str(tiny_dir), flags)
    for vector, expected in zip(two, one, strict=True):
        assert vector == pytest.approx(expected, abs=1e-5)


def constrain(folder: str, dp_size: int, flags: dict[str, Any]) -> dict[str, list[int]]:
    core = create_core(Path(folder), dp_size=dp_size, **{**MESH_FLAGS, "skip_tokenizer_init": False, **flags})
    collector = Collector(core)
    for number in range(3):
        grammar = None if number == 1 else Grammar("regex", f"[ab]{{{4 + number}}}c")
        collector.add(str(number), random_prompt(10, number), grammar=grammar, max_tokens=10)
    drain(collector)
    return collector.tokens


def constrain_on(folder: str, flags: dict[str, Any]) -> list[dict[str, list[int]]]:
    return [constrain(folder, dp_size, flags) for dp_size in (1, 2)]


@pytest.mark.slow
def test_a_grammar_in_one_group_beside_free_text_in_another(tiny_dir: Path, tmp_path: Path) -> None:
    one, two = call_with_devices(__name__, "constrain_on", str(tiny_dir), {"compilation_cache_dir": str(tmp_path)})
    assert two == one
    assert one["0"] != one["1"]


def collectives(folder: str) -> dict[str, list[str]]:
    """Of one program of each kind: the devices between which its collectives run."""
    flags = {**FLAGS, **MESH_FLAGS, "compilation_cache_dir": ""}
    config = EngineConfig.from_flags({"model_path": folder, **flags, "tp_size": 2, "dp_size": 2})
    design = EnginePlan.of(config)
    return {
        kind: [match[1] if (match := re.search(r"replica_groups=(\S+),", line[0])) else line[0] for line in lines]
        for kind, lines in collectives_by_kind(design).items()
    }


@pytest.mark.slow
def test_nothing_crosses_the_border_between_groups(tiny_dir: Path) -> None:
    programs = call_with_devices(__name__, "collectives", str(tiny_dir))
    assert len(programs["forward"]) == len(programs["forward prefill"]) == 3, "the embedding, and two of the one layer"
    for kind, groups in programs.items():
        assert set(groups) <= {"[2,2]<=[4]", "{{0,1},{2,3}}"}, kind
    for kind in ("reset", "tables"):
        assert programs[kind] == [], kind


def more_devices_than_there_are(folder: str) -> str:
    flags = {"model_path": folder, "tp_size": 3, "dp_size": 3}
    with pytest.raises(ConfigError) as caught:
        EngineCore.create(EngineConfig.from_flags(flags), lambda progress: None)
    return str(caught.value)


@pytest.mark.slow  # test_tensor_parallel has its like
def test_more_devices_than_there_are(tiny_dir: Path) -> None:
    message = call_with_devices(__name__, "more_devices_than_there_are", str(tiny_dir))
    assert message == "--dp-size 3 × --tp-size 3 needs 9 devices, but jax finds 8 (cpu); use --dp-size 2 or less"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama3", "mistral"])
def test_every_family_on_every_mesh(tmp_path: Path, family: str) -> None:
    make_checkpoint(tmp_path, family)
    meshes = [[1, 1, 1], [1, 2, 1], [1, 4, 1], [1, 8, 1], [2, 4, 1], [4, 2, 1]]
    one, *others = call_with_devices(mesh_requests.__name__, "model_on_meshes", str(tmp_path), meshes, timeout=1500)
    for found in others:
        assert_same(found, one, num_logprobs=60)
