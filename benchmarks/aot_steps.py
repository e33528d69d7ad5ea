"""Compiles the engine's step programs for accelerators that are not there, and checks what came of it.

    pip install 'jax[tpu]' 'jax-cuda13-plugin[with-cuda]'      # either alone will do; neither needs its hardware
    python benchmarks/aot_steps.py --target tpu-v6e --model llama-3.1-8b
    python benchmarks/aot_steps.py --target h200 --decode 1 256 --prefill 2048 --only forward sample
    python benchmarks/aot_steps.py --target tpu-v5e --all --json out.json

The programs are those of StepPrograms, with the sizes that an engine would settle on: the KV cache fills the device.
Each must compile, fit, update what it is given to update (the KV cache, the sampler's state) in place, never call the
host, and on a GPU have no branch on data. Copies of a layer's whole cache are counted, and are an error but on TPU,
whose compiler may make them for a scatter. Loops whose trip count is data are counted too: at each of their iterations
a GPU's host waits for the device.
"""

import argparse
import collections
import dataclasses
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aot_targets  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from aot_targets import TARGETS, Compiled, Target, bytes_per_device
from checkpoints import HALF_BILLION
from flax import nnx
from jax.sharding import Mesh

from palladio.model.config import ModelConfig
from palladio.model.decoder import CausalLM
from palladio.model.functional import ModelStructure, flatten_model
from palladio.model.kv_cache import KVCacheSpec
from palladio.model.sharding import ShardingRules
from palladio.pallas_kernels.ragged_paged_attention import kv_page_shape
from palladio.runtime.batch_builder import StepLayouts
from palladio.runtime.buckets import Buckets, PrefillBucket
from palladio.runtime.memory import DeviceMemory, PoolRequest, default_fraction, plan_pages
from palladio.runtime.sampler_state import SamplerState
from palladio.runtime.startup import _ACCELERATOR as DEFAULTS
from palladio.runtime.step_programs import DeviceState, ProgramKey, StaticModel, StepPrograms, Weights

MODELS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": HALF_BILLION,
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    },
}
DTYPE = jnp.bfloat16
PROGRAMS = ("forward", "sample", "decode", "score", "reset", "tables", "compare")

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = \(?\w+\[([\d,]*)\].*?[)\]}] ([a-z][\w-]*)\(")
_COPIES = ("copy", "copy-start", "transpose", "convert")
_HOST_OPCODES = ("infeed", "outfeed", "send", "recv")
_CALLBACK = re.compile(r'custom_call_target="\w*callback')


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What an optimized program does that a step of an engine should not.

    Attributes:
        cache_copies: copies, transpositions and conversions of a whole layer's cache.
        host_calls: callbacks, infeeds, outfeeds, sends and receives.
        branches: conditionals.
        data_loops: loops whose trip count the compiler does not know.
    """

    cache_copies: int
    host_calls: int
    branches: int
    data_loops: int

    @classmethod
    def of(cls, hlo: str, cache_shape: tuple[int, ...]) -> "Facts":
        counts: collections.Counter[str] = collections.Counter()
        for line in hlo.splitlines():
            match = _INSTRUCTION.match(line)
            if match is None:
                continue
            dims, opcode = match.groups()
            if opcode in _COPIES:
                counts["cache copy"] += sorted(map(int, dims.split(",")) if dims else ()) == sorted(cache_shape)
            elif opcode in _HOST_OPCODES or _CALLBACK.search(line):
                counts["host call"] += 1
            elif opcode == "conditional":
                counts["branch"] += 1
            elif opcode == "while" and "known_trip_count" not in line:
                counts["data loop"] += 1
        return cls(counts["cache copy"], counts["host call"], counts["branch"], counts["data loop"])


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """What the figures of a plan depend on, beside model and target."""

    buckets: Buckets
    page_size: int
    max_running: int
    context_length: int
    decode_steps: int


def abstract_weights(config: ModelConfig, mesh: Mesh) -> tuple[ModelStructure, Weights]:
    """A model without arrays, sharded as `load_model` would."""
    rules = ShardingRules()
    graphdef, state = nnx.split(nnx.eval_shape(lambda: CausalLM(config, DTYPE, "auto", nnx.Rngs(0))))
    placed = []
    for keys, param in nnx.to_flat_state(state):
        sharding = rules.sharding(mesh, param.get_metadata()["logical_axes"])
        placed.append((keys, param.replace(jax.ShapeDtypeStruct(param.shape, param.dtype, sharding=sharding))))
    return flatten_model(nnx.merge(graphdef, nnx.from_flat_state(placed)))


def num_pages(config: ModelConfig, weights: Weights, target: Target, num_devices: int, sizes: Sizes) -> int:
    """Pages of KV cache that an engine would allocate.

    Raises:
        ConfigError: not even one fits.
    """
    memory = target.memory * num_devices
    pool = PoolRequest(
        bytes_per_page=KVCacheSpec.of(config, page_size=sizes.page_size, dtype=DTYPE).bytes_per_page,
        page_size=sizes.page_size,
        wanted_tokens=None,
        useful_tokens=sizes.max_running * sizes.context_length,
        weight_bytes=bytes_per_device(weights) * num_devices,
        fraction=default_fraction(target.platform),
    )
    return plan_pages(DeviceMemory(memory, memory), pool)


def abstract_state(config: ModelConfig, mesh: Mesh, weights: Weights, pages: int, sizes: Sizes) -> DeviceState:
    """An engine's device state without arrays."""
    rules, slots = ShardingRules(), sizes.max_running + 1
    cache = jax.ShapeDtypeStruct(
        kv_page_shape(pages, config.num_kv_heads, sizes.page_size, config.head_size),
        DTYPE,
        sharding=rules.sharding(mesh, (None, "kv_heads", None, None)),
    )
    columns = -(-sizes.context_length // sizes.page_size)
    tables, sampler = jax.eval_shape(
        lambda: (jnp.zeros((slots, columns), jnp.int32), SamplerState.allocate(slots, config.vocab_size))
    )
    whole = rules.sharding(mesh, ())
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), (tables, sampler))
    return DeviceState(weights, (cache,) * config.num_layers, *placed)


def check(program: Compiled, facts: Facts, target: Target) -> list[str]:
    """What is wrong with a program."""
    wrong = []
    if program.alias_bytes < program.donated_bytes:
        wrong.append(f"updates {program.alias_bytes:,} of {program.donated_bytes:,} donated bytes in place")
    if (needed := program.argument_bytes + program.temp_bytes) > target.memory:
        wrong.append(f"needs {needed / 2**30:.1f} GiB of {target.memory / 2**30:.0f}")
    if facts.cache_copies:
        wrong.append(f"copies a layer's cache {facts.cache_copies} times")
    if facts.host_calls:
        wrong.append(f"calls the host {facts.host_calls} times")
    if facts.branches and target.platform == "cuda":
        wrong.append(f"branches on data {facts.branches} times")
    return wrong


def compile_all(
    config: ModelConfig, target: Target, num_devices: int, sizes: Sizes, only: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A row for each program: its figures, and in "wrong" what is wrong with it."""
    mesh = target.mesh(num_devices)
    structure, weights = abstract_weights(config, mesh)
    pages = num_pages(config, weights, target, num_devices, sizes)
    state = abstract_state(config, mesh, weights, pages, sizes)
    hidden = jax.ShapeDtypeStruct((config.hidden_size,), DTYPE)
    programs = StepPrograms(
        StaticModel(structure, hidden, config.vocab_size),
        state,
        sizes.buckets,
        StepLayouts.of(sizes.buckets, sizes.page_size, sizes.decode_steps),
        sizes.page_size,
    )
    programs.add_compare()
    cache = state.kv_cache[0]
    cache_shape = cache.sharding.shard_shape(cache.shape)
    print(
        f"weights {bytes_per_device(weights) / 2**30:.2f} GiB, "
        f"KV cache {bytes_per_device(state.kv_cache) / 2**30:.2f} GiB "
        f"({(pages - 1) * sizes.page_size:,} tokens; a layer {list(cache.shape)}), "
        f"{num_devices} device(s) of {target.memory / 2**30:.0f} GiB"
    )
    for key, (jitted, args) in programs._programs._pending.items():
        if key.name not in only:
            continue
        row: dict[str, Any] = {"program": _name(key)}
        try:
            program = aot_targets.compile_for(mesh, jitted, args)
        except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError, TypeError) as refusal:
            yield row | {"wrong": [f"refused: {_first_line(refusal)}"]}
            continue
        facts = Facts.of(program.hlo, cache_shape)
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


def _name(key: ProgramKey) -> str:
    sizes = f" {key.num_tokens}/{key.num_requests}" if key.num_tokens and key.num_requests else ""
    sizes = sizes or (f" {key.num_tokens or key.num_requests}" if key.num_tokens or key.num_requests else "")
    return f"{key.name}{sizes}{f' {key.tier}' if key.tier else ''}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"


def _sizes(args: argparse.Namespace, config: ModelConfig) -> Sizes:
    context_length = args.context_length or config.max_position_embeddings
    buckets = Buckets.create(
        max_running=DEFAULTS.max_running, max_step_tokens=DEFAULTS.chunk, growth=DEFAULTS.bucket_growth
    )
    if not args.all:
        prefill = (bucket for bucket in buckets.prefill if bucket.num_tokens in args.prefill)
        chosen = tuple(prefill) or tuple(PrefillBucket(n, 1) for n in args.prefill)
        buckets = Buckets(tuple(args.decode), chosen, tuple(args.decode))
    return Sizes(buckets, args.page_size, DEFAULTS.max_running, context_length, args.decode_steps)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, required=True)
    parser.add_argument("--model", choices=MODELS, default="qwen2.5-0.5b")
    parser.add_argument("--layers", type=int, help="other than the model's own, for a quick look")
    parser.add_argument("--devices", type=int, default=1, help="tensor parallelism")
    parser.add_argument("--decode", type=int, nargs="*", default=[1, 64], help="requests of decode buckets")
    parser.add_argument("--decode-steps", type=int, default=1, help="forward passes of a decode step")
    parser.add_argument("--prefill", type=int, nargs="*", default=[2048], help="tokens of prefill buckets")
    parser.add_argument("--all", action="store_true", help="every bucket of an engine with default flags")
    parser.add_argument("--only", choices=PROGRAMS, nargs="+", default=PROGRAMS)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--context-length", type=int, help="default: the model's")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    hf_config = MODELS[args.model] | ({"num_hidden_layers": args.layers} if args.layers else {})
    config, target = ModelConfig.from_hf(hf_config), TARGETS[args.target]
    print(f"{args.model}, bfloat16, for {args.target}; jax {jax.__version__}")
    rows = []
    for row in compile_all(config, target, args.devices, _sizes(args, config), args.only):
        if not rows:
            print(f"{'program':<24} {'  '.join(header for header, *_ in COLUMNS)}  verdict")
        print(table_line(row), flush=True)
        rows.append(row)
    if args.json:
        report = {
            "command": " ".join(["python benchmarks/aot_steps.py", *(argv or sys.argv[1:])]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "jax": jax.__version__,
            "target": args.target,
            "model": args.model,
            "programs": rows,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
