"""The mixture of experts: a router sends each token to a few of many small MLPs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from palladio.model.config import ModelConfig
from palladio.model.layer_spec import RouterSpec, SparseSpec
from palladio.model.mlp import ACTIVATIONS
from palladio.model.module import Context, Initializer, Module
from palladio.model.sharding import EXPERT_AXIS, GROUP_AXES, ShardingRules, num_expert_parts, num_shards, on_each_device
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.grouped_matmul import grouped_matmul


class SparseMLP(Module):
    """Σ weight · down(activation(gate(x)) · up(x)) over the C experts of E that the router chooses for a token.

    Each of the three is one parameter of all experts: gate and up [E, D, F], down [E, F, D]. (Gate and up in one would
    have XLA:TPU copy all of it at every step, for the kernel's layout.) Over several devices each part of them has
    experts of its own, each device of a part some of their columns; a token's rows are multiplied where its experts
    are, and one sum over the devices ends the layer. Weights stay where they are.
    """

    def __init__(self, context: Context, config: ModelConfig, spec: SparseSpec, kernels: Kernels, mesh: Mesh) -> None:
        """
        Args:
            config: with experts, as laid out; places beyond the router's experts are padding, which it never chooses.
        """
        experts, D = config.experts, config.hidden_size
        assert experts is not None
        E, F = experts.num_places, experts.intermediate_size
        shared = experts.shared_intermediate_size if spec.has_shared_expert else None
        from_second = Initializer("uniform", fan_in=1)
        self.router = context.param((D, experts.num_experts), (None, None), Initializer("uniform"))
        self.gate = context.param((E, D, F), ("experts", None, "expert_ffw"), from_second)
        self.up = context.param((E, D, F), ("experts", None, "expert_ffw"), from_second)
        self.down = context.param((E, F, D), ("experts", "expert_ffw", None), from_second)
        self.shared = None if shared is None else SharedExpert(context, D, shared)
        self.num_chosen = experts.num_chosen
        self.spec = spec
        self.kernels = kernels
        self.mesh = mesh

    def __call__(self, x: jax.Array, num_tokens: jax.Array) -> jax.Array:
        """[T, D] → [T, D]; rows from num_tokens on are padding, which goes to no expert."""
        rules = ShardingRules()
        shared = () if self.shared is None else self.shared.params
        params = (self.router, self.gate, self.up, self.down, *shared)
        specs = [rules.spec(param.get_metadata()["logical_axes"]) for param in params]
        compute = on_each_device(
            self._own_part, self.mesh, in_specs=(rules.spec(()), rules.spec(()), *specs), out_specs=rules.spec(())
        )
        out: jax.Array = compute(x, num_tokens, *(param[...] for param in params))
        return out

    def _own_part(self, x: jax.Array, num_tokens: jax.Array, router: jax.Array, *params: jax.Array) -> jax.Array:
        """All of the layer, with the experts and columns that one device has; the sum over devices is the result.

        Args:
            params: gate, up and down; then those of the shared expert.
        """
        experts, shared = params[:3], params[3:]
        weights, chosen = choose_experts(x, router, self.num_chosen, self.spec.router)
        if num_expert_parts(self.mesh) > 1:
            chosen -= lax.axis_index(EXPERT_AXIS) * experts[0].shape[0]
        is_real = jnp.arange(x.shape[0]) < num_tokens
        out = self._experts(x, weights, jnp.where(is_real[:, None], chosen, -1), *experts)
        if shared:
            out += shared_expert(x, *shared, activation=self._activation)
        out = out.astype(x.dtype)
        return lax.psum(out, GROUP_AXES) if num_shards(self.mesh) > 1 else out

    def _experts(
        self,
        x: jax.Array,
        weights: jax.Array,
        chosen: jax.Array,
        gate: jax.Array,
        up: jax.Array,
        down: jax.Array,
    ) -> jax.Array:
        """The weighted sum of the experts that are here.

        Args:
            x: [T, D].
            weights: f32[T, C].
            chosen: i32[T, C], experts as they are numbered here; numbers that are not here stand for none.
            gate, up: [E, D, F]. down: [E, F, D].

        Returns:
            f32[T, D].
        """
        (T, D), C, E = x.shape, chosen.shape[1], gate.shape[0]
        is_here = (chosen >= 0) & (chosen < E)
        groups = jnp.where(is_here, chosen, E).reshape(T * C)  # those of no group come last
        order = jnp.argsort(groups)  # row after row of the first expert, then of the second…
        sizes = jnp.sum(groups[:, None] == jnp.arange(E), axis=0, dtype=jnp.int32)
        rows = _rows(x, order // C)  # [T·C, D]
        inner = self._activation(self._product(rows, gate, sizes)) * self._product(rows, up, sizes)  # [T·C, F]
        out = _rows(self._product(inner, down, sizes), jnp.argsort(order))  # token after token again
        # Rows of no group are taken for anything: XLA:TPU's kernel does not write them.
        weighted = weights[:, :, None] * out.reshape(T, C, D).astype(jnp.float32)
        return jnp.sum(jnp.where(is_here[:, :, None], weighted, 0.0), axis=1)

    @property
    def _activation(self) -> Callable[[jax.Array], jax.Array]:
        return ACTIVATIONS[self.spec.activation]

    def _product(self, rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
        return grouped_matmul(rows, matrices, sizes, backend=self.kernels.grouped_matmul, target=self.kernels.target)


class SharedExpert(Module):
    """The parameters of an expert that every token goes to, behind a gate of one number."""

    def __init__(self, context: Context, hidden_size: int, intermediate_size: int) -> None:
        D, F = hidden_size, intermediate_size
        self.gate_up = context.param((D, 2, F), (None, None, "shared_ffw"), Initializer("uniform"))
        self.down = context.param((F, D), ("shared_ffw", None), Initializer("uniform"))
        self.gate = context.param((D, 1), (None, None), Initializer("uniform"))

    @property
    def params(self) -> tuple[Any, ...]:
        """As `shared_expert` takes their values."""
        return self.gate_up, self.down, self.gate


def shared_expert(
    x: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
    gate: jax.Array,
    *,
    activation: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """x [T, D], gate_up [D, 2, F], down [F, D], gate [D, 1] → f32[T, D]; with some of F, that part of the sum."""
    both = lax.dot_general(x, gate_up, (((1,), (0,)), ((), ())))  # [T, 2, F]
    inner = activation(both[:, 0]) * both[:, 1]
    out = lax.dot_general(inner, down, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    return out * jax.nn.sigmoid(_in_float32(x, gate))


def choose_experts(x: jax.Array, router: jax.Array, num_chosen: int, spec: RouterSpec) -> tuple[jax.Array, jax.Array]:
    """The router, in float32 whatever the dtype: small differences of its logits choose other experts.

    Args:
        x: [T, D].
        router: [D, E].
        num_chosen: C.
        spec: how they are chosen.

    Returns:
        f32[T, C], weights of the chosen experts, the largest first, and i32[T, C], their numbers.
    """
    shares = jax.nn.softmax(_in_float32(x, router), axis=-1)
    weights, chosen = lax.top_k(shares, num_chosen)
    if spec.renormalize:
        weights /= jnp.sum(weights, axis=-1, keepdims=True)
    return weights, chosen.astype(jnp.int32)


def _in_float32(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.dot_general(
        x, kernel, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _rows(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """Rows of x that are known to be there: nothing has to be clipped or filled."""
    return x.at[numbers].get(mode="promise_in_bounds")
