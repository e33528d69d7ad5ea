"""Compiles the engine's step programs for accelerators that are not there, and checks what came of it.

    pip install 'jax[tpu]' 'jax-cuda13-plugin[with-cuda]'      # either alone will do; neither needs its hardware
    python benchmarks/aot/aot_steps.py --target tpu-v6e --model llama-3.1-8b
    python benchmarks/aot/aot_steps.py --target h200 --decode 1 256 --prefill 2048 --only forward sample
    python benchmarks/aot/aot_steps.py --target tpu-v5e --all --json out.json

The programs are those of StepPrograms, with the sizes that an engine would choose: the KV cache fills the device.
With --quantization, weights are of 8 or 4 bits, and no program may hold a widened copy of one.

Each must compile, fit, update what it is given to update (the KV cache, the sampler's state) in place, never call the
host, and on a GPU have no branch on data. Copies of a layer's whole cache are counted, and are an error but on TPU,
whose compiler may make them for a scatter. Loops whose trip count is data are counted too: at each of their iterations
a GPU's host waits for the device.
"""

import argparse
import collections
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.aot.aot_targets import TARGETS, Compiled, Target
from benchmarks.support.checkpoints import (
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    GEMMA3_4B,
    GPT_OSS_20B,
    GPT_OSS_120B,
    HALF_BILLION,
    LLAMA_8B,
    QWEN3_30B,
)
from benchmarks.support.hlo_facts import Facts
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig
from palladio.model.config.quantization_flag import MADE
from palladio.model.functional import ModelStructure, flatten_model
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.load_model import abstract_model
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.target import Target as KernelTarget
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryNeeds, plan_memory
from palladio.runtime.core.plan.memory_needs import memory_needs
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.programs.program import StaticModel
from palladio.runtime.execution.state.device_state import DeviceShape, Weights, bytes_per_device
from palladio.runtime.execution.state.proposer import NgramProposer
from palladio.runtime.scheduling.batch.buckets import Buckets, PrefillBucket

MODELS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": HALF_BILLION,
    "qwen3-0.6b": HALF_BILLION
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "llama-3.1-8b": LLAMA_8B,
    "qwen3-30b-a3b": QWEN3_30B,
    "gemma-3-4b": GEMMA3_4B,
    "gpt-oss-20b": GPT_OSS_20B,
    "gpt-oss-120b": GPT_OSS_120B,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
}
STORED: dict[str, dict[str, Any]] = {  # how checkpoints are quantized
    "fp8-block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "gptq-channel": {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": False, "desc_act": False},
    "gptq-8-channel": {"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False, "desc_act": False},
    "mxfp4": {"quant_method": "mxfp4"},
}
BLOCKS_BY_FLAG = "fp8-block,w8a8"  # of such a checkpoint, with --quantization w8a8_fp8
DTYPE = jnp.bfloat16
DEFAULTS = PlatformDefaults.of("tpu")
PROGRAMS = ("draft", "forward", "verify", "sample", "decode", "score", "reset", "tables", "compare")


def quantized(hf_config: Mapping[str, Any], quantization: str | None) -> ModelConfig:
    """Make a model of 8-bit or 4-bit weights.

    Args:
        quantization: a value of the flag, of STORED, or BLOCKS_BY_FLAG.
    """
    if quantization == BLOCKS_BY_FLAG:
        return quantized(hf_config, "fp8-block").with_quantization("w8a8_fp8")
    if quantization in STORED:
        return ModelConfig.from_hf({**hf_config, "quantization_config": STORED[quantization]})
    return ModelConfig.from_hf(hf_config).with_quantization(quantization)


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that the figures of a plan depend on, besides model and target."""

    buckets: Buckets
    page_size: int
    max_running: int
    context_length: int
    decode_steps: int
    drafts: int = 0
    kv_dtype: str = "bfloat16"

    @property
    def useful_tokens(self) -> int:
        return self.max_running * self.context_length


def device_shape(config: ModelConfig, mesh: Mesh, sizes: Sizes) -> DeviceShape:
    """Return the shape of an engine's state."""
    return DeviceShape(
        num_slots=sizes.max_running + 1,
        num_columns=-(-sizes.context_length // sizes.page_size),
        vocab_size=config.vocab_size,
        num_valid_tokens=config.vocab_size,
        num_decode_steps=sizes.decode_steps,
        proposer=NgramProposer(sizes.drafts, 1, 12) if sizes.drafts else None,
        checks_cache=True,
        dtype=DTYPE,
        cache=CacheLayout.of(config, page_size=sizes.page_size, dtype=sizes.kv_dtype),
        mesh=mesh,
        target=KernelTarget.of(mesh.devices.flat[0]),
        has_plain_tier=PlatformDefaults.of(mesh.devices.flat[0].platform).has_plain_tier,
    )


def declare(
    config: ModelConfig, shape: DeviceShape, structure: ModelStructure, weights: Weights, pages: int, sizes: Sizes
) -> StepPrograms:
    """Return the programs of an engine with `pages` pages."""
    static = StaticModel(structure, jax.ShapeDtypeStruct((config.hidden_size,), DTYPE), config.vocab_size)
    return StepPrograms(static, shape.abstract(weights, pages), shape, sizes.buckets, ProgramCache(CompileMonitor()))


def check(program: Compiled, facts: Facts, target: Target) -> list[str]:
    """List the errors of a program."""
    wrong = []
    if program.alias_bytes < program.donated_bytes:
        wrong.append(f"updates {program.alias_bytes:,} of {program.donated_bytes:,} donated bytes in place")
    if (needed := program.argument_bytes + program.temp_bytes) > target.memory:
        wrong.append(f"needs {needed / 2**30:.1f} GiB of {target.memory / 2**30:.0f}")
    if facts.widened:
        wrong.append(f"makes {facts.widened} widened copies of weights")
    if facts.cache_copies:
        wrong.append(f"copies a layer's cache {facts.cache_copies} times")
    if facts.host_calls:
        wrong.append(f"calls the host {facts.host_calls} times")
    if facts.branches and target.platform == "cuda":
        wrong.append(f"branches on data {facts.branches} times")
    return wrong


def needs_of(target: Target, shape: DeviceShape, weights: Weights, sizes: Sizes) -> MemoryNeeds:
    """Return the memory that an engine needs on each of the target's devices."""
    rows = sum(sizes.buckets.sample)
    return memory_needs(target.platform, shape, weights, num_mask_rows=rows, useful_tokens=sizes.useful_tokens)


def compile_all(
    config: ModelConfig,
    target: Target,
    num_devices: int,
    sizes: Sizes,
    only: Sequence[str],
    backend: str = "auto",
    num_ranks: int = 1,
    num_expert_parts: int = 1,
) -> Iterator[dict[str, Any]]:
    """A row for each program: its figures, and in "wrong" what is wrong with it."""
    mesh = target.mesh(num_devices, num_ranks, num_expert_parts)
    kernels = Kernels(backend, KernelTarget.of(mesh.devices.flat[0]))
    structure, weights = flatten_model(abstract_model(config, dtype=DTYPE, mesh=mesh, kernels=kernels))
    config = TensorLayout.over(config, mesh).config
    shape = device_shape(config, mesh, sizes)
    memory = DeviceMemory(target.memory, target.memory)
    needs = needs_of(target, shape, weights, sizes)
    pages = plan_memory(memory, needs, workspace=0).num_pages
    programs = declare(config, shape, structure, weights, pages, sizes)
    state = shape.abstract(weights, pages)
    cache_shape = shape.cache.spec.device_pages(pages, mesh).shape
    num_tokens = (pages - 1) // shape.num_tables * sizes.page_size
    sizes_of = collections.defaultdict(set)
    for leaf in weights:
        sizes_of[str(leaf.dtype)].add(math.prod(leaf.sharding.shard_shape(leaf.shape)))
    small = (found for dtype, found in sizes_of.items() if jnp.dtype(dtype).itemsize == 1)
    weight_sizes = set().union(*small) - sizes_of["float32"]  # zero points are as many as scales
    print(
        f"weights {bytes_per_device(weights) / 2**30:.2f} GiB, "
        f"KV cache {bytes_per_device(state.kv_cache) / 2**30:.2f} GiB "
        f"({num_tokens:,} tokens; {len(state.kv_cache)} arrays of {list(cache_shape)}), "
        f"{num_ranks} × {num_devices} device(s) of {target.memory / 2**30:.0f} GiB"
    )
    for key in programs.built.declared:
        if key.kind not in only:
            continue
        jitted, args = programs.built.declaration(key)
        row: dict[str, Any] = {"program": str(key), "weight_bytes": bytes_per_device(weights)}
        try:
            program = aot_targets.compile_for(mesh, jitted, args)
        except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError, TypeError) as refusal:
            yield row | {"wrong": [f"refused: {_first_line(refusal)}"]}
            continue
        facts = Facts.of(program.hlo, cache_shape, weight_sizes)
        figures = {name: value for name, value in dataclasses.asdict(program).items() if name != "hlo"}
        yield row | figures | dataclasses.asdict(facts) | {"wrong": check(program, facts, target)}


COLUMNS = (  # header, key of a row, divisor, decimals
    ("lower s", "lower_seconds", 1, 1),
    ("compile s", "compile_seconds", 1, 1),
    ("cpu s", "compile_cpu_seconds", 1, 1),
    ("args MiB", "argument_bytes", 2**20, 0),
    ("alias MiB", "alias_bytes", 2**20, 0),
    ("temp MiB", "temp_bytes", 2**20, 1),
    ("cache copies", "cache_copies", 1, 0),
    ("data loops", "data_loops", 1, 0),
    ("branches", "branches", 1, 0),
)


def table_line(row: dict[str, Any]) -> str:
    cells = [
        f"{row[key] / divisor:{len(header)}.{decimals}f}" if key in row else " " * len(header)
        for header, key, divisor, decimals in COLUMNS
    ]
    return f"{row['program']:<24} {'  '.join(cells)}  {'; '.join(row['wrong']) or 'ok'}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"


def _sizes(args: argparse.Namespace, config: ModelConfig) -> Sizes:
    context_length = args.context_length or config.max_position_embeddings
    defaults = PlatformDefaults.of(TARGETS[args.target].platform)
    largest = defaults.chunk_of(config, args.devices) if args.all else defaults.largest_chunk
    buckets = Buckets.create(max_running=DEFAULTS.max_running, max_step_tokens=largest, growth=DEFAULTS.bucket_growth)
    if not args.all:
        prefill = (bucket for bucket in buckets.prefill if bucket.num_tokens in args.prefill)
        chosen = tuple(prefill) or tuple(PrefillBucket(n, 1) for n in args.prefill)
        buckets = Buckets(tuple(args.decode), chosen, tuple(args.decode) or (DEFAULTS.max_running,))
    if args.drafts:
        buckets = buckets.with_drafts(args.drafts)
    return Sizes(
        buckets, args.page_size, DEFAULTS.max_running, context_length, args.decode_steps, args.drafts, args.kv_dtype
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, required=True)
    parser.add_argument("--model", choices=MODELS, default="qwen2.5-0.5b")
    parser.add_argument("--quantization", choices=(*MADE, *STORED, BLOCKS_BY_FLAG), help="weights of 8 or 4 bits")
    parser.add_argument("--layers", type=int, help="other than the model's own, for a quick look")
    parser.add_argument("--devices", type=int, default=1, help="tensor parallelism")
    parser.add_argument("--groups", type=int, default=1, help="of so many devices, with requests of their own")
    parser.add_argument("--expert-parts", type=int, default=1, help="of a group's devices, with experts of their own")
    parser.add_argument("--decode", type=int, nargs="*", default=[1, 64], help="requests of decode buckets")
    parser.add_argument("--decode-steps", type=int, default=1, help="forward passes of a decode step")
    parser.add_argument("--drafts", type=int, default=0, help="tokens that are proposed for a request at once")
    parser.add_argument("--prefill", type=int, nargs="*", default=[2048], help="tokens of prefill buckets")
    parser.add_argument("--all", action="store_true", help="every bucket of an engine with default flags")
    parser.add_argument("--only", choices=PROGRAMS, nargs="+", default=PROGRAMS)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--kv-dtype", default="bfloat16", help="of the KV cache, as jax calls it")
    parser.add_argument("--context-length", type=int, help="default: the model's")
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    hf_config = MODELS[args.model] | ({"num_hidden_layers": args.layers} if args.layers else {})
    config, target = quantized(hf_config, args.quantization), TARGETS[args.target]
    print(f"{args.model}, {args.quantization or 'bfloat16'}, for {args.target}; jax {jax.__version__}")
    rows: list[dict[str, Any]] = []
    sizes, backend = _sizes(args, config), args.attention_backend
    meshes = args.devices, sizes, args.only, backend, args.groups, args.expert_parts
    for row in compile_all(config, target, *meshes):
        if not rows:
            print(f"{'program':<24} {'  '.join(header for header, *_ in COLUMNS)}  verdict")
        print(table_line(row), flush=True)
        rows.append(row)
    if args.json:
        report = {
            "command": " ".join(["python benchmarks/aot/aot_steps.py", *(argv or sys.argv[1:])]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "jax": jax.__version__,
            "target": args.target,
            "model": args.model,
            "programs": rows,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not rows:
        print("no program was compiled", file=sys.stderr)
    return 1 if not rows or any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
