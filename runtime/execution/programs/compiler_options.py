"""What XLA is told beside a program: options of its own, where a default of its costs much."""

from collections.abc import Mapping
from types import MappingProxyType

from palladio.pallas_kernels.target import Target

# Vector memory for one operation of XLA's own, in KiB, by the kind of TPU. Its defaults, 16 MiB on v5e and
# v5p and 32 on v6e, make the tiles of products of many rows so small that operands are read again and again: see
# benchmarks/results/NOTES.md. What operations do not use holds arrays between them, so more is not always better.
_OPERATION_KIB: Mapping[str, int] = MappingProxyType({"v5e": 40 * 1024, "v5p": 32 * 1024, "v6e": 64 * 1024})
LEAST_TOKENS = 512  # of a step whose products are limited by the matrix units, not by reading weights


def compiler_options(target: Target, num_tokens: int) -> dict[str, str]:
    """For a program that runs the layers.

    Args:
        num_tokens: of a step of prompts; 0: of a decode step.
    """
    kib = _OPERATION_KIB.get(target.kind) if target.platform == "tpu" and num_tokens >= LEAST_TOKENS else None
    return {} if kib is None else {"xla_tpu_scoped_vmem_limit_kib": str(kib)}
