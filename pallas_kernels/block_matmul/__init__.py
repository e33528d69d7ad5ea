"""Products of float8 and float8 with scales of groups of inputs on both sides: W8A8 of checkpoints in blocks."""

from palladio.pallas_kernels.block_matmul.api import block_matmul, refusal_of_kernels
from palladio.pallas_kernels.block_matmul.rounding import rounded_groups

__all__ = ["block_matmul", "refusal_of_kernels", "rounded_groups"]
