"""Products of float32 rows with matrices of bfloat16 or int8, stored outputs first, on a CPU."""

from palladio.pallas_kernels.narrow_matmul.api import (
    byte_matmul,
    has_byte_products,
    narrow_grouped_matmul,
    narrow_matmul,
)
from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts

__all__ = ["NarrowProducts", "byte_matmul", "has_byte_products", "narrow_grouped_matmul", "narrow_matmul"]
