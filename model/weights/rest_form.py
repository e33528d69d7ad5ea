"""RestForm: how a parameter lies on a device, where that is not how weight tables and layouts know it."""

from typing import Any, Protocol

import jax
import numpy as np


class RestForm(Protocol):
    """A parameter's other form.

    Attributes:
        shape, axes: as everybody else knows them.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def axes(self) -> tuple[str | None, ...]: ...

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions of `shape` in the order in which memory has them."""

    def known_dtype(self, dtype: np.dtype) -> np.dtype:
        """Of the numbers. Args: dtype: of the array at rest."""

    def __hash__(self) -> int: ...

    def laid(self, values: jax.Array) -> jax.Array:
        """An array of `shape` as it lies."""

    def laid_axes(self) -> tuple[str | None, ...]:
        """Of what `laid` gives."""

    def laid_on_host(self, values: np.ndarray[Any, Any], own_shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The part of one device, in memory in `order`, as it lies there. Copies nothing.

        Args:
            own_shape: of the result.
        """
