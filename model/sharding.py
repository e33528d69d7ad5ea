"""The device mesh, and which logical axis of a parameter is split over it. One table says all of it."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

TENSOR_AXIS = "tensor"


def make_mesh(tp_size: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of the first `tp_size` devices, along one axis.

    Args:
        devices: to choose from; None: all.

    Raises:
        ValueError: there are fewer devices.
    """
    devices = jax.devices() if devices is None else devices
    if tp_size > len(devices):
        raise ValueError(f"tp_size {tp_size} needs as many devices; {len(devices)} found")
    chosen = devices[:tp_size]
    try:
        ordered = mesh_utils.create_device_mesh((tp_size,), chosen)  # neighbours in the mesh are linked
    except (AssertionError, NotImplementedError):  # three chips of a torus of four, say, have no such order
        ordered = np.array(chosen)
    return Mesh(ordered, (TENSOR_AXIS,), axis_types=(AxisType.Auto,))


def num_shards(mesh: Mesh) -> int:
    """Devices along the tensor axis."""
    return int(mesh.shape[TENSOR_AXIS])


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """Mesh axis of each logical axis; None: every device has all of it.

    Attributes:
        vocab: rows of the token tables (V).
        kv_heads: kv heads with their query heads (K), and the cache's.
        heads: query heads times head size, where the output projection takes them in (N·H).
        ffw: inner size of the MLP (F).
    """

    vocab: str | None = TENSOR_AXIS
    kv_heads: str | None = TENSOR_AXIS
    heads: str | None = TENSOR_AXIS
    ffw: str | None = TENSOR_AXIS

    def sharding(self, mesh: Mesh, logical_axes: tuple[str | None, ...]) -> NamedSharding:
        """The sharding of an array whose dimensions have these logical axes (None: never split)."""
        table: dict[str, str | None] = dataclasses.asdict(self)
        spec = PartitionSpec(*(axis and table[axis] for axis in logical_axes))
        return NamedSharding(mesh, spec)
