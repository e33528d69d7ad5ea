"""What flags, model and platform come to, before anything is loaded: limits, dtypes, buckets."""

import dataclasses
import json
from typing import Any, Literal, Self

import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.model.config.config import ModelConfig
from palladio.model.layers.divided_tokens import LEAST_PART, RING
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.target import Target
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.scheduling.batch.buckets import Buckets

MAX_SHORT_PASS_BYTES = 2**24  # 0.5 ms at 32 GB/s, which two cores read even of what is not in their caches
MAX_JOINED_BYTES = 4 * MAX_SHORT_PASS_BYTES  # of all passes of a step
LEAST_CHUNK = 64  # tokens of a rank, by default
CompileMode = Literal["full", "background", "lazy"]

_DTYPES = {
    "half": jnp.float16,
    "float16": jnp.float16,
    "bfloat16": jnp.bfloat16,
    "bf16": jnp.bfloat16,
    "float": jnp.float32,
    "float32": jnp.float32,
    "fp8": jnp.float8_e4m3fn,
    "fp8_e4m3": jnp.float8_e4m3fn,
    "fp8_e5m2": jnp.float8_e5m2,
    "int8": jnp.int8,
}


@dataclasses.dataclass(frozen=True, slots=True)
class PlatformDefaults:
    """What flags that are not given mean on a platform.

    Attributes:
        dtype: of activations, and of weights where neither the checkpoint nor the kind of CPU suggests another.
        max_running: more requests than this gain little: a CPU is compute-bound early.
        chunk: prompt tokens of a step: enough to fill the matrix units, short enough to keep running streams moving. On
            a TPU larger ones take more time a token: see benchmarks/results/NOTES.md.
        device_chunk: so many for each device at least, up to largest_chunk: see RING of model/layers/divided_tokens.py.
        largest_chunk: of a model with experts, each of which gets only some of the tokens.
        bucket_growth: ratio of neighbouring prefill sizes: compiling is what costs on a CPU.
        fine_hidden_size: models of this hidden size or more have finer sizes: a CPU is compute-bound early, so padding
            costs what it adds. None: padding costs little.
        min_decode: rows of the smallest decode step. XLA computes products of one row as multiply and reduce: a GPU
            some of them in two kernels with weight × x in memory between them, and rounded to the weights' dtype; a TPU
            outside of its matrix units, by XLA's estimate eight times slower than memory.
        has_plain_tier: steps without top_k, top_p and min_p are sampled by programs of their own. A CPU skips
            the search for thresholds by a loop of no turns. A TPU does, but writes what the loop would read; a GPU
            would wait for its host there: it always searches.
        joined_rows: decode steps of so many rows or fewer sample in the program that computes them, unless rows need a
            mask, a penalty or log-probabilities; each size has two programs more. A CPU starts programs on the cores
            that compute; an accelerator computes while the next one is started.
        joined_passes: forward passes of one of those programs, at most, if the model's weights are few; see
            `joined_passes`.
        mixes: prefill steps decode as well.
        pool_per_request: tokens of pool for each running request, beside one whole context; None: a whole context
            each. A CPU's memory is the host's, so only take what is likely to be used.
        least_page_bytes: of a page of one layer on one device. A TPU's kernel starts a copy for each page, which takes
            as long as 5 KiB of copying on v6e and 9 KiB on 7x, and every block of keys as long as a few more.
        compile: see ExecutionConfig. Who tries a model on a CPU waits for the first answer; who starts a server with
            an accelerator measures it once it is ready.
    """

    dtype: str
    max_running: int
    chunk: int
    device_chunk: int
    largest_chunk: int
    bucket_growth: int
    fine_hidden_size: int | None
    min_decode: int
    has_plain_tier: bool
    joined_rows: int
    joined_passes: int
    mixes: bool
    pool_per_request: int | None
    least_page_bytes: int
    compile: CompileMode

    @classmethod
    def of(cls, platform: str, kind: str = "") -> Self:
        """Args: platform, kind: as in a Target."""
        if platform == "cpu":
            return cls(
                dtype="float32",
                max_running=64,
                chunk=1024,
                device_chunk=0,
                largest_chunk=1024,
                bucket_growth=4,
                fine_hidden_size=512,
                min_decode=1,
                has_plain_tier=False,
                joined_rows=4,
                joined_passes=8,
                mixes=False,
                pool_per_request=1024,
                least_page_bytes=0,
                compile="background",
            )
        return cls(
            dtype="bfloat16",
            max_running=256,
            chunk=2048 if platform == "tpu" else 8192,
            device_chunk=LEAST_PART if kind in RING else 0,
            largest_chunk=8192,
            bucket_growth=2,
            fine_hidden_size=None,
            min_decode=2,
            has_plain_tier=True,
            joined_rows=0,
            joined_passes=1,
            mixes=True,
            pool_per_request=None,
            least_page_bytes=32 * 1024 if platform == "tpu" else 0,
            compile="full",
        )

    def chunk_of(self, model: ModelConfig, num_devices: int) -> int:
        """Args: num_devices: that share each layer."""
        if model.num_sparse_layers:
            return self.largest_chunk
        return min(max(self.chunk, self.device_chunk * num_devices), self.largest_chunk)


def joined_passes(config: EngineConfig, defaults: PlatformDefaults, weight_bytes: int) -> int:
    """Forward passes of a decode step of few requests, at most. Several pay, and delay nobody for long, where a pass
    is shorter than what the host does for a step. The size of the weights tells, not a measurement: what is compiled
    depends on nothing but flags, model and platform.

    Args:
        weight_bytes: of a device: about what a pass of few tokens reads.
    """
    is_other = config.source.is_embedding or config.execution.deterministic or config.speculative.num_drafts > 0
    is_other |= config.scheduler.num_continuous_decode_steps is not None or config.parallel.dp_size > 1
    if is_other or weight_bytes > MAX_SHORT_PASS_BYTES:
        return 1
    return min(defaults.joined_passes, MAX_JOINED_BYTES // max(weight_bytes, 1))


def compile_mode(config: EngineConfig, defaults: PlatformDefaults) -> CompileMode:
    """When programs are compiled. Several hosts start together, with all of them."""
    if config.execution.compile != "auto":
        return config.execution.compile
    return "full" if config.parallel.num_hosts > 1 else defaults.compile


@dataclasses.dataclass(frozen=True, slots=True)
class Dtypes:
    """Attributes:
    weights: of parameters that are not quantized.
    activations: of hidden states.
    kv_cache: of keys and values.
    """

    weights: DTypeLike
    activations: DTypeLike
    kv_cache: DTypeLike

    @classmethod
    def of(cls, config: EngineConfig, target: Target, model: ModelConfig) -> Self:
        """Weights of a converted checkpoint stay as they were converted, unless a flag asks for something else.

        Raises:
            ConfigError: the model's activations, or what it caches, do not fit the dtype that a flag asks for.
        """
        dtype, kv_cache = config.source.dtype, config.cache.kv_cache_dtype
        wanted = PlatformDefaults.of(target.platform).dtype if dtype == "auto" else dtype
        # XLA:CPU has no bfloat16 scatter (it would convert the whole cache at every write), nor fast bfloat16 results.
        is_one_cpu = target.platform == "cpu" and config.parallel.tp_size * config.parallel.dp_size == 1
        activations = jnp.float32 if is_one_cpu and wanted == "bfloat16" else _DTYPES[wanted]  # see lies_narrow
        weights = _DTYPES[wanted]
        if dtype == "auto" and model.converted_dtype is not None:
            weights = _DTYPES[model.converted_dtype]
        elif dtype == "auto" and is_one_cpu and _gains_from_bfloat16(target, model):
            weights = jnp.bfloat16
        if activations == jnp.float16 and model.overflows_float16:
            raise ConfigError(
                f"--dtype {dtype}: activations of {model.architecture} exceed the range of float16; use "
                "--dtype bfloat16 or float32"
            )
        if model.latent is not None and kv_cache != "auto" and jnp.dtype(_DTYPES[kv_cache]).itemsize == 1:
            raise ConfigError(
                f"--kv-cache-dtype {kv_cache}: {model.architecture} keeps latents, which are not kept in 8 bits; use "
                "--kv-cache-dtype auto"
            )
        if kv_cache != "auto":
            return cls(weights, activations, _DTYPES[kv_cache])
        widens = target.platform == "cpu" and activations == jnp.bfloat16
        return cls(weights, activations, jnp.float32 if widens else activations)


def _gains_from_bfloat16(target: Target, model: ModelConfig) -> bool:
    """The checkpoint has bfloat16, so nothing is rounded by keeping it, and this kind of CPU multiplies it faster."""
    has_bfloat16 = (model.stored_dtype or model.dtype) == "bfloat16"
    smallest = NarrowProducts.of(target).min_hidden_size
    return has_bfloat16 and smallest is not None and model.hidden_size >= smallest


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
        max_running = (scheduler.max_running_requests or defaults.max_running * num_ranks) // num_ranks
        if config.execution.deterministic and chunk != -1:
            # Every step has this one size, decode steps too: no larger than it must be.
            chunk = max(max_running, scheduler.chunked_prefill_size or 0)
        if chunk == -1:  # a prompt is never split, so a step must hold the longest one
            max_step_tokens = max(scheduler.max_prefill_tokens, context_length)
        else:
            max_step_tokens = min(chunk, scheduler.max_prefill_tokens)
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
            is_fine=defaults.fine_hidden_size is not None and model.hidden_size >= defaults.fine_hidden_size,
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


def _of_long_context(length: int, model: ModelConfig) -> str:
    """What is wrong with more tokens than a model is made for, and how to have them."""
    limit = model.max_position_embeddings
    exceeds = f"--context-length {length} exceeds the model's max_position_embeddings ({limit})"
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
