"""Attention of packed segments, each of which sees itself alone, in both directions."""

from palladio.pallas_kernels.segment_attention.api import segment_attention
from palladio.pallas_kernels.segment_attention.segments import Segments

__all__ = ["Segments", "segment_attention"]
