"""A decode step of DeepSeek-V3 on slices of TPUs, by how attention is divided: what a device holds, reads and sends.

    python benchmarks/paper/latent_paper.py                            # without a compiler
    PYTHONPATH=.venv-aot python benchmarks/paper/latent_paper.py --compile --ranks 1 8 --requests 256 --json out.json

Attention goes over all devices of a slice (tensor parallel: each keeps every latent), or ranks of some devices have
requests of their own (`--enable-dp-attention`: each keeps the latents of its rank, and more of all weights but the
experts'). Experts are always divided among all devices: whole, in as many parts as there are devices.

What comes from where:

- bytes of weights and latents: shapes of the arrays that an engine would place on a device, padding included;
- cached tokens: `palladio plan`'s, with its estimate of workspace;
- with --compile: bytes that the compiled step sends, the memory that it needs beside its arguments, and XLA's estimate
  of all but kernels, of models of 4 and of 5 layers, of which three are dense. The fifth layer stands for 57;
- arithmetic, whatever is compiled: seconds (bytes and operations at the chip's data sheet, nothing beside anything
  else), which experts are hit (by a router that favours none), and attention's operations.

So seconds are a floor, and a way to compare, not a prediction.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import jax

from benchmarks.paper import mixture_paper  # isort: skip  # first: it tells jax where to run
import numpy as np
from flax import nnx

from benchmarks.aot.aot_targets import bytes_per_device
from benchmarks.paper.mixture_paper import Row, compiled, deployment, sharing
from benchmarks.support.checkpoints import DEEPSEEK_V3 as V3
from palladio.model.functional import unflatten_model
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.planning.deployment import Deployment
from palladio.runtime.planning.hardware import find_slice

LAYERS, SPARSE, LEAST_ROWS = V3["num_hidden_layers"], V3["num_hidden_layers"] - V3["first_k_dense_replace"], 16
LATENT, ROW, WIDE = V3["kv_lora_rank"], 640, 2  # ROW: numbers of a token in the cache; WIDE: bytes of bfloat16
DEPTHS = (4, 5)


def row_of(topology: str, ranks: int) -> Row:
    """Attention over ranks of as many devices as there are for each."""
    devices = find_slice(topology).num_devices
    parallel = ParallelConfig(tp_size=devices, ep_size=devices) if ranks == 1 else sharing(devices, ranks)
    return Row("DeepSeek-V3", V3, "fp8-block", topology, parallel, DEPTHS)


def attention_bytes(one: Deployment) -> int:
    """Weights of attention on a device, of all layers."""
    layers = unflatten_model(one.structure, one.weights).layers
    return sum(bytes_per_device(jax.tree.leaves(nnx.state(layer.attention))) for layer in layers)


def cached_tokens(row: Row, one: Deployment, num_requests: int) -> int:
    """Return the cached tokens that the slice's memory holds; 0: not even the weights fit."""
    config = mixture_paper.flags(row, num_requests)
    try:
        return row.parallel.dp_size * one.plan(config, one.estimated_workspace()).num_tokens
    except ConfigError:
        return 0


def figures(topology: str, ranks: int, num_requests: int, context: int, *, compiles: bool) -> dict[str, Any]:
    """Return the figures of one division of a slice; milliseconds of the parts of a decode step on a device."""
    row, mine = row_of(topology, ranks), num_requests // ranks
    one = deployment(row, mine, None)
    chip, devices = one.place.chip, one.num_shards
    _, hits = mixture_paper.tiles_and_hits(row, one, num_requests)
    here = one.place.num_devices  # parts of the experts
    hit_bytes = one.expert_bytes * hits / (V3["n_routed_experts"] / here)
    attention = attention_bytes(one)
    other = one.weight_bytes - one.expert_bytes - one.table_bytes - attention
    heads = max(LEAST_ROWS, V3["num_attention_heads"] / devices)  # rows of the kernel
    flops = LAYERS * mine * context * 2 * heads * (ROW + LATENT)
    seconds = {
        "attention weights": attention / chip.bandwidth,
        "latents": max(mine * one.cache_bytes(context) / chip.bandwidth, flops / chip.flops),
        "experts": hit_bytes / chip.bandwidth,
        "other weights": other / chip.bandwidth,
    }
    found: dict[str, Any] = {
        "topology": topology,
        "ranks": ranks,
        "devices a rank": devices,
        "weights GiB": one.weight_bytes / 2**30,
        "latents: bytes a token, layer and device": one.bytes_per_token / LAYERS,
        "cached tokens": cached_tokens(row, one, mine),
        "requests": num_requests,
        "context": context,
        **{name: 1000 * value for name, value in seconds.items()},
        "sums, by arithmetic": 1000 * sums(ranks, devices, num_requests) / chip.link,
    }
    if compiles:
        found |= compiled_figures(row, mine, chip.link)
    total = found.get("sums", found["sums, by arithmetic"])
    return found | {"step": 1000 * sum(seconds.values()) + total}


def sums(ranks: int, devices: int, num_requests: int) -> float:
    """Bytes that a device sends: attention's sum is of a rank's rows; that of the other layers of all rows: an
    all-gather before and a reduce-scatter after it, which is an all-reduce's volume."""
    rows, n = num_requests * V3["hidden_size"] * WIDE, ranks * devices
    return float(LAYERS * 2 * (rows / ranks * (devices - 1) / devices + rows * (n - 1) / n))


def compiled_figures(row: Row, mine: int, link: float) -> dict[str, Any]:
    """Extrapolate from the compiled steps of few layers to all layers."""
    few, more = (compiled(row, mine, depth) for depth in DEPTHS)
    sent = few.sent + (SPARSE - 1) * (more.sent - few.sent)
    return {
        "sums": 1000 * sent / link,
        "sent MiB": sent / 2**20,
        "collectives a sparse layer": more.collectives - few.collectives,
        "a sparse layer's arguments MiB": (more.argument_bytes - few.argument_bytes) / 2**20,
        "scratch MiB": more.temp_bytes / 2**20,
        "million cycles, but kernels": (few.cycles + (SPARSE - 1) * (more.cycles - few.cycles)) / 1e6,
        "compile s": more.compile_seconds,
    }


def padding(ranks: int, chunk: int, num_decodes: int) -> dict[str, float]:
    """Return the cost of a step in which one rank computes a chunk while each other rank decodes `num_decodes`
    requests: all ranks compute steps of one shape, so their rows are gathered with as many rows of padding."""
    real = chunk + (ranks - 1) * num_decodes
    gathered = ranks * chunk
    return {
        "chunk": chunk,
        "decodes a rank": num_decodes,
        "real rows": real,
        "gathered rows": gathered,
        "gathered MiB a layer": gathered * V3["hidden_size"] * WIDE / 2**20,
        "ratio": gathered / real,
    }


def leaves(topology: str, ranks: int) -> list[str]:
    """Return rows of a table: the division of each array of weights, for a dense and a sparse layer and the parts
    outside layers."""
    one = deployment(row_of(topology, ranks), 8, None)
    rows = []
    for path, leaf in nnx.to_flat_state(nnx.state(unflatten_model(one.structure, one.weights))):
        name, array = ".".join(map(str, path)), leaf.get_value()
        if not name.startswith("layers.") or name.startswith(("layers.0.", f"layers.{LAYERS - SPARSE}.")):
            axes = ", ".join("–" if axis is None else " × ".join(np.atleast_1d(axis)) for axis in array.sharding.spec)
            sizes = array.shape, array.sharding.shard_shape(array.shape)
            rows.append(f"| {name} | {array.dtype} | {sizes[0]} | {axes} | {sizes[1]} |")
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topology", nargs="+", default=("v6e-32", "tpu7x-16"))
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2, 4, 8))
    parser.add_argument("--requests", type=int, nargs="+", default=(64, 256))
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--compile", action="store_true", help="a minute or two a row")
    parser.add_argument("--leaves", action="store_true", help="only how each array lies, with the last of --ranks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.leaves:
        print("\n".join(leaves(args.topology[0], args.ranks[-1])))
        return 0
    table = []
    for name in args.topology:
        for ranks in args.ranks:
            for number in args.requests:
                table.append(figures(name, ranks, number, args.context, compiles=args.compile))
                print({key: round(value, 2) if isinstance(value, float) else value for key, value in table[-1].items()})
                sys.stdout.flush()
    padded = [padding(8, chunk, 32) for chunk in (2048, 256)]
    for each in padded:
        print({key: round(value, 2) if isinstance(value, float) else value for key, value in each.items()})
    if args.json:
        report = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": " ".join(sys.argv), "jax": jax.__version__}
        args.json.write_text(
            json.dumps(report | {"steps": table, "padding": padded}, indent=2) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
