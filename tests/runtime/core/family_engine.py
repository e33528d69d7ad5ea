"""A tiny model of a family through whole engines, for test_every_family.py and for the table of families."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model
from palladio.model.loading import orbax_weights
from palladio.model.loading.load_model import load_model
from tests import tiny_hybrids
from tests.model.driver import MAX_LEN
from tests.model.make_goldens import NUM_TOKENS, prompts_of
from tests.runtime.core import mesh_requests
from tests.runtime.core.mesh_requests import assert_same
from tests.runtime.tiny_engine import Collector, create_core
from tests.tiny_model import make_checkpoint, tiny_config

ONLY_WINDOWS = ("phi3", "starcoder2", "mistral", "mixtral")
"""No layer keeps more than a window: a request takes all that it ever needs when it is admitted."""

SOME_WINDOWS = ("gemma3", "gemma2", "olmo3", "cohere2", "gpt_oss", "qwen2_windowed")
POOLS = dict.fromkeys(ONLY_WINDOWS, 48) | dict.fromkeys(SOME_WINDOWS, 112)
"""Tokens, fewer where all layers, or some, keep the newest 12 only."""

SNAPSHOTS = {"state_snapshot_interval": 8, "state_snapshot_bytes": 2**20}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
DENSE_MESHES = [[1, 8, 1], [2, 4, 1], [8, 1, 1]]
EXPERT_MESHES = [[1, 8, 8], [2, 4, 2], [8, 1, 1]]
SHARED_MESHES = [[2, 8, 4], [8, 8, 1]]
"""--dp-size, --tp-size and --ep-size; the last ones with --enable-dp-attention, where --tp-size counts all devices."""


def answer_under_pressure(path: Path, family: str, *, mixed: bool) -> Collector:
    """Answer the last five prompts in chunks, with pages of 4 tokens and a pool that is too small for them; then the
    last one twice: "alone" with 8 tokens, and "again" from the prefix cache.

    Args:
        mixed: decoding rows share steps with chunks.
    """
    chosen = prompts_of(family)[-5:]
    core = create_core(
        path,
        load_format="auto",
        context_length=MAX_LEN,
        max_total_tokens=POOLS.get(family, 160),  # of requests that have up to 139 each
        schedule_conservativeness=0.0,
        max_running_requests=4,
        cuda_graph_bs=(4,),
        compile="lazy",
        chunked_prefill_size=20,
        enable_mixed_chunk=mixed,
        **(SNAPSHOTS if family in tiny_hybrids.CONFIGS else {}),
    )
    collector = Collector(core)
    for i, prompt in enumerate(chosen):
        collector.add(str(i), prompt, max_tokens=NUM_TOKENS)
    collector.run()
    for name, num_tokens in (("alone", 8), ("again", NUM_TOKENS)):  # longer ones, alone, would push the prompt out
        collector.add(name, chosen[-1], max_tokens=num_tokens)
        collector.run()
    return collector


def has_experts(family: str) -> bool:
    return any(name in tiny_config(family) for name in EXPERTS)


def make_divisible(folder: Path, family: str) -> Path:
    """A checkpoint with as many experts as there are devices. Of gpt-oss two layers: with four, sums in another order
    move log-probabilities by more than 1e-5."""
    layers = {"num_hidden_layers": 2} if family == "gpt_oss" else {}
    return make_checkpoint(folder, family, **{name: 8 for name in EXPERTS if name in tiny_config(family)}, **layers)


def meshes_of(family: str) -> list[list[int]]:
    return EXPERT_MESHES if has_experts(family) else DENSE_MESHES


def compare_meshes(folder: str, family: str) -> dict[str, float]:
    """To be called where there are 8 devices. The largest difference of a log-probability by mesh.

    Raises:
        AssertionError: they differ by more than `assert_same` allows.
    """
    flags = {"cache_self_check": 0.0}
    one, *others = mesh_requests.model_on_meshes(folder, [[1, 1, 1], *meshes_of(family)], flags)
    found = list(zip(meshes_of(family), others, strict=True))
    if has_experts(family):
        shared = mesh_requests.model_on_meshes(folder, SHARED_MESHES, flags | {"enable_dp_attention": True})
        found += [([*mesh, 0], other) for mesh, other in zip(SHARED_MESHES, shared, strict=True)]
    differences = {}
    for mesh, other in found:
        assert_same(other, one, num_logprobs=60)
        gaps = np.abs(np.subtract(other["logprobs"], one["logprobs"]))
        differences[json.dumps(mesh)] = float(gaps.max())
    return differences


def compare_converted(folder: str, out: str) -> int:
    """Return how many arrays of a converted checkpoint, on one device and on 8, equal those of the safetensors on the
    same devices, bit for bit. Needs 8 devices."""
    path, to, count = Path(folder), Path(out), 0
    config = ModelConfig.from_hf(*read_model_dir(path))
    orbax_weights.convert(path, to, config, "float32", lambda *step: None)
    for num_devices in (1, 8):
        pairs = [_weights(each, num_devices) for each in (path, to)]
        for wanted, got in zip(*pairs, strict=True):
            np.testing.assert_array_equal(wanted, got)
            assert got.sharding == wanted.sharding
        count += len(pairs[0])
    return count


def _weights(path: Path, num_devices: int) -> list[Any]:
    config = ModelConfig.from_hf(*read_model_dir(path))
    model = load_model(path, config, dtype="float32", mesh=make_mesh(num_devices), load_format="auto")
    return list(flatten_model(model)[1])
