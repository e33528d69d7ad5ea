"""Rotation of queries and keys from one product, and their layout for attention and the cache."""

from palladio.pallas_kernels.head_rotation.api import can_rotate_heads, rotate_heads

__all__ = ["can_rotate_heads", "rotate_heads"]
