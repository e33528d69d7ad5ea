"""The parameters of a model by name, before they have values, and the weights that they make up."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from palladio.model.base.module import Context
from palladio.model.base.sharding import ShardingRules
from palladio.model.functional import Model, make_model
from palladio.model.loading.layout.relayout import LogicalAxes
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.narrow import Narrow, lies_narrow
from palladio.model.weights.rest_form import RestForm
from palladio.model.weights.scaled import Scaled, ScaleForm
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.narrow_matmul import NarrowProducts

Keys = tuple[str | int, ...]
SUBLANES, LANES = 32, 128  # of a TPU's tile; of wide numbers, fewer of the former


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """The unit that tensors of a checkpoint fill: a weight with all of its parameters, or a parameter alone.

    Attributes:
        name: dotted path of the weight or the parameter.
        weight: the weight; None: a parameter alone.
        params: abstract parameters by dotted path; a weight's `values` first.
    """

    name: str
    weight: Weight | None
    params: Mapping[str, nnx.Param]

    @property
    def values(self) -> nnx.Param:
        """A weight's `values`, or the parameter."""
        return next(iter(self.params.values()))

    def read(self, matrix: FileMatrix) -> tuple[HostArray, ...]:
        """Make the values of each parameter from a checkpoint's matrix, laid out as in the file."""
        if self.weight is not None:
            return self.weight.read(matrix)
        return (matrix.dense(self.values.dtype),)


def _choose_kinds(model: Model, layout: TensorLayout, kernels: Kernels, mesh: Mesh, *, narrow: bool) -> None:
    """Replace weights that the config keeps in other bits, or that this platform lays out otherwise; constructors make
    only dense ones."""
    kinds, nodes = layout.config.weight_kinds, dict(nnx.iter_graph(model))
    for keys, node in nodes.items():
        kind = kinds.of(_dotted(keys)) if isinstance(node, Dense) else None
        if kind is not None:
            axis = node.values.get_metadata()["logical_axes"][node.inputs]
            groups = None if kind.group is None else layout.groups(axis, kind)
            why = None if kind.activation_bits == 16 else _refusal_of_rounding(node, kind.storage, groups, kernels)
            if why is not None:
                kind = dataclasses.replace(kind, activation_bits=16)
            setattr(nodes[keys[:-1]], str(keys[-1]), Scaled(node, kind, groups, kernels, mesh, why_unrounded=why))
        elif isinstance(node, Dense) and narrow:
            setattr(nodes[keys[:-1]], str(keys[-1]), Narrow(node, NarrowProducts.of(kernels.target)))


def _refusal_of_rounding(node: Dense, storage: str, groups: tuple[int, int] | None, kernels: Kernels) -> str | None:
    """Return why products with 8 bits on both sides are impossible; None: they are possible. Where devices have cut the
    groups, rows would be rounded otherwise than on one device.

    Args:
        groups: inputs that share a scale, and those on one device; None: all inputs share one.
    """
    target = kernels.target
    if node.inputs == 1 and node.values.ndim == 3:
        return "experts have no products of 8 bits on both sides"
    if groups is not None:
        if target.platform == "tpu":
            return "there is no kernel of groups for TPUs"
        if node.inputs != 0:
            return "it is a table with groups"
        return None if groups[0] == groups[1] else "devices cut the groups"
    if target.multiplies(storage):
        return None
    name = "float8" if storage == "float8_e4m3fn" else storage
    return f"{target.platform.upper()} {target.kind} has no unit for products of {name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """A model without values.

    Attributes:
        structure: its modules.
        by_path: each parameter's keys and the parameter, by dotted path.
        slots: by name, in the order of parameters.
    """

    structure: nnx.GraphDef
    by_path: Mapping[str, tuple[Keys, nnx.Param]]
    slots: Mapping[str, Slot]

    @classmethod
    def of(
        cls,
        layout: TensorLayout,
        dtype: DTypeLike,
        mesh: Mesh,
        kernels: Kernels = Kernels(),
        weights_dtype: DTypeLike | None = None,
    ) -> "Parameters":
        """Make the parameters as laid out.

        Args:
            dtype: dtype of activations.
            weights_dtype: dtype of parameters that are not quantized; None: `dtype`.
        """
        # Not by nnx.eval_shape: tracing a model of 126 layers takes half a minute.
        context = Context(dtype, dtype if weights_dtype is None else weights_dtype, None)
        model = make_model(layout.config, context, kernels, mesh)
        narrow = lies_narrow(context.activations, context.weights, kernels.target, mesh)
        _choose_kinds(model, layout, kernels, mesh, narrow=narrow)
        weights = {keys: node for keys, node in nnx.iter_graph(model) if isinstance(node, Weight)}
        structure, state = nnx.split(model)
        found = nnx.to_flat_state(state)
        by_path = {_dotted(keys): (keys, param) for keys, param in found}
        slots = {}
        for keys, _ in found:
            weight = weights.get(keys[:-1])
            name = _dotted(keys if weight is None else keys[:-1])
            if name not in slots:
                paths = (name,) if weight is None else (f"{name}.{part}" for part in weight.part_names)
                slots[name] = Slot(name, weight, {path: by_path[path][1] for path in paths})
        return cls(structure, by_path, slots)


def placement(param: nnx.Param, mesh: Mesh) -> NamedSharding | Format:
    """Return the placement of a parameter on its devices.

    XLA:TPU chooses the array layout whose tiles have the least padding. Where sizes are no multiples of a tile, this
    may be column-major, and each step would copy all of it before rows are looked up or a kernel reads them.
    """
    axes = param.get_metadata()["logical_axes"]
    sharding = ShardingRules().sharding(mesh, axes)
    own = sharding.shard_shape(param.shape)
    is_of_rows = axes[0] in ("vocab", "experts") and len(axes) > 1
    is_whole = own[-1] % LANES == 0 and all(size % SUBLANES == 0 for size in own[1:-1])
    if not is_of_rows or is_whole or not _is_tpu(mesh):
        return sharding
    return Format(Layout(tuple(range(len(axes)))), sharding)


def _is_tpu(mesh: Mesh) -> bool:
    return isinstance(mesh, Mesh) and str(mesh.devices.flat[0].platform) == "tpu"


def known_form(param: nnx.Param) -> tuple[tuple[int, ...], LogicalAxes]:
    """Return shape and logical axes as weight tables and layouts define them, whatever the form at rest."""
    form = rest_form(param)
    return (param.shape, param.get_metadata()["logical_axes"]) if form is None else (form.shape, form.axes)


def known_dtype(param: nnx.Param) -> np.dtype:
    """Return the dtype of a parameter's numbers, whatever their form at rest."""
    form, dtype = rest_form(param), jnp.dtype(param.dtype)
    return dtype if form is None else form.known_dtype(dtype)


def at_rest(array: jax.Array, param: nnx.Param) -> jax.Array:
    """Convert an array of `known_form` to the parameter's form at rest."""
    form = rest_form(param)
    return array if form is None else form.laid(array)


def as_known(array: jax.Array, param: nnx.Param) -> jax.Array:
    """Convert one device's part of a parameter to `known_form`."""
    form = rest_form(param)
    if form is None:
        return array
    order = form.order
    return array.reshape([form.shape[number] for number in order]).transpose([*map(order.index, range(len(order)))])


def rest_form(param: nnx.Param) -> RestForm | None:
    """Return the form at rest of a parameter; None: it is `known_form`."""
    form: RestForm | None = param.get_metadata().get("rest")
    return form


def scale_form(param: nnx.Param) -> ScaleForm | None:
    """Return the form of a weight's scales; None: the parameter holds no scales."""
    form: ScaleForm | None = param.get_metadata().get("scale_form")
    return form


def _dotted(keys: Keys) -> str:
    return ".".join(map(str, keys))
