"""Products of consecutive groups of rows with a matrix each: the experts of a mixture."""

from palladio.pallas_kernels.grouped_matmul.api import grouped_matmul, refusal_of_kernels
from palladio.pallas_kernels.grouped_matmul.scales import Scales

__all__ = ["Scales", "grouped_matmul", "refusal_of_kernels"]
