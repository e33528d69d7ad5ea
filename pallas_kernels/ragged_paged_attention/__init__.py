"""Attention of a ragged batch of queries over keys and values in pages."""

from palladio.pallas_kernels.ragged_paged_attention.api import plan_attention, ragged_paged_attention
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import (
    KVPages,
    ScaledPages,
    kv_page_shape,
    padded_head_size,
    scale_page_shape,
    unpack_scales,
)
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata

__all__ = [
    "AttentionMetadata",
    "AttentionShape",
    "KVPages",
    "ScaledPages",
    "kv_page_shape",
    "padded_head_size",
    "plan_attention",
    "ragged_paged_attention",
    "scale_page_shape",
    "unpack_scales",
]
