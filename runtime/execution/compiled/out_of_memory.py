"""What to do when a device's memory does not suffice: which flag, and which value."""

from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.messages.engine_stats import MemoryReport
from palladio.runtime.scheduling.batch.buckets import Buckets

_SIGNS = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "Ran out of memory")
_SPARE = 0.05  # share of the device's memory to give back, where it is unknown how much is missing


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is how XLA says that an allocation failed."""
    return any(sign in str(error) for sign in _SIGNS)


def step_advice(memory: MemoryReport, num_tokens: int) -> str:
    """For an allocation that failed in a running engine.

    Args:
        memory: as planned. num_tokens: of the KV pool.
    """
    share = (memory.weights + memory.kv_cache) / max(memory.total, 1) - _SPARE
    tokens = int(num_tokens * max(0.0, 1 - _SPARE * memory.total / max(memory.kv_cache, 1)))
    if share <= 0 or tokens <= 0:
        return "lower --max-running-requests or --chunked-prefill-size to need less workspace"
    return f"restart with --mem-fraction-static {share:.2f} or --max-total-tokens {tokens} to leave more memory free"


def compile_advice(key: ProgramKey, buckets: Buckets, num_ranks: int = 1) -> str:
    """For a program that is too large for the device.

    Args:
        key: which one. buckets: of the engine. num_ranks: data-parallel ranks, each with such buckets.
    """
    if key.num_tokens:
        smaller = max((b.num_tokens for b in buckets.prefill if b.num_tokens < key.num_tokens), default=0)
        flag = f"--chunked-prefill-size {smaller}"
    else:
        smaller = max((size for size in buckets.sample if size < key.num_requests), default=0)
        smaller = max(smaller, key.num_requests // 2)  # --cuda-graph-bs may leave a wide gap
        flag = f"--max-running-requests {smaller * num_ranks}"
    if not smaller:
        return f"out of memory: program {key} does not fit on the device; lower --mem-fraction-static"
    return (
        f"out of memory: program {key} does not fit on the device beside the KV cache; use {flag} or lower "
        "--mem-fraction-static"
    )
