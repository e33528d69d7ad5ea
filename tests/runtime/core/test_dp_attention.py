"""--enable-dp-attention: ranks with caches of their own, which share experts, give the tokens of one device."""

from pathlib import Path
from typing import Any

import pytest

from palladio.model.functional import flatten_model
from palladio.model.loading.load_model import abstract_model
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from tests.many_devices import call_with_devices
from tests.runtime.core import mesh_requests
from tests.runtime.core.collective_lines import collectives_by_kind
from tests.runtime.core.mesh_requests import assert_same, drain, model_on_meshes
from tests.runtime.tiny_engine import FLAGS, Collector, create_core, random_prompt
from tests.tiny_model import make_checkpoint

SHARED = {"enable_dp_attention": True}
PLAIN = {"compilation_cache_dir": "", "load_format": "auto", "skip_tokenizer_init": True}


def design(folder: str, **flags: Any) -> EnginePlan:
    return EnginePlan.of(EngineConfig.from_flags({"model_path": folder, **FLAGS, **PLAIN, **SHARED, **flags}))


def on_four(folder: str) -> dict[str, Any]:
    one, four = model_on_meshes(folder, [[1, 1, 1], [2, 4, 1]], SHARED | {"cache_self_check": 0.0, "cuda_graph_bs": ()})
    plan = design(folder, tp_size=4, dp_size=2)
    _, leaves = flatten_model(abstract_model(plan.model, dtype=plan.dtypes.activations, mesh=plan.shape.mesh))
    shards = [str(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves]
    return {"one": one, "four": four, "shards": shards, "table": plan.layout.table()}


def collectives(folder: str) -> list[str]:
    """Kinds, of a decode step's forward pass."""
    lines = collectives_by_kind(design(folder, tp_size=4, dp_size=2), only=("forward",))["forward"]
    return [line[2] for line in lines]


def test_two_ranks_of_two_devices(tmp_path: Path) -> None:
    """Of 6 experts each rank has 3, and each of its devices half of their columns."""
    make_checkpoint(tmp_path, "deepseek_v3", num_hidden_layers=2, n_routed_experts=6, n_group=1, topk_group=1)
    found = call_with_devices(__name__, "on_four", str(tmp_path))
    assert_same(found["four"], found["one"], num_logprobs=60)
    assert found["table"][0] == "latent KV cache: all of a rank's on each of 2 devices"
    assert sum(shape.startswith("(3, ") and shape.count(",") == 2 for shape in found["shards"]) >= 3


@pytest.mark.slow
def test_rows_are_gathered_and_sums_scattered_once_a_sparse_layer(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "deepseek_v3")
    kinds = call_with_devices(__name__, "collectives", str(tmp_path))
    num_sparse = 2  # each lowered by itself
    assert kinds.count("reduce-scatter") == num_sparse
    assert kinds.count("all-gather") == 3 * num_sparse  # rows, weights, choices


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "flags", [{}, {"enable_mixed_chunk": True, "speculative_algorithm": "NGRAM"}, {"load_format": "dummy"}], ids=str
)
@pytest.mark.parametrize("family", ["deepseek_v3", "qwen2_moe"])
def test_every_division(tmp_path: Path, family: str, flags: dict[str, Any]) -> None:
    make_checkpoint(tmp_path, family)
    meshes = [[1, 1, 1], [2, 2, 1], [2, 8, 4], [4, 4, 4], [8, 8, 1]]
    arguments = (str(tmp_path), meshes, SHARED | flags)
    one, *others = call_with_devices(mesh_requests.__name__, "model_on_meshes", *arguments, timeout=1500)
    for found in others:
        assert_same(found, one, num_logprobs=60)


def one_chunk_beside_seven(folder: str) -> dict[str, Any]:
    """On eight ranks: seven requests decode, and an eighth one's prompt comes; then it is alone, and seven are idle."""
    flags = PLAIN | SHARED | {"compile": "lazy", "fail_on_recompile": False, "cuda_graph_bs": (1,)}
    core = create_core(Path(folder), tp_size=8, dp_size=8, load_balance_method="round_robin", **flags)
    steps: list[list[int]] = []  # tokens of each rank; an idle one has 0
    schedule = core._scheduler.schedule

    def recording() -> ScheduledStep | None:
        step = schedule()
        if step is not None:
            steps.append([0 if batch is None else batch.num_tokens for batch in step.batches])
        return step

    core._scheduler.schedule = recording  # type: ignore[method-assign]
    collector = Collector(core)
    for number in range(7):
        collector.add(str(number), random_prompt(4, number), max_tokens=9)
    while not all(collector.tokens.values()):
        collector.step()
    collector.add("long", random_prompt(32, 9), max_tokens=24)
    drain(collector)
    (chunk,) = collector.traces["long"].chunks
    return {"steps": steps, "bucket": chunk.bucket_tokens, "tokens": collector.tokens["long"]}


def lone_answer(folder: str) -> list[int]:
    core = create_core(Path(folder), **PLAIN, compile="lazy", fail_on_recompile=False, cuda_graph_bs=(1,))
    collector = Collector(core)
    collector.add("long", random_prompt(32, 9), max_tokens=24)
    drain(collector)
    return collector.tokens["long"]


@pytest.mark.slow
def test_a_chunk_of_one_rank_beside_seven_that_decode(tmp_path: Path) -> None:
    """What docs/design/model.md says of padding: all ranks take the shape of the chunk, and idle ones run along."""
    make_checkpoint(tmp_path, "deepseek_v3", n_routed_experts=8)
    found = call_with_devices(__name__, "one_chunk_beside_seven", str(tmp_path), timeout=600)
    mixed = next(step for step in found["steps"] if max(step) == 32)
    assert sorted(mixed) == [1] * 7 + [32]
    real, gathered = sum(mixed), 8 * found["bucket"]  # as `padding` in benchmarks/paper/latent_paper.py counts them
    assert (real, gathered) == (39, 256)
    idle = [step for step in found["steps"] if sum(step) == 1]
    assert len(idle) >= 10, "seven ranks have nothing to do"
    assert found["tokens"] == call_with_devices(__name__, "lone_answer", str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"tp_size": 4, "dp_size": 3},
            "--dp-size 3 must divide --tp-size 4: .* use --dp-size 1, --dp-size 2, ",
        ),
        ({"tp_size": 8, "dp_size": 4, "ep_size": 2}, "--ep-size 2 must be a multiple of --dp-size 4"),
    ],
)
def test_sizes_that_do_not_fit_each_other(flags: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_flags({"model_path": "m", **SHARED, **flags})


def test_a_model_without_experts_is_refused(tiny_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a mixture-of-experts model.* use --dp-size 1 --tp-size 1 without it"):
        design(str(tiny_dir))
