"""The device mesh, and which logical axis of a parameter is split over it. One table says all of it."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

TENSOR_AXIS = "tensor"  # devices that share each layer
DATA_AXIS = "data"  # groups of such devices, each with requests of its own


def make_mesh(tp_size: int, devices: Sequence[jax.Device] | None = None, dp_size: int = 1) -> Mesh:
    """A mesh of the first `dp_size` × `tp_size` devices, along the data and the tensor axis.

    Args:
        devices: to choose from; None: all.

    Raises:
        ValueError: there are fewer devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = (dp_size, tp_size)
    if dp_size * tp_size > len(devices):
        sizes = f"tp_size {tp_size}" if dp_size == 1 else f"dp_size {dp_size} × tp_size {tp_size}"
        raise ValueError(f"{sizes} needs as many devices; {len(devices)} found")
    chosen = devices[: dp_size * tp_size]
    try:
        ordered = mesh_utils.create_device_mesh(shape, chosen)  # neighbours in the mesh are linked
    except (AssertionError, NotImplementedError):  # three chips of a torus of four, say, have no such order
        ordered = np.array(chosen).reshape(shape)
    return Mesh(ordered, (DATA_AXIS, TENSOR_AXIS), axis_types=(AxisType.Auto, AxisType.Auto))


def num_shards(mesh: Mesh) -> int:
    """Devices along the tensor axis."""
    return int(mesh.shape[TENSOR_AXIS])


def num_groups(mesh: Mesh) -> int:
    """Devices along the data axis."""
    return int(mesh.shape[DATA_AXIS])


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """Mesh axis of each logical axis; None: every device has all of it.

    Attributes:
        vocab: rows of the token tables (V).
        kv_heads: kv heads with their query heads (K), and the cache's.
        heads: query heads times head size, where the output projection takes them in (N·H).
        ffw: inner size of the MLP (F).
        groups: what each group of devices has of its own, one group's after the other's.
    """

    vocab: str | None = TENSOR_AXIS
    kv_heads: str | None = TENSOR_AXIS
    heads: str | None = TENSOR_AXIS
    ffw: str | None = TENSOR_AXIS
    groups: str | None = DATA_AXIS

    def sharding(self, mesh: Mesh, logical_axes: tuple[str | None, ...]) -> NamedSharding:
        """The sharding of an array whose dimensions have these logical axes (None: never split)."""
        table: dict[str, str | None] = dataclasses.asdict(self)
        spec = PartitionSpec(*(axis and table[axis] for axis in logical_axes))
        return NamedSharding(mesh, spec)
