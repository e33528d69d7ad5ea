"""RestForm: the form at rest of a parameter, where it differs from the known form of weight tables and layouts."""

from typing import Any, Protocol

import jax
import numpy as np


class RestForm(Protocol):
    """The form of a parameter on a device.

    Attributes:
        shape, axes: those of the known form.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def axes(self) -> tuple[str | None, ...]: ...

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions of `shape` in memory order."""

    def known_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of the numbers.

        Args:
            dtype: dtype of the array at rest.
        """

    def __hash__(self) -> int: ...

    def laid(self, values: jax.Array) -> jax.Array:
        """Convert an array of `shape` to the form at rest."""

    def laid_axes(self) -> tuple[str | None, ...]:
        """Return the logical axes at rest."""

    def laid_on_host(self, values: np.ndarray[Any, Any], own_shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return one device's part at rest, without a copy.

        Args:
            values: the part in the known form, in memory in `order`.
            own_shape: shape of the result.
        """
