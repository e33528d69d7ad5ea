"""Decode steps of mixtures of experts on paper, checked by the accelerators' own compilers; without either.

    PYTHONPATH=.venv-aot python benchmarks/paper/mixture_paper.py --only gpt-oss --json out.json

Each row is a deployment and a number of requests: what a device must read, multiply and send in a decode step, at the
chip's data sheet, and what its compiled program does. Two depths of the model are compiled; what one more layer adds is
taken for every layer. Of experts, those are read that tokens go to, if the router favours none:

- hit: bytes of the experts of a layer that are on a device and that tokens go to;
- read: what their kernels read: of each tile of rows, the matrix of its group. A group in two tiles is read twice;
- brought: what the program copies of all experts' arrays before a kernel, so whether they are hit or not.
"""

import argparse
import dataclasses
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.aot.aot_steps import STORED
from benchmarks.support.checkpoints import DEEPSEEK_V3, GPT_OSS_120B, QWEN3_30B
from palladio.model.config.config import ModelConfig
from palladio.pallas_kernels.grouped_matmul.tpu_scaled import tile_rows
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.kernel_choice import choose_kernels
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.planning.compile_only import PROBE_PAGES, compile_only_mesh
from palladio.runtime.planning.deployment import Deployment, Roofline
from palladio.runtime.planning.hardware import find_slice

CONTEXT = 4096  # tokens that each request has in the cache
_COLLECTIVE = re.compile(
    r"= \(*((?:\w+\[[\d,]*\](?:\{[^}]*\})?(?:, )?)+)\)* (all-gather|all-reduce|all-to-all|reduce-scatter)(?:-start)?\("
)
_SHAPE = re.compile(r"([a-z]+\d+)\[([\d,]*)\]")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_COPY = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = \(?(\w+\[[\d,]*\]).*? (copy-start|copy|fusion|transpose|custom-call)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_WIDTH = {"s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "pred": 1, "f8e4m3fn": 1, "bf16": 2, "f16": 2, "s32": 4, "f32": 4}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A deployment. sparse_from: the first layer with experts. depths: numbers of layers that are compiled."""

    model: str
    config: Mapping[str, Any]
    quantization: str | None
    place: str
    parallel: ParallelConfig
    depths: tuple[int, int]


def sharing(devices: int, ranks: int) -> ParallelConfig:
    """Ranks with attention of their own, and experts over all devices."""
    return ParallelConfig(tp_size=devices, dp_size=ranks, ep_size=devices, enable_dp_attention=True)


ROWS = (
    Row("DeepSeek-V3", DEEPSEEK_V3, "fp8-block", "v6e-32", sharing(32, 4), (4, 5)),
    Row("DeepSeek-V3", DEEPSEEK_V3, "fp8-block", "tpu7x-16", sharing(16, 4), (4, 5)),
    Row("gpt-oss-120b", GPT_OSS_120B, "mxfp4", "v6e-8", ParallelConfig(tp_size=8, ep_size=8), (2, 4)),
    Row("gpt-oss-120b", GPT_OSS_120B, "mxfp4", "h200-1", ParallelConfig(), (2, 4)),
    Row("Qwen3-30B-A3B", QWEN3_30B, None, "v6e-4", ParallelConfig(tp_size=4, ep_size=4), (1, 2)),
    Row("Qwen3-30B-A3B", QWEN3_30B, None, "h200-1", ParallelConfig(), (1, 2)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A compiled decode step of some layers, on one device.

    Attributes:
        sent: bytes that the device sends for sums and gathers.
        collectives: number of these.
        brought: bytes of experts' arrays that are copied or changed outside of kernels.
        cycles: XLA:TPU's estimate, without kernels.
        argument_bytes, temp_bytes: the compiler's figures of weights and state, and of scratch memory.
    """

    sent: float
    collectives: int
    brought: float
    cycles: int
    compile_seconds: float
    argument_bytes: int = 0
    temp_bytes: int = 0


def flags(row: Row, num_requests: int) -> EngineConfig:
    """Return the config of a server.

    Args:
        num_requests: requests of a rank.
    """
    # For eight requests or more: the smallest step of one for a single request has one row.
    scheduler = SchedulerConfig(max_running_requests=max(8, num_requests) * row.parallel.dp_size)
    source = ModelSource(model_path=row.model, context_length=2 * CONTEXT)
    return EngineConfig(source=source, parallel=row.parallel, scheduler=scheduler)


def deployment(row: Row, num_requests: int, depth: int | None) -> Deployment:
    """With a mesh to compile for, if `depth` layers are to be compiled."""
    hf = dict(row.config) | ({"num_hidden_layers": depth} if depth else {})
    hf |= {"quantization_config": STORED[row.quantization]} if row.quantization else {}
    model, place, parallel = ModelConfig.from_hf(hf), find_slice(row.place), row.parallel
    config = flags(row, num_requests)
    one = Deployment.of(config, model, place)
    if depth is None:
        return one
    shares = parallel.enable_dp_attention
    meshes = parallel.rank_size, parallel.dp_size, parallel.rank_parts
    mesh = compile_only_mesh(place, *meshes, shares_experts=shares)
    kernels = choose_kernels("auto", Target.of(mesh.devices.flat[0]), one.layout.config, one.shape)
    return Deployment.of(config, model, place, mesh, kernels)


def compiled(row: Row, num_requests: int, depth: int) -> Program:
    """The decode step of a rank's share of the requests."""
    one = deployment(row, num_requests, depth)
    built: ProgramCache[ProgramKey] = ProgramCache(CompileMonitor())
    state = one.shape.abstract(one.weights, PROBE_PAGES)
    programs = StepPrograms(one.static_model, state, one.shape, one.buckets, built)
    keys = [key for key in built.declared if programs.by_key[key].runs_layers and not key.num_tokens]
    key = min(keys, key=lambda key: (key.num_requests < num_requests, key.num_requests))
    jitted, args = built.declaration(key)
    program = aot_targets.compile_for(one.shape.mesh, jitted, args)
    found = read_program(program.hlo, _expert_shapes(one), program.compile_seconds)
    return dataclasses.replace(found, argument_bytes=program.argument_bytes, temp_bytes=program.temp_bytes)


def read_program(hlo: str, expert_shapes: set[str], compile_seconds: float) -> Program:
    """Read the figures of a program.

    Args:
        expert_shapes: shapes of whole arrays of experts on a device, such as bf16[32,2048,768].
    """
    sent, count, brought, cycles, is_entry = 0.0, 0, 0.0, 0, False
    for line in hlo.splitlines():
        if line.endswith("{"):
            is_entry = line.startswith("ENTRY")
        if (match := _COLLECTIVE.search(line)) is not None:
            sent += _sent(match[1], match[2], _group_size(line))
            count += 1
        if not is_entry:
            continue
        is_kernel = "custom-call(" in line and "ConcatBitcast" not in line  # that one puts slices together
        if not is_kernel and (match := _COPY.match(line)) is not None and match[1] in expert_shapes:
            brought += _size(match[1])
        if (match := _CYCLES.search(line)) is not None and int(match[1]) < 1 << 62:
            cycles += int(match[1])
    return Program(sent, count, brought, cycles, compile_seconds)


def _sent(shapes: str, kind: str, size: int) -> float:
    """Bytes that each device of a group sends, by the ring's arithmetic."""
    nbytes = max((_size(f"{dtype}[{dims}]") for dtype, dims in _SHAPE.findall(shapes)), default=0.0)
    share = (size - 1) / size
    return nbytes * {"all-reduce": 2 * share, "reduce-scatter": size * share}.get(kind, share)


def _group_size(line: str) -> int:
    if (match := _IOTA_GROUPS.search(line)) is not None:
        return int(match[2])
    listed = _LISTED_GROUPS.search(line)
    return 1 if listed is None else listed[1].count(",") + 1


def _size(shape: str) -> float:
    dtype, _, dims = shape.rstrip("]").partition("[")
    return _WIDTH.get(dtype, 4) * math.prod(map(int, dims.split(","))) if dims else 0.0


def _expert_shapes(one: Deployment) -> set[str]:
    """Return the three-dimensional shapes of experts, in XLA's notation."""
    found = set()
    for leaf in one.weights:
        shape = leaf.sharding.shard_shape(leaf.shape)
        if len(shape) == 3 and shape[0] > 1 and leaf.shape[0] >= (one.layout.config.experts or _NO_EXPERTS).num_experts:
            names = {"int4": "s4", "int8": "s8", "float8_e4m3fn": "f8e4m3fn", "bfloat16": "bf16", "float32": "f32"}
            found.add(f"{names[jnp.dtype(leaf.dtype).name]}[{','.join(map(str, shape))}]")
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _NoExperts:
    num_experts: int = 1 << 30


_NO_EXPERTS = _NoExperts()


def tiles_and_hits(row: Row, one: Deployment, num_tokens: int) -> tuple[float, float]:
    """Matrices of a layer that a device's kernels read, and experts there that are hit: the mean of draws."""
    experts = one.layout.config.experts
    assert experts is not None
    parts = one.num_expert_parts * one.num_sharing
    here, rows = experts.num_places // parts, num_tokens * experts.num_chosen
    # XLA:TPU's kernel keeps a matrix for the tiles of a group, and a GPU has it in its cache: both read it once.
    tile = tile_rows(rows, here) if row.quantization and one.place.chip.platform == "tpu" else rows
    rng, reads, hits, draws = np.random.default_rng(0), 0, 0, 20
    for _ in range(draws):
        picks = np.argsort(rng.random((num_tokens, experts.num_experts)), axis=1)[:, : experts.num_chosen]
        sizes = np.bincount(picks.ravel(), minlength=experts.num_places)[:here]
        hits += int(np.count_nonzero(sizes))
        reads += int(np.sum(-(-sizes // tile)))
    return reads / draws, hits / draws


def figures(row: Row, num_requests: int, *, compiles: bool) -> dict[str, Any]:
    """One row; num_requests: of all ranks."""
    ranks = row.parallel.dp_size
    mine = max(1, num_requests // ranks)
    one = deployment(row, mine, None)
    chip, config = one.place.chip, one.layout.config
    assert config.experts is not None
    parts = one.num_expert_parts * one.num_sharing
    sparse = config.num_sparse_layers
    expert = one.expert_bytes / sparse / (config.experts.num_places // parts)
    reads, hits = tiles_and_hits(row, one, num_requests)
    other = one.weight_bytes - one.expert_bytes - one.table_bytes
    cached = mine * one.cache_bytes(CONTEXT)
    flops = 2 * one.num_active_parameters * num_requests / (one.num_shards * ranks)
    found: dict[str, Any] = {
        "model": row.model,
        "slice": row.place,
        "tp": row.parallel.tp_size,
        "ep": row.parallel.ep_size,
        "dp": ranks,
        "requests": num_requests,
        "weights GiB": one.weight_bytes / 2**30,
        "other weights MiB": other / 2**20,
        "cached MiB": cached / 2**20,
        "experts here": config.experts.num_places // parts,
        "experts hit": hits,
        "all experts MiB a layer": one.expert_bytes / sparse / 2**20,
        "hit MiB a layer": hits * expert / 2**20,
        "read MiB a layer": reads * expert / 2**20,
        "bytes ms": 1000 * (other + cached + sparse * hits * expert) / chip.bandwidth,
        "flops ms": 1000 * flops / chip.flops,
        "roofline ms": 1000 * Roofline(one).decode_seconds(mine, CONTEXT),
    }
    if compiles:
        first, second = (compiled(row, mine, depth) for depth in row.depths)
        layers = row.depths[1] - row.depths[0]
        sent = (second.sent - first.sent) / layers
        found |= {
            "collectives a layer": (second.collectives - first.collectives) / layers,
            "sent KiB a layer": sent / 1024,
            "sums ms": 1000 * sent * config.num_layers / chip.link,
            "brought MiB a layer": (second.brought - first.brought) / layers / 2**20,
            "cycles a layer, but kernels": (second.cycles - first.cycles) / layers,
            "compile s": second.compile_seconds,
        }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="rows that have this in their model's or slice's name")
    parser.add_argument("--requests", type=int, nargs="+", default=(1, 64, 256), help="of all ranks together")
    parser.add_argument("--no-compile", action="store_true", help="the arithmetic alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows = []
    for row in ROWS:
        for number in args.requests:
            if args.only.lower() in f"{row.model} {row.place}".lower():
                rows.append(figures(row, max(number, row.parallel.dp_size), compiles=not args.no_compile))
                print(
                    {name: round(value, 3) if isinstance(value, float) else value for name, value in rows[-1].items()}
                )
                sys.stdout.flush()
    if args.json:
        report = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": " ".join(sys.argv), "jax": jax.__version__}
        args.json.write_text(json.dumps(report | {"rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
