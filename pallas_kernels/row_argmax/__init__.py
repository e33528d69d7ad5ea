"""The id of the largest value of each row of logits, and whether that value is finite."""

from palladio.pallas_kernels.row_argmax.api import row_argmax

__all__ = ["row_argmax"]
