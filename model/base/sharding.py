"""The device mesh, and one table that says which logical axes of parameters are split over it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

DATA_AXIS = "data"  # data-parallel ranks: groups of devices that share each layer, each with its own requests
RANK_AXIS = "rank"  # the same with experts in common: each rank has some of them, and computes the other ranks' rows
EXPERT_AXIS = "expert"  # within a group, parts that have experts of their own
TENSOR_AXIS = "tensor"  # devices of such a part: they share its experts
GROUP_AXES = (EXPERT_AXIS, TENSOR_AXIS)  # all devices of a group: they share everything but the experts

RANK_AXES = (DATA_AXIS, RANK_AXIS)  # of which one at least is of one rank
_NAMES = (*RANK_AXES, *GROUP_AXES)
_TYPES = (AxisType.Auto,) * len(_NAMES)

MeshAxes = str | tuple[str, ...] | None


def make_mesh(
    tp_size: int,
    devices: Sequence[jax.Device] | None = None,
    dp_size: int = 1,
    ep_size: int = 1,
    *,
    shares_experts: bool = False,
) -> Mesh:
    """Make a mesh of the first `dp_size` × `tp_size` devices, in `ep_size` parts along the expert axis.

    Args:
        devices: the devices to choose from; None: all.
        ep_size: a divisor of `tp_size`.
        shares_experts: each of the `dp_size` ranks has some of the experts, not all.

    Raises:
        ValueError: there are fewer devices.
    """
    devices = jax.devices() if devices is None else devices
    shape = (dp_size, tp_size)
    if dp_size * tp_size > len(devices):
        sizes = f"tp_size {tp_size}" if dp_size == 1 else f"dp_size {dp_size} × tp_size {tp_size}"
        raise ValueError(f"{sizes} needs that many devices; {len(devices)} found")
    chosen = devices[: dp_size * tp_size]
    try:
        ordered = mesh_utils.create_device_mesh(shape, chosen)  # neighbours in the mesh are linked
    except (AssertionError, NotImplementedError):  # three chips of a torus of four, say, have no such order
        ordered = np.array(chosen).reshape(shape)
    # Sums run over all devices of a group, so their order is that of a group without parts.
    return Mesh(ordered.reshape(_shape(tp_size, dp_size, ep_size, shares_experts)), _NAMES, axis_types=_TYPES)


def make_abstract_mesh(tp_size: int, dp_size: int = 1, ep_size: int = 1, *, shares_experts: bool = False) -> Any:
    """Make the mesh of `make_mesh` without devices. Typed Any because shardings take it in place of a Mesh."""
    return AbstractMesh(_shape(tp_size, dp_size, ep_size, shares_experts), _NAMES, axis_types=_TYPES)


def _shape(tp_size: int, dp_size: int, ep_size: int, shares_experts: bool) -> tuple[int, ...]:
    ranks = (1, dp_size) if shares_experts else (dp_size, 1)
    return (*ranks, ep_size, tp_size // ep_size)


def num_shards(mesh: Mesh) -> int:
    """Return the number of devices in a group."""
    return math.prod(int(mesh.shape[axis]) for axis in GROUP_AXES)


def num_expert_parts(mesh: Mesh) -> int:
    """Return the number of parts of a group that have experts of their own."""
    return int(mesh.shape[EXPERT_AXIS])


def num_ranks(mesh: Mesh) -> int:
    """Return the number of data-parallel ranks."""
    return math.prod(int(mesh.shape[axis]) for axis in RANK_AXES)


def num_sharing(mesh: Mesh) -> int:
    """Return the number of ranks that share one set of experts; 1: each rank has all experts."""
    return int(mesh.shape[RANK_AXIS])


def only_axes(spec: PartitionSpec, axes: Collection[str]) -> PartitionSpec:
    """Keep only these mesh axes of a partition spec."""
    kept = (tuple(one for one in (each if isinstance(each, tuple) else (each,)) if one in axes) for each in spec)
    return PartitionSpec(*(names or None for names in kept))


def on_each_device(function: Callable[..., Any], mesh: Mesh, *, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Make every device of a group compute a function with its own part of the arguments: the compiler cannot see into
    kernels to split them. A group of one device gets the function unchanged."""
    if num_shards(mesh) == 1:
        return function
    has_ranks = num_ranks(mesh) > 1  # then all of it runs in a shard_map over them, whose mesh is the one to use
    if has_ranks:
        of_group = functools.partial(only_axes, axes=GROUP_AXES)
        in_specs, out_specs = jax.tree.map(
            of_group, (in_specs, out_specs), is_leaf=lambda spec: isinstance(spec, PartitionSpec)
        )
    return jax.shard_map(
        function,
        mesh=None if has_ranks else mesh,
        axis_names=set(GROUP_AXES) if has_ranks else set(),
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,  # a Pallas call does not say over which axes its result varies
    )


@dataclasses.dataclass(frozen=True)
class ShardingRules:
    """Mesh axes of each logical axis; None: every device has the whole dimension.

    Attributes:
        vocab: rows of the token tables (V).
        kv_heads: kv heads with their query heads (K), in parameters and in the cache.
        heads: query heads times head size, as inputs of the output projection (N·H).
        query_heads: query heads (N).
        latent_heads: heads of latent attention (N).
        latent_values: heads of latent attention times value size, as inputs of the output projection.
        state_heads: key heads of layers with states, each with its value heads (K).
        state_group: value heads of a key head (R).
        state_values: value heads times value size, as inputs of the output projection (K·R·dv).
        keys: kv heads times head size, in parameters that only keys have (K·H).
        ffw: inner size of the MLP (F).
        experts: experts of a mixture (E).
        expert_ffw: inner size of each expert (F).
        shared_ffw: inner size of the expert that every token goes to.
        ranks: data of the data-parallel ranks, one after the other.
    """

    vocab: MeshAxes = GROUP_AXES
    kv_heads: MeshAxes = GROUP_AXES
    heads: MeshAxes = GROUP_AXES
    query_heads: MeshAxes = GROUP_AXES
    latent_heads: MeshAxes = GROUP_AXES
    latent_values: MeshAxes = GROUP_AXES
    state_heads: MeshAxes = GROUP_AXES
    state_group: MeshAxes = None
    state_values: MeshAxes = GROUP_AXES
    keys: MeshAxes = GROUP_AXES
    ffw: MeshAxes = GROUP_AXES
    experts: MeshAxes = (RANK_AXIS, EXPERT_AXIS)
    expert_ffw: MeshAxes = TENSOR_AXIS
    shared_ffw: MeshAxes = GROUP_AXES
    ranks: MeshAxes = RANK_AXES

    def spec(self, logical_axes: tuple[str | None, ...]) -> PartitionSpec:
        """Return the partition spec of an array with these logical axes (None: never split)."""
        table: dict[str, MeshAxes] = dataclasses.asdict(self)
        return PartitionSpec(*(axis and table[axis] for axis in logical_axes))

    def sharding(self, mesh: Mesh, logical_axes: tuple[str | None, ...]) -> NamedSharding:
        """Return the sharding of an array with these logical axes."""
        return NamedSharding(mesh, self.spec(logical_axes))

    def num_parts(self, mesh: Mesh, logical_axis: str | None) -> int:
        """Return the number of parts into which a dimension of this logical axis is split."""
        (axes,) = self.spec((logical_axis,))
        names = axes if isinstance(axes, tuple) else (axes,) * (axes is not None)
        return math.prod(int(mesh.shape[name]) for name in names)
