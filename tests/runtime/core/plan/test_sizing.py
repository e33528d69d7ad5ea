"""What a platform's defaults make of the flags."""

import dataclasses
import json
from typing import Any

import jax.numpy as jnp
import pytest

from palladio.flags.default_model import default_model_path
from palladio.model.base.sharding import make_abstract_mesh
from palladio.model.cache.kv_cache import fitting_page_size
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.config.config_overrides import override
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.device_shape import device_shape
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults, compile_mode
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from tests.tiny_model import tiny_config

MODEL = default_model_path()


def decode_sizes(platform: str, **flags: Any) -> tuple[int, ...]:
    config, defaults = EngineConfig.from_flags({"model_path": str(MODEL), **flags}), PlatformDefaults.of(platform)
    limits = EngineLimits.of(config, ModelConfig.from_hf(*read_model_dir(MODEL, {})), defaults)
    return limits.buckets(config, defaults).decode


@pytest.mark.parametrize(
    ("platform", "flags", "sizes"),
    [
        ("gpu", {"max_running_requests": 16}, (2, 4, 8, 16)),
        ("tpu", {"max_running_requests": 16}, (2, 4, 8, 16)),
        ("cpu", {"max_running_requests": 16}, (1, 2, 4, 8, 16)),
        ("gpu", {"max_running_requests": 1}, (1,)),
        ("gpu", {"max_running_requests": 16, "cuda_graph_bs": (1, 4)}, (1, 4, 16)),
        ("gpu", {"max_running_requests": 16, "cuda_graph_max_bs": 1}, (1, 16)),
        ("gpu", {"max_running_requests": 16, "deterministic": True}, ()),
    ],
    ids=str,
)
def test_the_smallest_decode_step_of_an_accelerator_has_two_rows_unless_flags_say_otherwise(
    platform: str, flags: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert decode_sizes(platform, **flags) == sizes


@pytest.mark.parametrize(
    ("platform", "num_shards", "dtype", "page_size"),
    [
        ("cpu", 1, "bfloat16", 16),
        ("gpu", 8, "bfloat16", 16),
        ("tpu", 1, "bfloat16", 16),
        ("tpu", 2, "bfloat16", 16),
        ("tpu", 4, "bfloat16", 32),
        ("tpu", 8, "bfloat16", 64),
        ("tpu", 1, "float32", 16),
        ("tpu", 1, "float8_e4m3fn", 32),
        ("tpu", 8, "float8_e4m3fn", 128),
    ],
)
def test_pages_of_a_tpu_are_as_large_as_makes_a_copy_worth_its_start(
    platform: str, num_shards: int, dtype: str, page_size: int
) -> None:
    """Of 8 KV heads of 128; and whole tiles, which of 8 bits are 32 tokens."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    model = ModelConfig.from_hf(*read_model_dir(MODEL, heads))
    mesh, least = make_abstract_mesh(num_shards), PlatformDefaults.of(platform).least_page_bytes
    assert fitting_page_size(model, dtype=dtype, mesh=mesh, least_bytes=least) == page_size


def test_an_engine_takes_the_page_size_that_fits_unless_a_flag_names_one() -> None:
    model, mesh = ModelConfig.from_hf(*read_model_dir(MODEL, {})), make_abstract_mesh(1)

    def page_size(platform: str, **flags: Any) -> int:
        config, defaults = EngineConfig.from_flags({"model_path": str(MODEL), **flags}), PlatformDefaults.of(platform)
        limits, dtypes = EngineLimits.of(config, model, defaults), Dtypes.of(config, Target(platform), model)
        layout = TensorLayout.of(model, 1, 1)
        return device_shape(config, layout, limits, dtypes, mesh, model.vocab_size, None).page_size

    assert (page_size("cpu"), page_size("gpu"), page_size("tpu", page_size=16)) == (16, 16, 16)
    assert page_size("tpu") > 16  # its few small heads


@pytest.mark.parametrize(
    ("flags", "changes", "weights"),
    [
        ({}, {}, "bfloat16"),
        ({}, {"stored_dtype": None, "dtype": "bfloat16"}, "bfloat16"),  # random weights
        ({}, {"stored_dtype": "float32"}, "float32"),  # nothing is rounded that the file has
        ({}, {"stored_dtype": "float16"}, "float32"),
        ({}, {"hidden_size": 256}, "float32"),  # such matrices stay in caches
        ({"tp_size": 2}, {}, "float32"),
        ({"dp_size": 2}, {}, "float32"),
        ({"dtype": "float32"}, {}, "float32"),
        ({"dtype": "bfloat16"}, {"hidden_size": 256, "stored_dtype": "float32"}, "bfloat16"),
    ],
)
def test_a_cpu_keeps_the_bfloat16_of_the_files_where_it_multiplies_that_faster(
    flags: dict[str, Any], changes: dict[str, Any], weights: str
) -> None:
    config = EngineConfig.from_flags({"model_path": str(MODEL), **flags})
    model = ModelConfig.from_hf(*read_model_dir(MODEL))
    model = dataclasses.replace(model, **{"hidden_size": 1024, "stored_dtype": "bfloat16", **changes})
    dtypes = Dtypes.of(config, Target("cpu", "avx512_bf16"), model)
    assert dtypes == Dtypes(weights=jnp.dtype(weights), activations=jnp.float32, kv_cache=jnp.float32)
    if "dtype" not in flags:
        assert Dtypes.of(config, Target("cpu", ""), model).weights == jnp.float32  # nobody has measured it


@pytest.mark.parametrize(
    ("platform", "size", "is_fine"), [("cpu", 512, True), ("cpu", 256, False), ("gpu", 512, False)]
)
def test_only_a_cpu_has_fine_sizes_and_of_wide_models_only(platform: str, size: int, is_fine: bool) -> None:
    config, defaults = EngineConfig.from_flags({"model_path": str(MODEL)}), PlatformDefaults.of(platform)
    model = dataclasses.replace(ModelConfig.from_hf(*read_model_dir(MODEL)), hidden_size=size)
    assert (24 in EngineLimits.of(config, model, defaults).buckets(config, defaults).decode) == is_fine


@pytest.mark.parametrize(
    ("kind", "family", "flags", "chunk"),
    [
        ("cpu", "qwen2", {}, 1024),
        ("cpu", "mixtral", {}, 1024),
        ("gpu", "qwen2", {}, 8192),
        ("gpu", "mixtral", {}, 8192),
        ("tpu", "qwen2", {}, 2048),
        ("tpu", "mixtral", {}, 8192),
        ("tpu v6e", "qwen2", {"tp_size": 8}, 2048),
        ("tpu v5e", "qwen2", {"tp_size": 4}, 2048),
        ("tpu v5e", "qwen2", {"tp_size": 8}, 4096),
        ("tpu v5e", "qwen2", {"tp_size": 8, "dp_size": 2}, 4096),
        ("tpu v5e", "qwen2", {"tp_size": 32}, 8192),
        ("tpu", "qwen2", {"chunked_prefill_size": 1024}, 1024),
        ("tpu", "mixtral", {"enable_dp_attention": True, "tp_size": 4, "dp_size": 4}, 2048),
    ],
    ids=str,
)
def test_a_chunk_fills_the_matrix_units_of_its_platform(
    kind: str, family: str, flags: dict[str, Any], chunk: int
) -> None:
    """Each device and each expert gets only some of its tokens."""
    config, defaults = EngineConfig.from_flags({"model_path": str(MODEL), **flags}), PlatformDefaults.of(*kind.split())
    limits = EngineLimits.of(config, ModelConfig.from_hf(tiny_config(family)), defaults)
    assert (limits.chunk, limits.buckets(config, defaults).prefill[-1].num_tokens) == (chunk, chunk)


@pytest.mark.parametrize(
    ("platform", "flags", "mode"),
    [
        ("cpu", {}, "background"),
        ("gpu", {}, "full"),
        ("tpu", {}, "full"),
        ("cpu", {"compile": "full"}, "full"),
        ("tpu", {"compile": "background"}, "background"),
        ("cpu", {"nnodes": 2, "node_rank": 0, "dist_init_addr": "127.0.0.1:1", "tp_size": 2}, "full"),
    ],
    ids=str,
)
def test_a_cpu_takes_requests_before_all_programs_are_compiled(platform: str, flags: dict[str, Any], mode: str) -> None:
    config = EngineConfig.from_flags({"model_path": str(MODEL), **flags})
    assert compile_mode(config, PlatformDefaults.of(platform)) == mode


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "yarn"),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e4}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({}, "default"),
    ],
)
def test_what_a_longer_context_needs_is_told_so_that_it_works(overrides: dict[str, Any], kind: str) -> None:
    """The advice for dynamic scaling turns it into another one, not off."""
    config = EngineConfig.from_flags({"model_path": "m", "context_length": 300})
    hf = tiny_config("llama3", max_position_embeddings=128, **{"rope_scaling": None, **overrides})

    def limits(hf: dict[str, Any]) -> EngineLimits:
        return EngineLimits.of(config, ModelConfig.from_hf(hf), PlatformDefaults.of("cpu"))

    with pytest.raises(ConfigError, match=r"--context-length 300 exceeds the model's max_position") as caught:
        limits(hf)
    advised = json.loads(str(caught.value).partition("--json-model-override-args '")[2].removesuffix("'"))
    (rope,), (before,) = (ModelConfig.from_hf(each).ropes for each in (override(hf, advised), hf))
    assert limits(override(hf, advised)).context_length == 300
    assert (rope.kind, rope.theta) == (kind, before.theta)
    if kind == "yarn":
        assert (rope.factor, rope.original_max_position) == (3.0, 128)


def test_learned_positions_cannot_be_made_longer() -> None:
    config = EngineConfig.from_flags({"model_path": "m", "context_length": 513})
    with pytest.raises(ConfigError, match=r"--context-length 513 exceeds the model's max_position.* at most 512$"):
        EngineLimits.of(config, ModelConfig.from_hf(tiny_config("gpt2")), PlatformDefaults.of("cpu"))
