"""A decode step of DeepSeek-V3 on paper: what a device reads, multiplies and sends, by how attention is divided.

    python benchmarks/latent_paper.py --topology v6e-32 tpu7x-16 --requests 64 256 --context 4096

Attention goes over all devices of a slice (tensor parallel: each keeps every latent), or ranks of some devices have
requests of their own (data parallel: each keeps the latents of its rank, and more of attention's weights). The other
layers are always divided among all devices: experts whole, in as many parts as there are devices.

FP8 weights, latents in bfloat16, a router that favours no expert. Everything at the chip's data sheet: a floor, and a
way to compare, not a prediction. (`--enable-dp-attention`)
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checkpoints import DEEPSEEK_V3 as V3

from palladio.runtime.planning.hardware import Chip, find_slice

D, LAYERS, DENSE, HEADS = V3["hidden_size"], V3["num_hidden_layers"], V3["first_k_dense_replace"], 128
LATENT, ROW_BYTES, LEAST_ROWS = V3["kv_lora_rank"], 1280, 16
EXPERTS, CHOSEN, WIDE = V3["n_routed_experts"], V3["num_experts_per_tok"], 2  # WIDE: bytes of bfloat16
EXPERT_BYTES = 3 * D * V3["moe_intermediate_size"]
FREE_SHARE, WORKSPACE = 0.92, 2.5 * 2**30  # of memory


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """Of attention: ranks, of so many devices each."""

    ranks: int
    devices: int

    @property
    def all_devices(self) -> int:
        return self.ranks * self.devices

    @property
    def attention_bytes(self) -> float:
        """Weights of attention on a device, of a layer."""
        whole = D * (V3["q_lora_rank"] + LATENT + V3["qk_rope_head_dim"])
        by_head = V3["q_lora_rank"] * 192 + (128 + 128) * LATENT * WIDE + 128 * D
        return float(whole + HEADS * by_head / self.devices)

    @property
    def other_bytes(self) -> float:
        """All other weights on a device."""
        mlp = DENSE * 3 * D * V3["intermediate_size"] + (LAYERS - DENSE) * (EXPERTS + 1) * EXPERT_BYTES
        tables = 2 * V3["vocab_size"] * D * WIDE
        return float((mlp + tables) / self.all_devices + (LAYERS - DENSE) * D * EXPERTS * WIDE)

    def cached_tokens(self, chip: Chip) -> int:
        """That the slice's memory holds."""
        free = FREE_SHARE * chip.memory - WORKSPACE - self.other_bytes - LAYERS * self.attention_bytes
        return self.ranks * max(0, int(free / (LAYERS * ROW_BYTES)))


def step(division: Division, chip: Chip, num_requests: int, context: int) -> dict[str, float]:
    """Milliseconds of the parts of a decode step on a device."""
    mine, n = num_requests / division.ranks, division.all_devices
    hit = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** num_requests)
    dense = (DENSE * 3 * D * V3["intermediate_size"] + V3["vocab_size"] * D * WIDE) / n
    experts = (LAYERS - DENSE) * ((hit + 1) * EXPERT_BYTES / n + D * EXPERTS * WIDE)
    heads = max(LEAST_ROWS, HEADS / division.devices)  # rows of the kernel
    flops = LAYERS * mine * context * 2 * heads * (ROW_BYTES / 2 + LATENT)
    rows = num_requests * D * WIDE
    # Attention's sum is of a rank's rows; that of the others of all rows: an all-gather before and a reduce-scatter
    # after it, which is an all-reduce's volume.
    sums = LAYERS * 2 * (rows / division.ranks * (division.devices - 1) / division.devices + rows * (n - 1) / n)
    seconds = {
        "attention weights": LAYERS * division.attention_bytes / chip.bandwidth,
        "latents": max(LAYERS * mine * context * ROW_BYTES / chip.bandwidth, flops / chip.flops),
        "experts": experts / chip.bandwidth,
        "other weights": dense / chip.bandwidth,
        "sums": sums / chip.link,
    }
    return {name: 1000 * value for name, value in seconds.items()} | {"step": 1000 * sum(seconds.values())}


def padding(ranks: int, chunk: int, num_decodes: int) -> dict[str, float]:
    """What it costs that one rank computes a chunk while the others decode so many requests each: all ranks compute
    steps of one shape, so their rows are gathered with as many rows of padding."""
    real = chunk + (ranks - 1) * num_decodes
    gathered = ranks * chunk
    return {
        "chunk": chunk,
        "decodes a rank": num_decodes,
        "real rows": real,
        "gathered rows": gathered,
        "gathered MiB a layer": gathered * D * WIDE / 2**20,
        "ratio": gathered / real,
    }


def rows(topology: str, num_requests: Sequence[int], context: int) -> Iterator[dict[str, Any]]:
    """Of a slice, each division."""
    found = find_slice(topology)
    for devices in (found.num_devices, 8, 4, 2, 1):
        if devices > found.num_devices or (devices == found.num_devices and devices < 8):
            continue
        division = Division(found.num_devices // devices, devices)
        weights = (division.other_bytes + LAYERS * division.attention_bytes) / 2**30
        for number in num_requests:
            yield {
                "topology": topology,
                "ranks": division.ranks,
                "devices a rank": devices,
                "weights GiB": weights,
                "cached tokens": division.cached_tokens(found.chip),
                "requests": number,
                "context": context,
                **step(division, found.chip, number, context),
            }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topology", nargs="+", default=("v6e-32", "tpu7x-16"))
    parser.add_argument("--requests", type=int, nargs="+", default=(64, 256))
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    table = [row for name in args.topology for row in rows(name, args.requests, args.context)]
    padded = [padding(8, chunk, 32) for chunk in (2048, 256)]
    for row in (*table, *padded):
        print({name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()})
    if args.json:
        report = {"date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": " ".join(sys.argv)}
        args.json.write_text(
            json.dumps(report | {"steps": table, "padding": padded}, indent=2) + "\n", encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
