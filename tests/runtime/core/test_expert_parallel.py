"""--ep-size: experts spread over devices give the tokens of one device, with one sum a layer and no weight moved."""

import collections
import re
from pathlib import Path
from typing import Any

import pytest

from palladio.model.functional import flatten_model
from palladio.model.loading.load_model import abstract_model
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from tests.many_devices import call_with_devices
from tests.runtime.core import mesh_requests
from tests.runtime.core.collective_lines import collectives_by_kind
from tests.runtime.core.mesh_requests import assert_same, model_on_meshes
from tests.runtime.tiny_engine import FLAGS
from tests.tiny_model import make_checkpoint

# Nothing divides: 5 experts in 2 parts, their columns and the shared expert's over 2 and 4 devices. Layer 0 is dense.
UNEVEN = {"num_experts": 5, "moe_intermediate_size": 27, "shared_expert_intermediate_size": 34}
NUM_LAYERS, HIDDEN_SIZE = 2, 48


def uneven_on_four(folder: str) -> dict[str, Any]:
    one, four = model_on_meshes(folder, [[1, 1, 1], [1, 4, 2]], {"cache_self_check": 0.0})
    design = uneven_design(folder)
    _, leaves = flatten_model(abstract_model(design.model, dtype=design.dtypes.activations, mesh=design.shape.mesh))
    return {
        "one": one,
        "four": four,
        "table": design.layout.table(),
        "shards": [str(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves],
    }


def uneven_collectives(folder: str) -> dict[str, Any]:
    """Opcode and shapes, by kind of program."""
    lines = collectives_by_kind(uneven_design(folder), only=("forward", "forward prefill"))
    return {kind: [[line[2], re.findall(r"\[([\d,]*)\]", line[1])] for line in found] for kind, found in lines.items()}


def uneven_design(folder: str) -> EnginePlan:
    flags = {**FLAGS, "compilation_cache_dir": "", "load_format": "auto", "skip_tokenizer_init": True}
    config = EngineConfig.from_flags({"model_path": folder, **flags, "tp_size": 4, "ep_size": 2})
    return EnginePlan.of(config)


@pytest.mark.slow  # test_dp_attention.py divides experts over four devices, too
def test_four_devices_in_two_parts(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen2_moe", **UNEVEN)
    found = call_with_devices(__name__, "uneven_on_four", str(tmp_path))
    assert_same(found["four"], found["one"], num_logprobs=60)
    assert found["table"][2:-1] == [
        "experts: 5 padded to 6",
        "each expert: 27 columns padded to 28",
        "shared expert: 34 columns padded to 36",
    ]
    for shape in ("(3, 48, 14)", "(3, 14, 48)", "(48, 2, 9)"):  # a device has 3 experts' halves, and a quarter
        assert shape in found["shards"]


@pytest.mark.slow
def test_one_sum_a_layer_and_no_weight_moves(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen2_moe", **UNEVEN)
    found = call_with_devices(__name__, "uneven_collectives", str(tmp_path))
    assert set(found) == {"forward", "forward prefill"}
    for kind, lines in found.items():
        opcodes = collections.Counter(opcode for opcode, _ in lines)
        assert opcodes == {"all-reduce": 2 * NUM_LAYERS + 1}, kind  # as a dense model: and the embedding's
        assert all(shape.endswith(f",{HIDDEN_SIZE}") for _, shapes in lines for shape in shapes)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "mixtral", "glm4_moe", "deepseek_v3", "gpt_oss"])
def test_every_family_on_every_mesh(tmp_path: Path, family: str) -> None:
    names = {"mixtral": "num_local_experts", "gpt_oss": "num_local_experts"}
    names |= {"glm4_moe": "n_routed_experts", "deepseek_v3": "n_routed_experts"}
    layers = {"num_hidden_layers": 2} if family == "gpt_oss" else {}  # with 4, sums differ in the fifth digit
    make_checkpoint(tmp_path, family, **{names.get(family, "num_experts"): 8}, **layers)
    meshes = [[1, 1, 1], [1, 2, 1], [1, 2, 2], [1, 4, 2], [1, 8, 8], [2, 4, 4], [4, 2, 2], [8, 1, 1]]
    one, *others = call_with_devices(mesh_requests.__name__, "model_on_meshes", str(tmp_path), meshes, timeout=1500)
    for found in others:
        assert_same(found, one, num_logprobs=60)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "flags",
    [{"load_format": "dummy"}, {"deterministic": True, "cuda_graph_bs": None}, {"enable_mixed_chunk": True}],
    ids=str,
)
def test_with_other_weights_and_steps(tmp_path: Path, flags: dict[str, Any]) -> None:
    make_checkpoint(tmp_path, "qwen2_moe", **UNEVEN)
    meshes = [[1, 1, 1], [1, 4, 2], [2, 2, 2]]
    one, *others = call_with_devices(
        mesh_requests.__name__, "model_on_meshes", str(tmp_path), meshes, flags, timeout=900
    )
    for found in others:
        assert_same(found, one, num_logprobs=60)


@pytest.mark.parametrize(
    ("tp_size", "ep_size", "message"),
    [
        (
            4,
            3,
            "--ep-size 3 must divide --tp-size 4, whose devices it splits: use --tp-size 3 or a multiple, or --ep-size",
        ),
        (1, 4, "--ep-size 4 must divide --tp-size 1, whose devices it splits: use --tp-size 4 or a multiple"),
        (4, 0, "--ep-size must be at least 1, got 0"),
    ],
)
def test_sizes_that_do_not_fit_each_other(tp_size: int, ep_size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_flags({"model_path": "m", "tp_size": tp_size, "ep_size": ep_size})


def test_models_that_have_too_few_experts(tiny_dir: Path, tmp_path: Path) -> None:
    flags = {"skip_tokenizer_init": True, "compilation_cache_dir": "", "tp_size": 12, "ep_size": 12}
    with pytest.raises(
        ConfigError, match=r"--ep-size 12 needs a mixture.*Qwen3ForCausalLM has no experts.*omit --ep-size"
    ):
        EnginePlan.of(EngineConfig.from_flags({"model_path": str(tiny_dir), **flags}))
    make_checkpoint(tmp_path, "qwen3_moe")
    with pytest.raises(ConfigError, match="--ep-size 12 exceeds the model's 8 experts; use --ep-size 6"):
        EnginePlan.of(EngineConfig.from_flags({"model_path": str(tmp_path), **flags}))
