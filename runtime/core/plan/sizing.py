"""The sizes that flags, model and platform come to, before anything is loaded: limits and buckets."""

import dataclasses
import json
from typing import Any, Self

from palladio.model.config.config import ModelConfig
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.scheduling.batch.buckets import Buckets

LEAST_CHUNK = 64  # tokens of a rank, by default


def joined_passes(config: EngineConfig, defaults: PlatformDefaults, weight_bytes: int) -> int:
    """Return how many forward passes a decode step of few requests makes, at most: as many as the platform does with
    such weights, if no flag asks for other steps.

    Args:
        weight_bytes: bytes of a device's weights: about what a pass of few tokens reads.
    """
    is_other = config.source.is_embedding or config.execution.deterministic or config.speculative.num_drafts > 0
    is_other |= config.scheduler.num_continuous_decode_steps is not None or config.parallel.dp_size > 1
    return 1 if is_other else defaults.passes_of(weight_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineLimits:
    """The sizes that flags, model and platform come to; where there are several data-parallel ranks, of each.

    Attributes:
        num_ranks: data-parallel ranks (--dp-size).
        context_length: tokens of a request. max_running: requests.
        chunk: prompt tokens of a step; -1: prompts are not split. max_step_tokens: tokens of a prefill step.
        mixes: prefill steps decode as well.
        useful_pool_tokens: more KV cache is never, or hardly ever, used.
        is_fine: see Buckets.create.
        has_plain_tier, joined_rows, least_page_bytes: see PlatformDefaults.
        joined_passes: see the function; 1 before the weights are known.
    """

    num_ranks: int
    context_length: int
    max_running: int
    chunk: int
    max_step_tokens: int
    mixes: bool
    useful_pool_tokens: int
    is_fine: bool
    has_plain_tier: bool
    joined_rows: int
    least_page_bytes: int
    joined_passes: int = 1

    @classmethod
    def of(cls, config: EngineConfig, model: ModelConfig, defaults: PlatformDefaults) -> Self:
        """
        Raises:
            ConfigError: --context-length is more than the model was made for.
        """
        context_length = config.source.context_length or model.max_position_embeddings
        if context_length > model.max_position_embeddings:
            raise ConfigError(_of_long_context(context_length, model))
        scheduler = config.scheduler
        num_ranks = config.parallel.dp_size
        # Ranks that have experts in common compute each other's rows, padding too: together they take one chunk.
        usual = defaults.chunk_of(model, config.parallel.rank_size)
        if config.parallel.enable_dp_attention:
            usual = max(LEAST_CHUNK, usual // num_ranks)
        chunk = usual if scheduler.chunked_prefill_size is None else scheduler.chunked_prefill_size
        most_prefill = scheduler.max_prefill_tokens
        if model.encoder is not None:  # each token sees all others of its text, so no text is split
            most_prefill, chunk = (most_prefill if chunk == -1 else min(chunk, most_prefill)), -1
        max_running = (scheduler.max_running_requests or defaults.max_running * num_ranks) // num_ranks
        if config.execution.deterministic and chunk != -1:
            # Every step has this one size, decode steps too: no larger than it must be.
            chunk = max(max_running, scheduler.chunked_prefill_size or 0)
        # Where a prompt is never split, a step must hold the longest one.
        max_step_tokens = max(most_prefill, context_length) if chunk == -1 else min(chunk, most_prefill)
        if config.execution.deterministic:  # which decodes in prefill's shape
            max_step_tokens = max(max_step_tokens, max_running)
        useful = max_running * context_length
        if defaults.pool_per_request is not None:
            useful = min(useful, max_running * defaults.pool_per_request + context_length)
        return cls(
            num_ranks,
            context_length,
            max_running,
            chunk,
            max_step_tokens=min(max_step_tokens, max_running * context_length),
            mixes=chunk != -1
            and (scheduler.enable_mixed_chunk or (defaults.mixes and not scheduler.disable_mixed_chunk)),
            useful_pool_tokens=useful,
            is_fine=defaults.fine_hidden_size is not None
            and (model.hidden_size >= defaults.fine_hidden_size or model.encoder is not None),
            has_plain_tier=defaults.has_plain_tier,
            joined_rows=defaults.joined_rows,
            least_page_bytes=defaults.least_page_bytes,
        )

    @property
    def total_running(self) -> int:
        """Requests of all ranks together."""
        return self.num_ranks * self.max_running

    def buckets(self, config: EngineConfig, defaults: PlatformDefaults) -> Buckets:
        """The shapes of steps."""
        num_drafts = config.speculative.num_drafts
        if config.execution.deterministic:
            one = Buckets.create_one(max_running=self.max_running, max_step_tokens=self.max_step_tokens)
            return one.with_drafts(num_drafts) if num_drafts else one
        execution = config.execution
        buckets = Buckets.create(
            max_running=self.max_running,
            max_step_tokens=self.max_step_tokens,
            growth=defaults.bucket_growth,
            min_decode=defaults.min_decode,
            is_fine=self.is_fine,
            decode=execution.cuda_graph_bs,
            max_decode=execution.cuda_graph_max_bs,
        )
        if num_drafts:
            return buckets.with_drafts(num_drafts)
        if self.joined_passes > 1:
            buckets = buckets.with_several(self.joined_rows)
        if not config.source.is_embedding:
            return buckets
        return dataclasses.replace(buckets, decode=(), sample=buckets.sample[-1:])


def check_experts(parallel: ParallelConfig, model: ModelConfig) -> None:
    """
    Raises:
        ConfigError: experts are to be spread that the model does not have.
    """
    ep_size, experts = parallel.ep_size, model.experts
    if experts is None and parallel.enable_dp_attention:
        raise ConfigError(
            f"--enable-dp-attention needs a mixture-of-experts model, and {model.architecture} has no experts here: "
            f"use --dp-size {parallel.dp_size} --tp-size {parallel.rank_size} without it"
        )
    if ep_size == 1:
        return
    if experts is None:
        raise ConfigError(
            f"--ep-size {ep_size} needs a mixture-of-experts model, and {model.architecture} has no experts here; omit "
            "--ep-size"
        )
    if ep_size > experts.num_experts:
        fitting = max(n for n in range(1, experts.num_experts + 1) if parallel.tp_size % n == 0)
        raise ConfigError(
            f"--ep-size {ep_size} exceeds the model's {experts.num_experts} experts; use --ep-size {fitting}"
        )


def check_states(config: EngineConfig, model: ModelConfig) -> None:
    """
    Raises:
        ConfigError: a flag asks for what layers with states cannot do.
    """
    if not model.has_states:
        return
    what = f"layers of {model.architecture} keep states"
    if config.speculative.num_drafts:
        raise ConfigError(
            f"--speculative-algorithm: {what}, which cannot be rolled back after a wrong draft; leave the flag out"
        )
    if config.execution.deterministic:
        raise ConfigError(
            f"--deterministic: {what}, whose last bits depend on how a prompt is divided into chunks; "
            "leave the flag out"
        )


def check_encoder(config: EngineConfig, model: ModelConfig) -> None:
    """
    Raises:
        ConfigError: a flag asks an encoder for what a model without a cache cannot do.
    """
    if model.encoder is None:
        return
    what = f"{model.architecture} is an encoder and keeps no keys and values"
    if config.cache.cache_self_check > 0:
        raise ConfigError(f"--cache-self-check: {what}; leave the flag out")
    if config.cache.kv_cache_dtype != "auto":
        raise ConfigError(f"--kv-cache-dtype {config.cache.kv_cache_dtype}: {what}; leave the flag out")
    if config.cache.kv_events_config is not None:
        raise ConfigError(f"--kv-events-config: {what}; leave the flag out")


def _of_long_context(length: int, model: ModelConfig) -> str:
    """What is wrong with more tokens than a model is made for, and how to have them."""
    limit = model.max_position_embeddings
    exceeds = f"--context-length {length} exceeds the model's max_position_embeddings ({limit})"
    if model.learned_positions is not None:
        return f"{exceeds}; its table of positions has no more rows: give at most {limit}"
    dynamic = next((rope for rope in model.ropes if rope.kind == "dynamic"), None)
    if dynamic is None:
        advice = "the model was not trained on longer inputs. To force it"
        override: dict[str, Any] = {"max_position_embeddings": length}
    else:  # a larger max_position_embeddings would have scaling begin later, or never
        advice = (
            "beyond it, rope_scaling of type dynamic has other frequencies for each length, while keys in the cache "
            "keep theirs: that is not supported. For YaRN in its place"
        )
        override = {"rope_scaling": dynamic.as_yarn(length, limit)}
    return f"{exceeds}; {advice}, pass --json-model-override-args '{json.dumps(override)}'"
