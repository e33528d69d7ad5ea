"""Compiles the engine's step programs for accelerators that are not there, and checks what the compilers made of them.

    pip install 'jax[tpu]'                 # or jax[cuda13] for h200; nothing of it needs the hardware
    python benchmarks/aot_steps.py --target tpu-v6e --model llama-8b
    python benchmarks/aot_steps.py --target h200 --decode 1 256 --prefill 2048 --only forward sample

The programs are those of StepPrograms, with the sizes that an engine would settle on: the KV pool fills the device.
Checked of each program: it compiles and fits; it aliases the whole KV cache (forward) or sampler state (sample, reset);
it copies nothing of a layer's cache; it never calls the host; on GPU it has no conditional. Loops whose trip count is
data are counted: on GPU the host waits for the device at each of their iterations.
"""

import argparse
import collections
import dataclasses
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aot_targets import TARGETS, Compiled, Target, compile_for  # isort: skip  (before jax)

import jax
import jax.numpy as jnp
from checkpoints import HALF_BILLION
from flax import nnx
from jax.sharding import Mesh

from palladio.model.config import ModelConfig
from palladio.model.decoder import CausalLM
from palladio.model.functional import ModelStructure, flatten_model
from palladio.model.kv_cache import KVCacheSpec
from palladio.model.sharding import ShardingRules
from palladio.pallas_kernels.ragged_paged_attention import kv_page_shape
from palladio.runtime.buckets import Buckets, PrefillBucket
from palladio.runtime.memory import DEFAULT_FRACTION_ACCELERATOR, DeviceMemory, PoolRequest, plan_pages
from palladio.runtime.sampler_state import SamplerState
from palladio.runtime.startup import _ACCELERATOR as DEFAULTS
from palladio.runtime.step_programs import DeviceState, ProgramKey, StaticModel, StepPrograms

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

PROGRAMS = ("forward", "sample", "score", "reset")
_SHAPE = r"\w+\[([\d,]*)\](?:\{[^}]*\})?"
_INSTRUCTION = re.compile(rf"^\s*(?:ROOT )?%?[\w.-]+ = (?:\(?{_SHAPE}).*? ([a-z][\w-]*)\(", re.MULTILINE)
_COPIES = ("copy", "copy-start", "transpose", "convert")
_HOST = re.compile(r"custom_call_target=\"[^\"]*callback|^.* (?:infeed|outfeed|send|recv)\(", re.MULTILINE)
_KNOWN_TRIPS = "known_trip_count"


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What an optimized program does that an engine's step should not.

    Attributes:
        cache_copies: copies, transpositions and conversions of a whole layer's cache.
        host_calls: callbacks, infeeds, outfeeds, sends and receives.
        conditionals: branches on data.
        data_loops: loops whose trip count the compiler does not know.
    """

    cache_copies: int
    host_calls: int
    conditionals: int
    data_loops: int

    @classmethod
    def of(cls, hlo: str, cache_shape: tuple[int, ...]) -> "Facts":
        wanted = sorted(cache_shape)
        counts: collections.Counter[str] = collections.Counter()
        copies = 0
        for match in _INSTRUCTION.finditer(hlo):
            dims, opcode = match.groups()
            counts[opcode] += 1
            copies += opcode in _COPIES and sorted(int(n) for n in dims.split(",") if n) == wanted
        loops = [line for line in hlo.splitlines() if re.search(r" while\(", line)]
        return cls(
            cache_copies=copies,
            host_calls=len(_HOST.findall(hlo)),
            conditionals=counts["conditional"],
            data_loops=sum(_KNOWN_TRIPS not in line for line in loops),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """An engine's programs on a target, all abstract."""

    target: Target
    mesh: Mesh
    model: StaticModel
    state: DeviceState
    buckets: Buckets
    page_size: int

    @property
    def cache_shape(self) -> tuple[int, ...]:
        """Of one layer on one device."""
        shape: tuple[int, ...] = self.state.kv_cache[0].sharding.shard_shape(self.state.kv_cache[0].shape)
        return shape

    def programs(self) -> dict[ProgramKey, tuple[Any, tuple[Any, ...]]]:
        """Each program, jitted, and its arguments."""
        return pending(StepPrograms(self.model, self.state, self.buckets, self.page_size))


def pending(programs: StepPrograms) -> dict[ProgramKey, tuple[Any, tuple[Any, ...]]]:
    return programs._programs._pending
