"""Memory that programs need in addition to their arguments, before any is compiled: for plans. Compilers reuse memory
as they can, so this is arithmetic on the widest arrays, with factors that `benchmarks/aot/workspace.py` found to
suffice.
"""

import dataclasses
import math
from collections.abc import Collection
from typing import Self

import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.model.config.config import ModelConfig
from palladio.model.weights.kinds import round_up
from palladio.runtime.execution.programs.program import Program
from palladio.runtime.execution.steps.verification import MOST_SEARCHED
from palladio.runtime.scheduling.batch.buckets import Buckets

_MIB = 2**20
_HIDDEN_ARRAYS = 3  # arrays of [tokens, D] that a prefill step has at once, without those of the MLP or attention
_HEAD_ARRAYS = 4  # of [tokens, all heads]: some of them in float32
_DRAFT_ARRAYS = 11  # of tokens that drafts are looked for in, 4 bytes each; XLA:TPU pads pages of 16 to 128 tokens
_FFW_ARRAYS = 3  # of [tokens, F]: the gate, what it lets through, and their product
_PREFILL_MARGIN = 1.25  # compilers do not always reuse memory as well as they could
# Where weights take 0.35 of a device or more (Llama-3.1-70B on v5p-8 and v6e-8, Qwen3-32B on v6e-4, Llama-3.1-8B on
# v6e-1), XLA:TPU lets the layers share code; where they take 0.23 or less it does not. Why is not known.
_SHARED_FROM = 0.3
_SHARED_LAYERS = 2  # whose code stands for that of all layers then


@dataclasses.dataclass(frozen=True, slots=True)
class _Compiler:
    """How a platform's compiler lays programs out.

    Attributes:
        sampler_arrays: float32 arrays of [rows, vocabulary] that sampling has at once: logits, odds, noise, images, …
        code: MiB of a program that has no layers (score, sample), and of each other program without its layers; 0: code
            is not kept in the memory of arrays.
        prefill_code: MiB of each layer of a prefill step.
        decode_code: MiB of each layer of a decode step with a million weights a device; it grows by decode_growth
            whenever their number doubles.
    """

    sampler_arrays: float
    code: float = 0.0
    prefill_code: float = 0.0
    decode_code: float = 0.0
    decode_growth: float = 0.0


_TPU = _Compiler(8.25, code=8.0, prefill_code=5.0, decode_code=1.0, decode_growth=0.42)
_GPU = _Compiler(5.5)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkspaceEstimate:
    """Bytes of one device.

    Attributes:
        prefill, sampling: scratch memory of the largest of these programs; looking for drafts counts as sampling.
        results: hidden states that a forward step hands on.
        code: of all programs.
    """

    prefill: int
    sampling: int
    results: int
    code: int

    @property
    def total(self) -> int:
        """Bytes, counted as by workspace_of: the largest program with its results, the results before it, all code."""
        return max(self.prefill + self.results, self.sampling) + self.results + self.code

    @classmethod
    def of(
        cls,
        platform: str,
        model: ModelConfig,
        buckets: Buckets,
        dtype: DTypeLike,
        *,
        num_shards: int,
        num_expert_parts: int,
        num_sharing: int,
        programs: Collection[Program],
        layer_weights: int,
        memory_share: float,
        context: int,
    ) -> Self:
        """Estimate the memory that programs need in addition to their arguments.

        Args:
            platform: as jax names it.
            model: as laid out over `num_shards` shards, its experts over `num_expert_parts`.
            num_sharing: ranks whose rows go to the same experts.
            dtype: of hidden states.
            programs: the closed set.
            layer_weights: how many weights one layer has on one device.
            memory_share: the share of a device's memory that the weights take.
            context: tokens that a block table has room for.
        """
        compiler, itemsize = _TPU if platform == "tpu" else _GPU, jnp.dtype(dtype).itemsize
        num_tokens, num_rows = buckets.max_prefill_tokens, sum(buckets.sample)
        heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_size // num_shards
        if model.latent is not None:  # queries and results in terms of rows of the cache
            heads = model.num_heads * round_up(model.latent.row_size, 128) // num_shards
        ffw = _FFW_ARRAYS * model.intermediate_size // num_shards
        if model.experts is not None:  # a row for each expert of each token, wherever it is, and what gate and up make
            columns = model.experts.intermediate_size * num_expert_parts // num_shards
            ffw = max(ffw, num_sharing * model.experts.num_chosen * (model.hidden_size + 2 * columns))
        widest = _HIDDEN_ARRAYS * model.hidden_size + max(_HEAD_ARRAYS * heads, ffw)
        logits = max(buckets.sample) * model.vocab_size // num_shards * 4 if model.has_head else 0
        searched = min(MOST_SEARCHED, context * max((bucket.num_requests for bucket in buckets.verify), default=0))
        decode_layer = compiler.decode_code + compiler.decode_growth * max(0.0, math.log2(layer_weights / 1e6))
        num_layers = model.num_layers if memory_share < _SHARED_FROM else min(model.num_layers, _SHARED_LAYERS)
        with_layers = [
            compiler.prefill_code if one.key.num_tokens else decode_layer for one in programs if one.runs_layers
        ]
        code = len(programs) * compiler.code + num_layers * sum(with_layers)
        return cls(
            prefill=int(_PREFILL_MARGIN * num_tokens * widest * itemsize),
            sampling=int(max(compiler.sampler_arrays * logits, _DRAFT_ARRAYS * searched * 4)),
            results=(num_tokens + num_rows) * model.hidden_size * itemsize,
            code=int(code * _MIB) if compiler.code else 0,
        )
