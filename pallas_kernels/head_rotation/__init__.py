"""Rotating queries and keys as one product made them, and laying them out as attention and the cache take them."""

from palladio.pallas_kernels.head_rotation.api import can_rotate_heads, rotate_heads

__all__ = ["can_rotate_heads", "rotate_heads"]
