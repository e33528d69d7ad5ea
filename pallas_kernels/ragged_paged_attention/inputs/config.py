"""The shape that block sizes of the attention kernels depend on."""

import dataclasses

from jax.typing import DTypeLike

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import padded_head_size


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of a layer's attention on one device.

    Attributes:
        num_heads: N.
        num_kv_heads: K.
        head_size: H.
        page_size: S.
        table_width: Pmax.
        num_rows: B.
        dtype: dtype of queries and outputs.
        kv_dtype: dtype of the cache.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    page_size: int
    table_width: int
    num_rows: int
    dtype: DTypeLike
    kv_dtype: DTypeLike

    @property
    def group(self) -> int:
        """Query heads a kv head (G)."""
        return self.num_heads // self.num_kv_heads

    @property
    def row_width(self) -> int:
        """Lanes of a row of the cache (W = 2·Hp)."""
        return 2 * padded_head_size(self.head_size)
