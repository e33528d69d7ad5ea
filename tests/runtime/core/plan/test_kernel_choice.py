"""What --attention-backend comes to: chosen at start-up, with a reason and a flag where it cannot be."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from palladio.model.base.sharding import make_mesh
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig
from palladio.pallas_kernels.block_matmul import api as block_api
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.grouped_matmul import api as grouped_api
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan import kernel_choice
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.kernel_choice import choose_kernels, plan_cache, refusal
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryNeeds
from palladio.runtime.execution.state.device_state import DeviceShape
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from tests.runtime.tiny_engine import TINY_CONFIG
from tests.tiny_model import tiny_config

MODEL = ModelConfig.from_hf(TINY_CONFIG)
V6E = Target("tpu", "v6e")


def shape(page_size=16, dtype=jnp.float32, num_columns=16, kv_dtype=None, num_slots=9, model=MODEL):
    return DeviceShape(
        num_slots=num_slots,
        num_columns=num_columns,
        vocab_size=400,
        num_valid_tokens=400,
        num_decode_steps=1,
        checks_cache=False,
        dtype=dtype,
        cache=CacheLayout.of(model, page_size=page_size, dtype=kv_dtype or dtype),
        mesh=make_mesh(1),
    )


def choose(backend, **sizes):
    return choose_kernels(backend, Target.of(jax.devices("cpu")[0]), MODEL, shape(**sizes))


def test_a_cpu_runs_the_portable_path():
    assert choose("auto") == Kernels("xla", Target.of(Target.of(jax.devices("cpu")[0])))


def test_kernels_of_another_device_are_interpreted_and_said_to_be_slow(caplog):
    assert choose("tpu").target.interpret == "plain"
    assert "--attention-backend tpu has kernels for TPU only; on a CPU they run in Pallas interpret mode" in caplog.text


def test_what_a_forced_backend_cannot_take_is_an_error_that_names_the_flag():
    with pytest.raises(ConfigError, match=r"--attention-backend tpu .*pages of 4 tokens: .*multiple of 8 .--page-size"):
        choose("tpu", page_size=4)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({}, None),
        pytest.param({"dtype": jnp.bfloat16}, None, marks=pytest.mark.slow),
        ({"page_size": 8, "dtype": jnp.bfloat16}, "multiple of 16 (--page-size)"),
        ({"dtype": jnp.bfloat16, "kv_dtype": jnp.float16}, "--kv-cache-dtype"),
        ({"dtype": jnp.float16, "kv_dtype": jnp.float32}, "--dtype"),
        pytest.param({"num_columns": 8192}, None, marks=pytest.mark.slow),
        ({"num_columns": 40_000}, "--context-length"),
        ({"page_size": 4096, "dtype": jnp.bfloat16, "num_kv_heads": 64}, "vector memory"),
        ({"num_slots": 20_001}, "--max-running-requests"),
    ],
)
def test_what_the_tpu_kernels_take(sizes, reason):
    sizes = dict(sizes)
    heads = sizes.pop("num_kv_heads", None)
    model = MODEL if heads is None else dataclasses.replace(MODEL, num_heads=heads, num_kv_heads=heads)
    said = refusal(Kernels("tpu", V6E), model, shape(**sizes, model=model))
    assert (said is None) if reason is None else reason in said, said


def test_a_backend_that_failed_its_trial_is_replaced_unless_a_flag_names_it():
    target = V6E.without(["ragged_paged_attention/tpu"])
    assert choose_kernels("auto", target, MODEL, shape()).attention == "xla"
    with pytest.raises(ConfigError, match=r"--attention-backend tpu .*--kernel-check"):
        choose_kernels("tpu", target, MODEL, shape())
    latents = ModelConfig.from_hf(tiny_config("deepseek_v3"))
    kernels = choose_kernels("auto", V6E.without(["latent_attention/tpu"]), latents, shape(model=latents))
    assert kernels.latent_attention == "xla"


@pytest.mark.parametrize(
    ("attention", "skipped", "op", "backend"),
    [
        ("tpu", "kv_cache_update/tpu", "cache_update", "xla"),
        ("tpu", "ragged_paged_attention/tpu", "cache_update", "tpu"),  # skipped elsewhere
        ("gpu_triton", "grouped_matmul/gpu_triton", "grouped_matmul", "auto"),
        ("gpu_triton", "block_matmul/gpu_triton", "block_matmul", "auto"),
    ],
)
def test_each_op_has_its_own_backend_replaced(attention, skipped, op, backend):
    target = Target("gpu" if attention.startswith("gpu") else "tpu").without([skipped])
    kernels = Kernels(attention, target)
    found = {"cache_update": kernels.cache_update, "grouped_matmul": kernels.grouped_matmul}
    assert {**found, "block_matmul": kernels.block_matmul}[op] == backend
    assert "gpu_triton" not in grouped_api.order_of(target.without(["grouped_matmul/gpu_triton"]))
    assert "gpu_triton" not in block_api.order_of(target.without(["block_matmul/gpu_triton"]))


def test_latent_attention_has_kernels_for_tpus(monkeypatch, caplog):
    model = ModelConfig.from_hf(tiny_config("deepseek_v3"))
    monkeypatch.setattr(Target, "of", lambda device: V6E)
    kernels = choose_kernels("auto", Target.of(jax.devices("cpu")[0]), model, shape(model=model, page_size=16))
    assert (kernels.attention, kernels.latent_attention, kernels.cache_update) == ("tpu", "tpu", "tpu")
    assert kernels.grouped_matmul == "auto"
    assert caplog.text == ""
    with pytest.raises(ConfigError, match=r"pages of 4 tokens: with a cache of float32 they must be a multiple of 8"):
        choose_kernels("tpu", Target.of(jax.devices("cpu")[0]), model, shape(model=model, page_size=4))
    with pytest.raises(ConfigError, match=r"latents are kept as .*, not as int8: use --kv-cache-dtype auto"):
        choose_kernels("auto", Target.of(jax.devices("cpu")[0]), model, shape(model=model, kv_dtype=jnp.int8))


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "int8"])
def test_latents_in_8_bits_are_refused_before_anything_is_planned(name):
    model = ModelConfig.from_hf(tiny_config("deepseek_v3"))
    config = EngineConfig.from_flags({"model_path": "m", "kv_cache_dtype": name})
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype {name}: DeepseekV3ForCausalLM keeps latents, .* auto"):
        Dtypes.of(config, V6E, model)
    assert Dtypes.of(config, V6E, MODEL).kv_cache == (jnp.int8 if name == "int8" else jnp.float8_e4m3fn)


def test_latent_attention_has_kernels_for_gpus(monkeypatch, caplog):
    """For Hopper GPUs it has none of its own; latents that are too large in float32 run on XLA, which is said."""
    model = ModelConfig.from_hf(tiny_config("deepseek_v3"))
    monkeypatch.setattr(Target, "of", lambda device: Target("gpu", "9.0"))
    kernels = choose_kernels("auto", Target.of(jax.devices("cpu")[0]), model, shape(model=model))
    assert (kernels.latent_attention, kernels.grouped_matmul) in (("gpu_triton", "gpu_triton"), ("gpu_triton", "auto"))
    assert Kernels("gpu_mosaic").latent_attention == "gpu_triton"
    assert caplog.text == ""
    model = ModelConfig.from_hf(tiny_config("deepseek_v3", kv_lora_rank=512))
    assert choose_kernels("auto", Target.of(jax.devices("cpu")[0]), model, shape(model=model)).latent_attention == "xla"
    assert "gpu_triton: latents of 512 in float32: its tiles have up to 128 (--dtype)" in caplog.text
    with pytest.raises(ConfigError, match=r"--attention-backend gpu_triton .*latents of 512 in float32"):
        choose_kernels("gpu_triton", Target.of(jax.devices("cpu")[0]), model, shape(model=model))


def test_pages_that_only_the_kernel_for_chunks_has_no_room_for_are_found_too():
    """On a v4 a block of one token fits, and one of sixteen does not."""
    model = dataclasses.replace(MODEL, num_heads=32, num_kv_heads=32, head_size=128)
    sizes = shape(page_size=48, dtype=jnp.bfloat16, model=model)
    said = refusal(Kernels("tpu", Target("tpu", "v4")), model, sizes)
    assert said is not None
    assert "larger than the vector memory of TPU v4 (a smaller --page-size)" in said
    assert refusal(Kernels("tpu", V6E), model, sizes) is None


def cache_plan(backend, gigabytes, kv_dtype=jnp.int8, wanted_tokens=None):
    """The memory plan of a device on which a layer's cache would take so many GiB."""
    sizes = shape(kv_dtype=jnp.dtype(kv_dtype))
    cache = sizes.cache
    pool = int(gigabytes * 2**30) * cache.groups.num_arrays
    needs = MemoryNeeds(
        platform="gpu",
        weights=0,
        state=0,
        bytes_per_page=cache.bytes_per_page,
        page_size=cache.spec.page_size,
        wanted_tokens=wanted_tokens,
        useful_tokens=2**40,
        fraction=1.0,
    )
    return cache, plan_cache(backend, sizes, DeviceMemory(pool, pool), needs, 0)


@pytest.mark.parametrize(
    ("backend", "kv_dtype", "gigabytes", "most"),
    [
        ("gpu_triton", jnp.int8, 1.5, 1.5),
        ("gpu_triton", jnp.int8, 3.4, 2.0),
        ("gpu_triton", jnp.float8_e4m3fn, 3.4, 2.0),
        ("gpu_triton", jnp.int8, 5.0, 5.0),
        ("gpu_triton", jnp.bfloat16, 3.4, 3.4),
        ("xla", jnp.int8, 3.4, 3.4),
    ],
)
def test_the_cache_is_no_larger_than_kernels_can_address(backend, kv_dtype, gigabytes, most):
    cache, plan = cache_plan(backend, gigabytes, kv_dtype)
    page = cache.spec.device_pages(1, make_mesh(1))
    page_bytes = math.prod(page.shape) * page.dtype.itemsize  # without the scales of int8, which are another array
    layer = plan.num_pages * page_bytes / 2**30
    if most == gigabytes:
        most *= page_bytes / cache.spec.bytes_per_page
    assert 0.94 * most < layer <= most


def test_tokens_that_kernels_cannot_address_are_refused_with_what_would_fit():
    cache, plan = cache_plan("gpu_triton", 3.4)
    with pytest.raises(ConfigError, match=rf"--max-total-tokens \d+ is too large: .* {plan.num_tokens} would fit"):
        cache_plan(
            "gpu_triton", 3.4, wanted_tokens=int(3 * 2**30 / (cache.bytes_per_page / cache.groups.num_arrays) * 16)
        )


@pytest.mark.parametrize(
    ("backend", "target", "head_size", "reason"),
    [
        pytest.param("tpu", V6E, 256, None, marks=pytest.mark.slow),
        ("gpu_triton", Target("gpu", "9.0"), 256, None),
        ("gpu_triton", Target("gpu", "9.0"), 288, "heads of 288 exceed 256"),
        ("gpu_mosaic", Target("gpu", "9.0"), 256, "it takes heads of 64, 128, not of 256"),
    ],
)
def test_every_kind_of_layer_is_asked_for(backend: str, target: Target, head_size: int, reason: str | None) -> None:
    """Gemma 2: capped scores, windows, and heads larger than other models'."""
    model = ModelConfig.from_hf(tiny_config("gemma2", head_dim=head_size))
    cache = CacheLayout.of(model, page_size=64, dtype=jnp.bfloat16)
    sizes = dataclasses.replace(shape(page_size=64, dtype=jnp.bfloat16), cache=cache)
    said = refusal(Kernels(backend, target), model, sizes)
    assert (said is None) if reason is None else reason in str(said), said


def test_a_window_that_a_kernel_cannot_take_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last layer alone."""
    asked = []

    def attend(q, kv_pages, metadata, *, sliding_window, soft_cap, **_):
        asked.append((sliding_window, soft_cap))
        if sliding_window is not None:
            raise NotImplementedError("no windows")
        return q

    monkeypatch.setattr(kernel_choice, "ragged_paged_attention", attend)
    model = ModelConfig.from_hf(tiny_config("gemma3", num_hidden_layers=1, sliding_window_pattern=1))
    assert refusal(Kernels("xla"), model, shape()) is None
    model = ModelConfig.from_hf(tiny_config("gemma3", layer_types=["full_attention"] * 3 + ["sliding_attention"]))
    assert refusal(Kernels("xla"), model, shape()) == "no windows"
    assert {window for window, _ in asked} == {None, 12}
