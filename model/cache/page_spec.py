"""PageSpec: the properties that pages of all kinds of layers share."""

import dataclasses
import math
from typing import ClassVar

import jax
import numpy as np
from jax.sharding import Mesh

from palladio.model.base.sharding import ShardingRules, num_ranks


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageSpec:
    """The pages of a layer. Only subclasses know their layout.

    Attributes:
        page_size: tokens a page (S).
        dtype: dtype of the numbers. On CPU prefer float32: XLA:CPU copies a bfloat16 cache at every write.
    """

    AXES: ClassVar[tuple[str | None, ...]]  # logical axes of the array; the first is that of pages

    page_size: int
    dtype: np.dtype

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one layer's page, on all devices together. Copies on several devices count once."""
        return math.prod(self._shape(1)) * self.dtype.itemsize

    def array(self, num_pages: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
        """Return the shape of one layer's array: num_pages pages of each data-parallel rank, split over the ranks and
        as AXES says."""
        sharding = ShardingRules().sharding(mesh, self.AXES)
        return jax.ShapeDtypeStruct(self._shape(num_ranks(mesh) * num_pages), self.dtype, sharding=sharding)

    def device_pages(self, num_pages: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
        """Return the shape of one device's part, which kernels take."""
        raise NotImplementedError

    def _shape(self, num_pages: int) -> tuple[int, ...]:
        raise NotImplementedError
