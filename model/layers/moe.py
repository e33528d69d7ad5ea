"""The mixture of experts: a router sends each token to a few of many small MLPs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.base.sharding import (
    EXPERT_AXIS,
    GROUP_AXES,
    RANK_AXIS,
    TENSOR_AXIS,
    ShardingRules,
    num_expert_parts,
    num_shards,
    num_sharing,
    on_each_device,
)
from palladio.model.config.config import ModelConfig
from palladio.model.layers.expert_rows import RowOrder, experts_of_rows, sum_of_placed, take_rows
from palladio.model.layers.mlp import ACTIVATIONS
from palladio.model.spec.layer_spec import ClampedGate, RouterSpec, SparseSpec
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.expert_routing import Groups, Routed, Routing, can_route_experts, choose, route_experts

Arrays = tuple[jax.Array, ...]  # what one device has of a weight's parameters


class SparseMLP(Module):
    """Σ weight · down(activation(gate(x)) · up(x)) over the C experts of E that the router chooses for a token.

    Each of the three is one weight of all experts: gate and up [E, D, F], down [E, F, D]. (With gate and up in one
    weight, XLA:TPU would copy all of it at every step, for the kernel's layout.) Over several devices, each part of the
    devices has experts of its own, and each device of a part some of their columns. A token's rows are multiplied where
    its experts are, and one sum over the devices ends the layer. Weights stay where they are.
    """

    def __init__(self, context: Context, config: ModelConfig, spec: SparseSpec, kernels: Kernels, mesh: Mesh) -> None:
        """Make the parameters.

        Args:
            config: the config as laid out; places beyond the router's experts are padding, which it never chooses.
        """
        experts, D = config.experts, config.hidden_size
        assert experts is not None
        E, F = experts.num_places, experts.intermediate_size
        shared = experts.shared_intermediate_size
        self.router = context.param((D, experts.num_experts), (None, None), Initializer("uniform"))
        bias = Initializer("zeros")  # float32, as small differences choose other experts
        has_bias = spec.router.bias is not None
        self.router_bias = context.param((experts.num_experts,), (None,), bias, jnp.float32) if has_bias else None
        self.gate: Weight = Dense(context, (E, D, F), ("experts", None, "expert_ffw"), inputs=1)
        self.up: Weight = Dense(context, (E, D, F), ("experts", None, "expert_ffw"), inputs=1)
        self.down: Weight = Dense(context, (E, F, D), ("experts", "expert_ffw", None), inputs=1)
        into, back = ((E, F), ("experts", "expert_ffw"), bias), ((E, D), ("experts", None), bias)
        self.gate_bias = context.param(*into) if spec.bias else None
        self.up_bias = context.param(*into) if spec.bias else None
        self.down_bias = context.param(*back) if spec.bias else None
        has_shared, is_gated = spec.shared_expert is not None, spec.shared_expert == "gated"
        self.shared = SharedExpert(context, D, shared or 0, is_gated=is_gated) if has_shared else None
        self.num_chosen = experts.num_chosen
        self.spec = spec
        self.kernels = kernels
        self.mesh = mesh

    def __call__(self, x: jax.Array, num_tokens: jax.Array) -> jax.Array:
        """Compute [T, D] → [T, D]; rows from num_tokens on are padding, which goes to no expert."""
        rules = ShardingRules()
        shared = () if self.shared is None else self.shared.params
        router = (self.router,) if self.router_bias is None else (self.router, self.router_bias)
        biases = tuple(bias for bias in (self.gate_bias, self.up_bias, self.down_bias) if bias is not None)
        params = (router, biases, self.gate.params, self.up.params, self.down.params, *shared)
        specs = [tuple(rules.spec(param.get_metadata()["logical_axes"]) for param in each) for each in params]
        compute = on_each_device(
            self._own_part, self.mesh, in_specs=(rules.spec(()), rules.spec(()), *specs), out_specs=rules.spec(())
        )
        out: jax.Array = compute(x, num_tokens, *(tuple(param[...] for param in each) for each in params))
        return out

    def _own_part(
        self, x: jax.Array, num_tokens: jax.Array, router: Arrays, biases: Arrays, *params: Arrays
    ) -> jax.Array:
        """Compute the layer with the experts and columns of one device; the sum over devices is the result.

        Args:
            router: its kernel, and its bias if it has one.
            biases: biases of gate, up and down, if they have some.
            params: parameters of gate, up and down, then those of the shared expert.
        """
        experts, shared = params[:3], params[3:]
        if biases and num_shards(self.mesh) > num_expert_parts(self.mesh):  # devices that share experts sum up
            biases = (*biases[:2], jnp.where(lax.axis_index(TENSOR_AXIS) == 0, biases[2], 0))
        num_here = experts[0][0].shape[0]
        first = self._part * num_here
        routing = self._routing_of_kernel(x, router[0], num_here)
        if routing is not None:
            logits = router_logits(x, router[0], self.spec.router, *router[1:])
            bias = router[1] if routing.has_bias else None
            routed = route_experts(logits, x, num_tokens, first, routing, bias=bias, target=self.kernels.target)
            out = self._routed_experts(routed, biases, *experts)
        else:
            weights, chosen = choose_experts(x, router[0], self.num_chosen, self.spec.router, *router[1:])
            chosen = jnp.where(jnp.arange(x.shape[0])[:, None] < num_tokens, chosen, -1)
            out = self._of_all_ranks(x, weights, chosen, first, biases, *experts)
        if self.shared is not None:
            out += self.shared(x, *shared, activation=self._activation)
        out = out.astype(x.dtype)
        return lax.psum(out, GROUP_AXES) if num_shards(self.mesh) > 1 else out

    @property
    def _part(self) -> jax.Array | int:
        """The number of this device's part of the experts."""
        num_parts = num_expert_parts(self.mesh)
        part = lax.axis_index(EXPERT_AXIS) if num_parts > 1 else 0
        return part + num_parts * lax.axis_index(RANK_AXIS) if num_sharing(self.mesh) > 1 else part

    def _of_all_ranks(
        self,
        x: jax.Array,
        weights: jax.Array,
        chosen: jax.Array,
        first: jax.Array | int,
        biases: Arrays,
        *experts: Arrays,
    ) -> jax.Array:
        """Compute `_experts` with experts that ranks share: gather the rows of all ranks, and add each rank's results
        to the rows that they belong to. Padding, also a whole rank of it, has no expert."""
        if num_sharing(self.mesh) == 1:
            return self._experts(x, weights, chosen - first, biases, *experts)
        rows, shares, wanted = (lax.all_gather(one, RANK_AXIS, tiled=True) for one in (x, weights, chosen))
        out = self._experts(rows, shares, wanted - first, biases, *experts)
        mine: jax.Array = lax.psum_scatter(out.astype(x.dtype), RANK_AXIS, tiled=True)
        return mine.astype(jnp.float32)

    def _experts(
        self,
        x: jax.Array,
        weights: jax.Array,
        chosen: jax.Array,
        biases: Arrays,
        gate: Arrays,
        up: Arrays,
        down: Arrays,
    ) -> jax.Array:
        """Compute the weighted sum of this device's experts.

        Args:
            x: [T, D].
            weights: f32[T, C].
            chosen: i32[T, C], experts numbered from this device's first one; numbers out of range stand for none.
            biases: as in `_own_part`.
            gate, up, down: the three weights of this device's experts.

        Returns:
            f32[T, D].
        """
        (T, D), C, E = x.shape, chosen.shape[1], gate[0].shape[0]
        is_here = (chosen >= 0) & (chosen < E)
        by = RowOrder.of(jnp.where(is_here, chosen, E), E, self.kernels.target)
        add = [_adder(bias, jnp.clip(take_rows(chosen.reshape(-1), by.order), 0, E - 1)) for bias in biases]
        products = self._products(by.take(x, by.tokens), by.sizes, add, gate, up, down)
        out = by.take(products, by.places)  # token after token again
        # Rows of no group are taken for anything: XLA:TPU's kernel does not write them.
        weighted = weights[:, :, None] * out.reshape(T, C, D).astype(jnp.float32)
        return jnp.sum(jnp.where(is_here[:, :, None], weighted, 0.0), axis=1)

    def _routing_of_kernel(self, x: jax.Array, router: jax.Array, num_here: int) -> Routing | None:
        """Return the rules for the kernel that chooses experts and orders rows; None: XLA's operations do so."""
        spec = self.spec.router
        if num_sharing(self.mesh) > 1:
            return None
        routing = routing_of(spec, self.num_chosen, num_here)
        backend, target = self.kernels.attention, self.kernels.target
        return routing if can_route_experts(x, router.shape[1], routing, backend=backend, target=target) else None

    def _routed_experts(self, routed: Routed, biases: Arrays, *experts: Arrays) -> jax.Array:
        """Compute `_experts` of ordered rows, in the dtype that the result needs."""
        M = routed.rows.shape[0]
        add = [_adder(bias, experts_of_rows(routed.sizes, M)) for bias in biases]
        products = self._products(routed.rows, routed.sizes, add, *experts)
        dtype = products.dtype if self.shared is None else jnp.float32  # another expert's is added to it
        rows_here = M // num_expert_parts(self.mesh)
        weights, places = routed.weights, routed.places
        return sum_of_placed(products, weights, places, rows_here, self.kernels.target, dtype=dtype)

    def _products(
        self,
        rows: jax.Array,
        sizes: jax.Array,
        add: Sequence[Callable[[jax.Array], jax.Array]],
        gate: Arrays,
        up: Arrays,
        down: Arrays,
    ) -> jax.Array:
        """Apply each row's expert: [M, D] → [M, D].

        Args:
            add: adds the biases of gate, up and down; empty: there are none.
        """
        add = add or [_unchanged] * 3
        gated = self._activation(add[0](self.gate.grouped_matmul(rows, sizes, self.kernels, gate)))
        inner = gated * self._of_up(add[1](self.up.grouped_matmul(rows, sizes, self.kernels, up)))  # [M, F]
        return add[2](self.down.grouped_matmul(inner, sizes, self.kernels, down))

    @property
    def _activation(self) -> Callable[[jax.Array], jax.Array]:
        activation = self.spec.activation
        if isinstance(activation, ClampedGate):
            return functools.partial(_clamped, activation)
        return ACTIVATIONS[activation]

    def _of_up(self, up: jax.Array) -> jax.Array:
        """Return the factor on the activated gate."""
        activation = self.spec.activation
        if not isinstance(activation, ClampedGate):
            return up
        return jnp.clip(up, -activation.limit, activation.limit) + 1


def _clamped(by: ClampedGate, gate: jax.Array) -> jax.Array:
    gate = jnp.minimum(gate, by.limit)
    return gate * jax.nn.sigmoid(gate * by.sharpness)


class SharedExpert(Module):
    """An expert that every token goes to, perhaps behind a gate of one number: gate and up [D, 2, F], down [F, D]."""

    def __init__(self, context: Context, hidden_size: int, intermediate_size: int, *, is_gated: bool) -> None:
        D, F = hidden_size, intermediate_size
        self.gate_up: Weight = Dense(context, (D, 2, F), (None, None, "shared_ffw"), inputs=0)
        self.down: Weight = Dense(context, (F, D), ("shared_ffw", None), inputs=0)
        self.gate = context.param((D, 1), (None, None), Initializer("uniform")) if is_gated else None

    @property
    def params(self) -> tuple[tuple[Any, ...], ...]:
        """The parameters, in the order in which a call takes their values."""
        return self.gate_up.params, self.down.params, () if self.gate is None else (self.gate,)

    def __call__(
        self, x: jax.Array, gate_up: Arrays, down: Arrays, gate: Arrays, *, activation: Callable[[jax.Array], jax.Array]
    ) -> jax.Array:
        """Compute [T, D] → f32[T, D]; with some of F, that part of the sum."""
        both = self.gate_up.matmul(x, arrays=gate_up)  # [T, 2, F]
        inner = activation(both[:, 0]) * both[:, 1]
        out = self.down.matmul(inner, out_dtype=jnp.float32, arrays=down)
        return out * jax.nn.sigmoid(_in_float32(x, gate[0])) if gate else out


def choose_experts(
    x: jax.Array, router: jax.Array, num_chosen: int, spec: RouterSpec, bias: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Run the router, in float32 whatever the dtype: small differences of its logits choose other experts.

    Args:
        x: [T, D].
        router: [D, E].
        num_chosen: C.
        spec: the rules of the choice.
        bias: f32[E], if the router has one.

    Returns:
        f32[T, C], weights of the chosen experts, the first choice first, and i32[T, C], their numbers.
    """
    routing = routing_of(spec, num_chosen, router.shape[1])
    return choose(router_logits(x, router, spec, bias), routing, bias if routing.has_bias else None)


def routing_of(spec: RouterSpec, num_chosen: int, num_here: int) -> Routing:
    """Describe a router to the kernels.

    Args:
        num_here: experts of this device.
    """
    groups = spec.groups
    return Routing(
        num_chosen,
        num_here,
        spec.renormalize,
        spec.scale,
        spec.score,
        has_bias=spec.bias == "choice",
        groups=None if groups is None else Groups(groups.number, groups.kept, best_two=groups.score == "best_two"),
    )


def router_logits(x: jax.Array, router: jax.Array, spec: RouterSpec, bias: jax.Array | None = None) -> jax.Array:
    """Return the router's logits, f32[T, E]. The arguments are those of choose_experts."""
    logits = _in_float32(x, router)
    if spec.bias != "logits":
        return logits
    assert bias is not None
    return logits + bias


def _in_float32(x: jax.Array, kernel: jax.Array) -> jax.Array:
    kernel = kernel.astype(x.dtype)
    return lax.dot_general(
        x, kernel, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _adder(bias: jax.Array, experts: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Return a function that adds to each row [M, out] its expert's bias; bias [E, out], experts i32[M]."""

    def add(products: jax.Array) -> jax.Array:
        return products + take_rows(bias, experts).astype(products.dtype)

    return add


def _unchanged(products: jax.Array) -> jax.Array:
    return products
