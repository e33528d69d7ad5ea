"""Products of float32 rows with bfloat16 matrices, outputs first, on a CPU."""

from palladio.pallas_kernels.narrow_matmul.api import narrow_grouped_matmul, narrow_matmul
from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts

__all__ = ["NarrowProducts", "narrow_grouped_matmul", "narrow_matmul"]
