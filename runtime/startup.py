"""Start-up of an engine: from a config to a loaded, planned and compiled set of parts."""

import dataclasses
import json
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tokenizers
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.config import ModelConfig, read_model_dir
from palladio.model.decoder import CausalLM
from palladio.model.kv_cache import KVCacheSpec
from palladio.model.sharding import make_mesh
from palladio.model.weights import load_model
from palladio.runtime.buckets import Buckets
from palladio.runtime.cache_manager import CacheManager
from palladio.runtime.compilation import CompileMonitor, use_persistent_cache
from palladio.runtime.config import EngineConfig
from palladio.runtime.errors import ConfigError
from palladio.runtime.memory import DeviceMemory, PoolRequest, default_fraction, plan_pages
from palladio.runtime.messages import EngineReady, LoadProgress
from palladio.runtime.model_runner import DeviceShape, ModelRunner
from palladio.runtime.scheduler import Scheduler, SchedulerLimits
from palladio.runtime.waiting_queue import WaitingQueue

logger = logging.getLogger("palladio.engine")

_DTYPES = {
    "half": jnp.float16,
    "float16": jnp.float16,
    "bfloat16": jnp.bfloat16,
    "float": jnp.float32,
    "float32": jnp.float32,
}


@dataclasses.dataclass(frozen=True, slots=True)
class PlatformDefaults:
    """What flags that are not given mean on a platform.

    Attributes:
        dtype: XLA:CPU multiplies bfloat16 4 to 30 times slower than float32.
        max_running: more requests than this gain little: a CPU is compute-bound early.
        chunk: prompt tokens of a step: enough to fill the matrix units, short enough to keep running streams moving.
        bucket_growth: ratio of neighbouring prefill sizes: compiling is what costs on a CPU.
        mixes: prefill steps decode as well.
        pool_per_request: tokens of pool for each running request, beside one whole context; None: a whole context
            each. A CPU's memory is the host's, so only take what is likely to be used.
    """

    dtype: str
    max_running: int
    chunk: int
    bucket_growth: int
    mixes: bool
    pool_per_request: int | None


_CPU = PlatformDefaults(
    dtype="float32", max_running=64, chunk=1024, bucket_growth=4, mixes=False, pool_per_request=1024
)
_ACCELERATOR = PlatformDefaults(
    dtype="bfloat16", max_running=256, chunk=8192, bucket_growth=2, mixes=True, pool_per_request=None
)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineParts:
    ready: EngineReady
    scheduler: Scheduler
    runner: ModelRunner
    monitor: CompileMonitor


@dataclasses.dataclass(frozen=True, slots=True)
class Dtypes:
    model: DTypeLike
    kv_cache: DTypeLike


@dataclasses.dataclass(frozen=True, slots=True)
class EngineLimits:
    """The sizes that flags, model and platform settle on."""

    context_length: int
    max_running: int
    chunk: int
    max_step_tokens: int
    mixes: bool
    useful_pool_tokens: int


def build_engine_parts(config: EngineConfig, on_progress: Callable[[LoadProgress], None]) -> EngineParts:
    """Loads the model, allocates the KV cache and compiles the step programs, with the log lines operators know.

    Raises:
        ConfigError: a flag, the model's config or its checkpoint (CheckpointError) is wrong.
    """
    device = _choose_device(config.execution.device)
    defaults = _CPU if device.platform == "cpu" else _ACCELERATOR
    use_persistent_cache(config.execution.cache_path())
    monitor = CompileMonitor()
    path = Path(config.source.model_path)  # a local directory: whoever creates the core has resolved it
    model_config = ModelConfig.from_hf(*read_model_dir(path, _overrides(config.source.json_model_override_args)))
    limits = _limits(config, model_config, defaults)
    dtypes = _dtypes(config, defaults, device.platform)
    mesh = make_mesh(config.execution.tp_size)
    seed = config.execution.random_seed
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed

    model = _load(config, path, model_config, dtypes.model, mesh, seed, on_progress)
    spec = KVCacheSpec.of(model_config, page_size=config.cache.page_size, dtype=dtypes.kv_cache)
    num_pages = _plan(config, model, spec, limits, device)
    kv_cache = spec.allocate(num_pages, mesh)
    _log_pool(spec, num_pages)

    buckets = _buckets(config, limits, defaults)
    shape = DeviceShape(
        num_slots=limits.max_running + 1,
        pages_per_request=-(-limits.context_length // spec.page_size),
        page_size=spec.page_size,
        vocab_size=model_config.vocab_size,
        num_valid_tokens=_num_valid_tokens(config, path, model_config.vocab_size),
        num_decode_steps=config.scheduler.num_continuous_decode_steps,
        checks_cache=config.cache.cache_self_check > 0,
        dtype=dtypes.model,
    )
    runner = ModelRunner(model, kv_cache, shape, buckets)
    report = runner.warm_up(monitor, lambda done, total: on_progress(LoadProgress("compile", done, total)))
    logger.info(
        "Compiled %d programs in %.1f s (%d from the cache)", report.num_programs, report.seconds, report.cache_hits
    )
    scheduler = _scheduler(config, limits, buckets, num_pages, seed)
    num_tokens = (num_pages - 1) * spec.page_size
    _log_limits(config, limits, num_tokens)
    ready = EngineReady(
        context_length=limits.context_length,
        max_total_tokens=num_tokens,
        max_running_requests=limits.max_running,
        chunked_prefill_size=limits.chunk,
        page_size=spec.page_size,
        model_type=model_config.model_type,
        architecture=model_config.architecture,
        vocab_size=shape.num_valid_tokens,
        eos_token_ids=list(model_config.eos_token_ids),
        device=f"{device.platform}: {device.device_kind}",
        dtype=jnp.dtype(dtypes.model).name,
        num_programs=report.num_programs,
        compile_seconds=report.seconds,
        cache_hits=report.cache_hits,
        random_seed=seed,
    )
    return EngineParts(ready, scheduler, runner, monitor)


def _buckets(config: EngineConfig, limits: EngineLimits, defaults: PlatformDefaults) -> Buckets:
    if config.execution.deterministic:
        return Buckets.create_one(max_running=limits.max_running, max_step_tokens=limits.max_step_tokens)
    return Buckets.create(
        max_running=limits.max_running, max_step_tokens=limits.max_step_tokens, growth=defaults.bucket_growth
    )


def _scheduler(config: EngineConfig, limits: EngineLimits, buckets: Buckets, num_pages: int, seed: int) -> Scheduler:
    options, page_size = config.scheduler, config.cache.page_size
    cache = CacheManager(
        num_pages,
        page_size,
        shares_prefixes=not config.cache.disable_radix_cache,
        eviction_policy=config.cache.radix_eviction_policy,
    )
    by_priority = options.schedule_policy == "priority"
    waiting = WaitingQueue(
        options.schedule_policy,
        cache.tree,
        page_size,
        low_values_first=options.schedule_low_priority_values_first,
        seed=seed,
    )
    scheduler_limits = SchedulerLimits(
        max_running=limits.max_running,
        max_queued=options.max_queued_requests,
        max_step_tokens=limits.max_step_tokens,
        splits_prompts=limits.chunk != -1,
        mixes=limits.mixes,
        num_decode_steps=options.num_continuous_decode_steps,
        preemption_threshold=options.priority_scheduling_preemption_threshold if by_priority else None,
        low_values_first=options.schedule_low_priority_values_first,
        conservativeness=options.schedule_conservativeness,
    )
    return Scheduler(scheduler_limits, buckets, cache, waiting)


def _choose_device(name: str) -> jax.Device:
    """The first device of the platform that --device asks for; auto: of the one that jax finds first."""
    if name == "auto":
        return jax.devices()[0]
    platform = "cuda" if name == "gpu" else name
    jax.config.update("jax_platforms", platform)  # heard only before jax first looks for devices
    try:
        device = jax.devices()[0]
    except RuntimeError as error:
        raise ConfigError(
            f"--device {name}: jax finds no such device; install palladio[tpu] or palladio[cuda13] on a host that has "
            f"one, or pass --device auto. jax says: {error}"
        ) from error
    if device.platform != ("gpu" if platform == "cuda" else platform):
        raise ConfigError(f"--device {name}: this process already runs jax on {device.platform}")
    return device


def _dtypes(config: EngineConfig, defaults: PlatformDefaults, platform: str) -> Dtypes:
    model = config.source.dtype
    kv_cache = config.cache.kv_cache_dtype
    model_dtype = _DTYPES[defaults.dtype if model == "auto" else model]
    if kv_cache != "auto":
        return Dtypes(model_dtype, _DTYPES[kv_cache])
    # XLA:CPU has no bfloat16 scatter: it would convert the whole cache to float32 and back at every write.
    return Dtypes(model_dtype, jnp.float32 if platform == "cpu" and model_dtype == jnp.bfloat16 else model_dtype)


def _log_pool(spec: KVCacheSpec, num_pages: int) -> None:
    half = num_pages * spec.bytes_per_page / 2 / 2**30
    num_tokens = (num_pages - 1) * spec.page_size
    logger.info("KV Cache is allocated. #tokens: %d, K size: %.2f GB, V size: %.2f GB", num_tokens, half, half)
    logger.info("Memory pool end. avail mem=%.2f GB", _available_gb())


def _log_limits(config: EngineConfig, limits: EngineLimits, num_tokens: int) -> None:
    logger.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, max_running_requests=%d, "
        "context_len=%d, available_gpu_mem=%.2f GB",
        num_tokens,
        limits.chunk,
        config.scheduler.max_prefill_tokens,
        limits.max_running,
        limits.context_length,
        _available_gb(),
    )


def _limits(config: EngineConfig, model: ModelConfig, defaults: PlatformDefaults) -> EngineLimits:
    context_length = config.source.context_length or model.max_position_embeddings
    if context_length > model.max_position_embeddings:
        raise ConfigError(
            f"--context-length {context_length} is over the model's max_position_embeddings "
            f"({model.max_position_embeddings}); its positions beyond that were never trained. To force it, pass "
            f"--json-model-override-args '{{\"max_position_embeddings\": {context_length}}}'"
        )
    scheduler = config.scheduler
    chunk = defaults.chunk if scheduler.chunked_prefill_size is None else scheduler.chunked_prefill_size
    max_running = scheduler.max_running_requests or defaults.max_running
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
    return EngineLimits(
        context_length,
        max_running,
        chunk,
        max_step_tokens=min(max_step_tokens, max_running * context_length),
        mixes=chunk != -1 and (scheduler.enable_mixed_chunk or (defaults.mixes and not scheduler.disable_mixed_chunk)),
        useful_pool_tokens=useful,
    )


def _load(
    config: EngineConfig,
    path: Path,
    model_config: ModelConfig,
    dtype: DTypeLike,
    mesh: Mesh,
    seed: int,
    on_progress: Callable[[LoadProgress], None],
) -> CausalLM:
    before, start = _available_gb(), time.perf_counter()
    logger.info("Load weight begin. avail mem=%.2f GB", before)
    model = load_model(
        path,
        model_config,
        dtype=dtype,
        mesh=mesh,
        load_format=config.source.load_format,
        attention_backend=config.execution.attention_backend,
        seed=seed,
        progress=lambda done, total: on_progress(LoadProgress("load", done, total)),
    )
    after = _available_gb()
    logger.info(
        "Load weight end. type=%s, dtype=%s, avail mem=%.2f GB, mem usage=%.2f GB, %.1f s.",
        model_config.architecture,
        jnp.dtype(dtype).name,
        after,
        before - after,
        time.perf_counter() - start,
    )
    return model


def _plan(config: EngineConfig, model: CausalLM, spec: KVCacheSpec, limits: EngineLimits, device: jax.Device) -> int:
    fraction = config.cache.mem_fraction_static
    return plan_pages(
        DeviceMemory.of(device),
        PoolRequest(
            bytes_per_page=spec.bytes_per_page,
            page_size=spec.page_size,
            wanted_tokens=config.cache.max_total_tokens,
            useful_tokens=limits.useful_pool_tokens,
            weight_bytes=sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model))),
            fraction=default_fraction(device.platform) if fraction is None else fraction,
        ),
    )


def _num_valid_tokens(config: EngineConfig, path: Path, vocab_size: int) -> int:
    """Ids that the tokenizer knows; the checkpoint's vocabulary may be padded beyond them."""
    file = Path(config.source.tokenizer_path or path) / "tokenizer.json"
    if config.source.skip_tokenizer_init or not file.is_file():
        return vocab_size
    try:
        known_ids = tokenizers.Tokenizer.from_file(str(file)).get_vocab().values()
    except Exception as error:
        raise ConfigError(f"{file} is not a tokenizer: {error}") from error
    return min(vocab_size, max(known_ids, default=vocab_size - 1) + 1)


def _overrides(text: str) -> dict[str, Any]:
    try:
        overrides = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--json-model-override-args is not valid JSON: {error}") from error
    if not isinstance(overrides, dict):
        raise ConfigError("--json-model-override-args must be a JSON object")
    return overrides


def _available_gb() -> float:
    return DeviceMemory.of(jax.devices()[0]).available / 2**30
