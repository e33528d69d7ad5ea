"""The trials of expert routing, of the experts' sum, and of the rotation of heads."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from palladio.pallas_kernels.expert_routing import Routed, Routing, route_experts, sum_experts
from palladio.pallas_kernels.head_rotation import rotate_heads
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials.case import Case, HostArray, Inputs, Work, flat, random


@dataclasses.dataclass(frozen=True, slots=True)
class Router:
    """The router of a layer on one device.

    Attributes:
        routing: its rules.
        num_experts: E.
        hidden_size: D.
        dtype: dtype of rows.
    """

    routing: Routing
    num_experts: int
    hidden_size: int
    dtype: DTypeLike

    def case(self, num_tokens: int) -> Case:
        """Return the program of a step of that many tokens."""
        T, last = num_tokens, self.num_experts - self.routing.num_here
        steps = (
            ("all tokens", T, 0),
            ("padding, the last experts", max(1, T - 3), last),
            ("padding alone", 0, 0),
        )
        size = T * self.num_experts * 4 + 2 * T * self.routing.num_chosen * self.hidden_size * 2
        inputs = tuple(
            Inputs(name, functools.partial(self._make, T, real, first), _kept_of_routes, Work(size, 0))
            for name, real, first in steps
        )
        return Case(
            name=f"{T} tokens",
            call=self._call,
            expected=functools.partial(self._call, "reference", Target()),
            inputs=inputs,
            dtype=jnp.float32,  # of weights; rows are copied
            layer=str(self),
            options=str(self.routing),
        )

    def _make(self, num_tokens: int, real: int, first: int) -> tuple[Any, ...]:
        """Make logits, rows, the number of tokens, the first expert, and a bias of the choice."""
        rng = np.random.default_rng(num_tokens + real)
        logits = random(rng, (num_tokens, self.num_experts))
        bias = random(rng, (self.num_experts,)) * np.float32(0.1) if self.routing.has_bias else None
        x = random(rng, (num_tokens, self.hidden_size), self.dtype)
        return logits, x, np.int32(real), np.int32(first), bias

    def _call(
        self,
        backend: str,
        target: Target,
        logits: jax.Array,
        x: jax.Array,
        num_tokens: jax.Array,
        first: jax.Array,
        bias: jax.Array | None,
    ) -> Routed:
        return route_experts(logits, x, num_tokens, first, self.routing, bias=bias, backend=backend, target=target)


def _kept_of_routes(routed: Routed) -> list[HostArray]:
    """Return weights, places, sizes and the rows that have an expert."""
    weights, places, rows, sizes = (np.asarray(x) for x in routed)
    return [weights, places, sizes[:, None], flat(rows[: int(sizes.sum())])]


@dataclasses.dataclass(frozen=True, slots=True)
class ExpertSum:
    """The sum of each token's experts.

    Attributes:
        num_chosen: C.
        hidden_size: D.
        dtype: dtype of the experts' results.
        out_dtype: dtype of the sums.
    """

    num_chosen: int
    hidden_size: int
    dtype: DTypeLike
    out_dtype: DTypeLike

    def case(self, num_tokens: int) -> Case:
        """Return the program of a step of that many tokens."""
        T, size = num_tokens, jnp.dtype(self.dtype).itemsize
        work = Work((self.num_chosen + 1) * T * self.hidden_size * size, 2 * T * self.num_chosen * self.hidden_size)
        inputs = tuple(
            Inputs(name, functools.partial(self._make, T, share), lambda out: [flat(out)], work)
            for name, share in (("all experts here", 1.0), ("half of them", 0.5), ("none", 0.0))
        )
        return Case(
            name=f"{T} tokens",
            call=self._call,
            expected=functools.partial(self._call, "reference", Target()),
            inputs=inputs,
            dtype=self.dtype,
            layer=str(self),
        )

    def _make(self, num_tokens: int, share: float) -> tuple[Any, ...]:
        """Make the experts' results, the tokens' weights, and the place of each of their rows.

        Args:
            share: of the rows that have an expert of this device.
        """
        rng, M = np.random.default_rng(num_tokens), num_tokens * self.num_chosen
        weights = np.abs(random(rng, (num_tokens, self.num_chosen)))
        places = rng.permutation(M).astype(np.int32)
        places[places >= round(share * M)] = -1
        return random(rng, (M, self.hidden_size), self.dtype), weights, places.reshape(weights.shape)

    def _call(
        self, backend: str, target: Target, products: jax.Array, weights: jax.Array, places: jax.Array
    ) -> jax.Array:
        return sum_experts(products, weights, places, dtype=self.out_dtype, backend=backend, target=target)


@dataclasses.dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of a layer's heads on one device.

    Attributes:
        num_kv_heads: K.
        group: query heads of a kv head (G).
        head_size: H.
        dtype: dtype of the projection.
    """

    num_kv_heads: int
    group: int
    head_size: int
    dtype: DTypeLike

    def shape(self, num_tokens: int) -> tuple[int, int, int, int]:
        """Return the shape of the product for q, k and v."""
        return num_tokens, self.num_kv_heads, self.group + 2, self.head_size

    def case(self, num_tokens: int) -> Case:
        """Return the program of a step of that many tokens."""
        count = int(np.prod(self.shape(num_tokens)))
        work = Work(2 * count * jnp.dtype(self.dtype).itemsize, 3 * count)
        inputs = Inputs("all tokens", functools.partial(self._make, num_tokens), _kept_of_heads, work)
        return Case(
            name=f"{num_tokens} tokens",
            call=self._call,
            expected=functools.partial(self._call, "reference", Target()),
            inputs=(inputs,),
            dtype=self.dtype,
            layer=str(self),
        )

    def _make(self, num_tokens: int) -> tuple[Any, ...]:
        """Make the product, and cosines and sines of each token's angles."""
        rng = np.random.default_rng(num_tokens)
        angles = rng.uniform(0, 2 * np.pi, (num_tokens, self.head_size // 2)).astype(np.float32)
        return random(rng, self.shape(num_tokens), self.dtype), np.cos(angles), np.sin(angles)

    def _call(self, backend: str, target: Target, projected: jax.Array, cos: jax.Array, sin: jax.Array) -> Any:
        return rotate_heads(projected, cos, sin, backend=backend, target=target)


def _kept_of_heads(rotated: Any) -> list[HostArray]:
    return [flat(np.asarray(part)) for part in rotated]
