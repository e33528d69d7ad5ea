"""What an engine plans before it loads anything: on a small device the programs are measured first."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import pytest

from palladio.flags.default_model import default_model_path
from palladio.model.config.config import ModelConfig
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.dtypes import Dtypes
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryNeeds, device_memory, plan_memory
from palladio.runtime.core.start import aot_compile, startup, startup_log
from palladio.runtime.core.start.warmup import describe_set
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.state.device_state import DeviceShape
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from tests.runtime.tiny_engine import FLAGS
from tests.tiny_model import tiny_config

MIB = 2**20
SHALLOW = {
    "json_model_override_args": '{"num_hidden_layers": 1}',
    "chunked_prefill_size": 16,
    "max_running_requests": 2,
}


def config(folder, **flags):
    """Without a limit of its own, the pool takes what there is."""
    flags = {"model_path": str(folder), **FLAGS, **SHALLOW, "max_total_tokens": None, **flags}
    return EngineConfig.from_flags(flags)


@pytest.fixture
def small_device(monkeypatch):
    """Of 2 MiB, most of which a pool for two contexts would take."""
    memory = DeviceMemory(2 * MIB, 2 * MIB)
    monkeypatch.setattr(DeviceMemory, "of", lambda device: memory)
    return memory


def test_on_a_small_device_the_plan_is_what_the_engine_then_uses(tiny_dir, small_device, tmp_path, caplog):
    nowhere = str(tmp_path)  # where nothing was noted
    with caplog.at_level("INFO"):
        given = config(tiny_dir, compilation_cache_dir=nowhere, cuda_graph_bs=())  # fewer programs to compile
        parts = startup.build_engine_parts(given, lambda progress: None)
    assert "Compiling the largest programs to measure their workspace" in caplog.text
    assert [line.partition(" ")[0] for line in caplog.messages].count("Engine:") == 1
    report, programs = parts.memory, parts.runner.programs
    assert report.planned <= report.usable == MIB  # half of a CPU's
    state = parts.runner.executor.state
    assert report.weights == sum(array.nbytes for array in state.weights)
    assert report.kv_cache == sum(array.nbytes for array in state.kv_cache)
    others = (state.tables, state.lengths, state.sampler, state.all_allowed)
    assert report.state == sum(array.nbytes for array in jax.tree.leaves(others))
    assert report.workspace == programs.workspace  # of four programs with a small pool; of all with the real one
    assert parts.ready.max_total_tokens == (state.kv_cache[0].shape[0] - 1) * FLAGS["page_size"]
    assert report.planned > 0.9 * report.usable
    assert parts.ready.attention_kernels == "xla"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({}, ""),
        ({"cuda_graph_bs": (1, 2, 4, 8, 16)}, ""),
        ({"cuda_graph_bs": (2, 4, 8, 16)}, ""),  # as on a GPU by default: one request is padded to two
        ({"cuda_graph_bs": (2, 6)}, "Decode batches of 7 requests are padded to 32"),
        ({"cuda_graph_max_bs": 8}, "Decode batches of 9 requests are padded to 32"),
        ({"cuda_graph_bs": ()}, "Decode batches of 1 requests are padded to 32"),
    ],
    ids=str,
)
def test_batch_sizes_far_from_each_other_are_told(tiny_dir, caplog, flags, told):
    with caplog.at_level("WARNING"):
        EnginePlan.of(config(tiny_dir, max_running_requests=32, max_total_tokens=512, **flags))
    assert told in caplog.text
    assert ("are padded to" in caplog.text) == bool(told)


def test_the_start_tells_which_weights_are_quantized(tiny_dir, caplog):
    with caplog.at_level("INFO"):
        startup.build_engine_parts(
            config(tiny_dir, quantization="int8", max_total_tokens=512, compile="lazy"), lambda progress: None
        )
    (line,) = [line for line in caplog.messages if line.startswith("Weights: ")]
    assert re.fullmatch(r"Weights: int8 W8A16, a scale per channel: 0\.\d+ GB; float32: 0\.\d+ GB", line)


def test_quantization_has_to_agree_with_the_checkpoint(tiny_dir):
    stored = json.dumps({"num_hidden_layers": 1, "quantization_config": {"quant_method": "fp8"}})
    flags = {"max_total_tokens": 512, "json_model_override_args": stored}
    plan = EnginePlan.of(config(tiny_dir, quantization="fp8", **flags))
    assert plan.model.quantization is not None
    with pytest.raises(ConfigError, match=r"^--quantization int8: the checkpoint is quantized already, .* format FP8"):
        EnginePlan.of(config(tiny_dir, quantization="int8", **flags))
    with pytest.raises(ConfigError, match=r"^--quantization awq: the checkpoint is not quantized"):
        EnginePlan.of(config(tiny_dir, max_total_tokens=512, quantization="awq"))
    with pytest.raises(ConfigError, match="--quantization nvfp4 is not supported: int8, fp8, int4, w8a8"):
        config(tiny_dir, quantization="nvfp4")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({}, "dtype=float32, kv_cache_dtype=float32, page_size=4, prefix_cache=on"),
        (
            {"kv_cache_dtype": "bf16", "disable_radix_cache": True},
            "dtype=float32, kv_cache_dtype=bfloat16, page_size=4, prefix_cache=off",
        ),
        (
            {"kv_cache_dtype": "int8"},
            "kv_cache_dtype=int8 (a scale for each token and head), page_size=4, prefix_cache=on",
        ),
        ({"is_embedding": True}, "page_size=4, prefix_cache=on"),
    ],
    ids=str,
)
def test_one_line_tells_what_the_engine_runs_on(tiny_dir, flags, told):
    line = startup_log.describe_engine(EnginePlan.of(config(tiny_dir, **flags)))
    count = jax.device_count()
    device = "device=1" if count == 1 else f"device=1 of {count}"
    assert line.startswith(f"Engine: {device} x cpu (cpu), attention_backend=xla, dtype=float32, ")
    assert line.endswith(told)


@pytest.mark.slow  # above are steps of several shapes
def test_one_shape_is_measured_too(tiny_dir, small_device):
    """--deterministic has no decode programs."""
    design = EnginePlan.of(config(tiny_dir, deterministic=True))
    assert design.plan.is_tight
    assert design.plan.report.workspace > 0


def test_what_was_measured_once_is_known_afterwards(tiny_dir, small_device, tmp_path, caplog):
    flags = {"compilation_cache_dir": str(tmp_path)}
    first = EnginePlan.of(config(tiny_dir, **flags)).plan
    with caplog.at_level("INFO"):
        assert EnginePlan.of(config(tiny_dir, **flags)).plan == first
    assert "Compiling" not in caplog.text
    with caplog.at_level("INFO"):  # of other programs it is not known
        EnginePlan.of(config(tiny_dir, **flags, chunked_prefill_size=32))
    assert "Compiling the largest programs" in caplog.text


@pytest.mark.slow
def test_a_replica_of_exported_programs_measures_nothing(tiny_dir, small_device, tmp_path, caplog):
    flags = {"compiled_dir": str(tmp_path / "programs"), "compilation_cache_dir": ""}
    aot_compile.compile_ahead(config(tiny_dir, **flags))
    caplog.clear()
    with caplog.at_level("INFO"):
        parts = startup.build_engine_parts(config(tiny_dir, **flags), lambda progress: None)
    assert "Compiling" not in caplog.text
    assert {report.result for report in parts.runner.programs.built.reports} == {"exported"}


def test_a_device_that_hides_its_memory_needs_a_number(monkeypatch):
    class Device:
        platform, device_kind = "gpu", "NVIDIA H200"

        def memory_stats(self):
            return None

    needs = MemoryNeeds(
        platform="gpu",
        weights=MIB,
        state=MIB,
        bytes_per_page=1024,
        page_size=16,
        wanted_tokens=None,
        useful_tokens=10**6,
        fraction=None,
    )
    with pytest.raises(ConfigError, match=r"NVIDIA H200 does not report .* set --max-total-tokens"):
        device_memory([Device()], needs)
    given = dataclasses.replace(needs, wanted_tokens=160)
    plan = plan_memory(device_memory([Device()], given), given, MIB)
    assert plan.num_tokens == 160
    assert "unknown" in plan.table()[0]


def test_a_program_that_is_too_large_to_be_measured_names_its_flag(tiny_dir, small_device, monkeypatch):
    class Refusing:
        def lower(self, *args):
            return self

        def compile(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")

    add = ProgramCache.add
    monkeypatch.setattr(ProgramCache, "add", lambda self, key, jitted, *args: add(self, key, Refusing(), *args))
    flags = {"chunked_prefill_size": 64, "compilation_cache_dir": ""}
    with pytest.raises(ConfigError, match=r"does not fit .* --chunked-prefill-size 16"):
        EnginePlan.of(config(tiny_dir, **flags))


def test_where_there_is_room_nothing_is_measured_ahead(tiny_dir, caplog):
    with caplog.at_level("INFO"):
        design = EnginePlan.of(config(tiny_dir))
    assert "Compiling" not in caplog.text
    assert design.plan.num_tokens == 2 * 256  # two contexts
    assert len(design.programs.built) == 0


def test_what_does_not_fit_is_said_before_anything_is_loaded(tiny_dir, small_device, monkeypatch):
    monkeypatch.setattr(startup, "load_model", lambda *args, **kwargs: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=r"--max-total-tokens 100000 needs .* --max-total-tokens \d+ would fit"):
        startup.build_engine_parts(config(tiny_dir, max_total_tokens=100000), lambda progress: None)
    with pytest.raises(ConfigError, match=r"--mem-fraction-static 0.05; --mem-fraction-static 0.\d+ or more would fit"):
        startup.build_engine_parts(config(tiny_dir, mem_fraction_static=0.05), lambda progress: None)


def test_a_device_that_is_fuller_than_planned_is_a_clear_error(tiny_dir, monkeypatch):
    def refuse(self, *_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte")

    monkeypatch.setattr(DeviceShape, "allocate", refuse)
    with pytest.raises(ConfigError, match=r"out of memory while loading .* XLA error: RESOURCE_EXHAUSTED"):
        startup.build_engine_parts(config(tiny_dir), lambda progress: None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"tp_size": 2},
            "--tp-size 2 leaves devices unused: --nnodes 2 hosts have 4 in total; use --tp-size 4, or fewer hosts",
        ),
        ({"tp_size": 1, "dp_size": 2}, "--tp-size 1 leaves devices unused: .* use --tp-size 2, or fewer hosts"),
    ],
)
def test_several_hosts_leave_no_device_out(tiny_dir, monkeypatch, flags, message):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda: 4 * jax.local_devices())
    with pytest.raises(ConfigError, match=message):
        EnginePlan.of(config(tiny_dir, **flags))


def test_a_program_that_is_too_large_names_its_flag(tiny_dir, monkeypatch):
    design = EnginePlan.of(config(tiny_dir, chunked_prefill_size=64))
    largest = design.programs.built.declared
    monkeypatch.setattr(EnginePlan, "of", lambda *args, **kwargs: design)

    class Refusing:
        def lower(self, *args):
            return self

        def compile(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")

    key = next(key for key in largest if key.num_tokens == 64 and key.kind == "forward")
    declared = design.programs.built._declared
    monkeypatch.setitem(declared, key, type(declared[key])(Refusing(), declared[key].args))
    with pytest.raises(ConfigError, match=r"forward\[bs=2,tok=64\] does not fit .* --chunked-prefill-size 16"):
        startup.build_engine_parts(config(tiny_dir, chunked_prefill_size=64), lambda progress: None)


def test_a_dtype_that_the_models_activations_exceed_is_refused():
    gemma = ModelConfig.from_hf(tiny_config("gemma3"))
    for platform in ("tpu", "gpu"):
        dtypes = Dtypes.of(EngineConfig.from_flags({"model_path": "x"}), Target(platform), gemma)
        assert dtypes.activations == jnp.bfloat16
    with pytest.raises(ConfigError, match=r"--dtype half: activations of Gemma3ForCausalLM exceed .* --dtype bfloat16"):
        Dtypes.of(EngineConfig.from_flags({"model_path": "x", "dtype": "half"}), Target("gpu"), gemma)


def test_the_default_configuration_of_a_cpu_has_few_programs_that_hold_the_model(monkeypatch):
    """What a newcomer's machine compiles: each takes one to three CPU seconds, those that only sample half of one."""
    monkeypatch.setattr(DeviceMemory, "of", lambda device: DeviceMemory(16 * 2**30, 16 * 2**30))
    flags = {"model_path": str(default_model_path()), "compilation_cache_dir": FLAGS["compilation_cache_dir"]}
    design = EnginePlan.of(EngineConfig.from_flags(flags))
    programs = design.programs.by_key.values()
    with_model = sum(program.runs_layers for program in programs)
    assert design.compile == "background"
    assert with_model <= 24
    assert describe_set(design.programs) == f"Programs: {len(programs)}, {with_model} of them run the model"
    first = design.programs.first_keys(splits_prompts=True)
    assert len(first) == 6
    assert sum(design.programs.by_key[key].runs_layers for key in first) == 2
