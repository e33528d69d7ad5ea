"""PageSpec: what is alike in the pages of all kinds of layers."""

import dataclasses
import math
from typing import ClassVar

import jax
import numpy as np
from jax.sharding import Mesh

from palladio.model.base.sharding import ShardingRules, num_ranks


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageSpec:
    """A layer's pages. Nobody but its own kind knows their layout.

    Attributes:
        page_size: tokens a page (S).
        dtype: of the numbers. On CPU prefer float32: XLA:CPU copies a bfloat16 cache at every write.
    """

    AXES: ClassVar[tuple[str | None, ...]]  # logical axes of the array; the first is that of pages

    page_size: int
    dtype: np.dtype

    @property
    def bytes_per_page(self) -> int:
        """Of one layer, on all devices together; what several devices have copies of counts once."""
        return math.prod(self._shape(1)) * self.dtype.itemsize

    def array(self, num_pages: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
        """Of each data-parallel rank so many pages, split over the ranks, and over what else AXES says."""
        sharding = ShardingRules().sharding(mesh, self.AXES)
        return jax.ShapeDtypeStruct(self._shape(num_ranks(mesh) * num_pages), self.dtype, sharding=sharding)

    def device_pages(self, num_pages: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
        """Of one device: what kernels get."""
        raise NotImplementedError

    def _shape(self, num_pages: int) -> tuple[int, ...]:
        raise NotImplementedError
